const tip=document.getElementById('tip');const show=(e,x,y)=>{tip.textContent=e.dataset.tip;tip.style.display='block';
tip.style.left=Math.min(x+14,innerWidth-tip.offsetWidth-8)+'px';tip.style.top=Math.max(8,Math.min(y+14,
innerHeight-tip.offsetHeight-8))+'px'};document.querySelectorAll('[data-tip]').forEach(e=>{e.onmousemove=v=>show(e,v.clientX,v.clientY);
e.onfocus=()=>{const b=e.getBoundingClientRect();show(e,b.right,b.top)};e.onmouseleave=e.onblur=()=>tip.style.display='none'});
document.querySelectorAll('.sortable thead th').forEach((th,i)=>th.firstChild.onclick=()=>{
const up=th.getAttribute('aria-sort')==='descending'||(i===0&&!th.hasAttribute('aria-sort')),body=th.closest('table').tBodies[0];
th.parentNode.querySelectorAll('th').forEach(o=>o.removeAttribute('aria-sort'));th.setAttribute('aria-sort',
up?'ascending':'descending');const key=r=>r.cells[i].dataset.v,empty=v=>v==='';[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);
if(empty(x)||empty(y))return empty(x)-empty(y);return(i===0?x.localeCompare(y):x-y)*(up?1:-1)}).forEach(r=>body.append(r))});
