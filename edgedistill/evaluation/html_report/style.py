"""The page's style sheet, light and dark, and its script: tooltips and sortable tables."""

CSS = """
:root{--bg:#fbfaf6;--card:#fff;--ink:#1d2126;--soft:#5d6670;--line:#e4e1d8;--shade:#2f6fed;--c0:#3a3f46;--c1:#2f6fed;--c2:#d9480f;
--c3:#0c8f7d;--c4:#a61e8f;--c5:#b07d00;--c6:#6741d9;--c7:#3f8f1f;--c8:#d0306b;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1b1f25;--ink:#eceae4;--soft:#9aa4af;--line:#2c323a;--shade:#5b93ff;
--c0:#cfd5dc;--c1:#6b9dff;--c2:#ff8552;--c3:#35c9b2;--c4:#e56fd0;--c5:#e3b341;--c6:#a78bfa;--c7:#86cf5f;--c8:#ff7aa8}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}main{max-width:1240px;margin:0 auto;
padding:44px 28px 60px}header{margin-bottom:8px}.brand{margin:0;color:var(--soft);font-size:13px;letter-spacing:.08em;
text-transform:uppercase}h1{font-size:clamp(24px,3.4vw,36px);line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:6px 0 18px;
max-width:26em;overflow-wrap:anywhere;text-wrap:balance}h2{font-size:19px;font-weight:650;margin:0 0 10px}h3{font-size:15px;
margin:18px 0 6px}section{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:22px 24px;margin:20px 0}
.where{color:var(--soft);font-size:14px;margin:14px 0 0}.noise{color:var(--c2);font-size:14px;margin:6px 0 0}.tiles{display:flex;
flex-wrap:wrap;gap:12px 44px;margin:0}.tiles div{display:flex;flex-direction:column-reverse}.tiles dt{color:var(--soft);font-size:14px}
.tiles dd{margin:0;font-size:27px;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums}.scroll{overflow-x:auto}
svg{display:block;width:100%;height:auto;font-family:inherit;overflow:visible}.scroll>svg{min-width:760px}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums;white-space:nowrap}th,td{padding:7px 7px;
text-align:right;border-bottom:1px solid var(--line);font-weight:400}th:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-size:13px}tbody tr:last-child>*{border-bottom:0}
tbody tr:hover>*{background:color-mix(in srgb,var(--ink) 4%,transparent)}tr.teacher>*{font-weight:650}th i{display:inline-block;
width:10px;height:10px;border-radius:50%;margin-right:8px}th button{all:unset;cursor:pointer}
th button:hover,th button:focus-visible{color:var(--ink);text-decoration:underline}th[aria-sort] button{color:var(--ink)}
th[aria-sort=ascending] button::after{content:" ↑"}th[aria-sort=descending] button::after{content:" ↓"}.prec{color:var(--soft);
font-weight:400}
td.bar{background:linear-gradient(90deg,color-mix(in srgb,var(--shade) 18%,transparent) var(--bar),
transparent var(--bar)) no-repeat 0 50%/100% 64%}
td.shade{background:color-mix(in srgb,var(--shade) calc(var(--s)*.3),transparent)}.tabs input{position:absolute;opacity:0}
.tabs label{display:inline-block;padding:3px 13px;margin:0 6px 10px 0;border:1px solid var(--line);border-radius:99px;font-size:14px;
color:var(--soft);cursor:pointer}.tabs input:checked+label{background:var(--ink);color:var(--bg);border-color:var(--ink)}
.tabs input:focus-visible+label{outline:2px solid var(--shade);outline-offset:2px}.one input,.one label{display:none}
.panel{display:none}.grid{stroke:var(--line)}.base{stroke:var(--soft);stroke-opacity:.5}.tick,.note,.hint,.axis{fill:var(--soft);
font-size:12px}.hint{font-style:italic}.note{font-size:11.5px;font-variant-numeric:tabular-nums}.label{font-size:12px;fill:var(--soft)}
.label .name{font-weight:600;fill:var(--ink)}.panel .label,.panel .note{paint-order:stroke;stroke:var(--card);stroke-width:3px;
stroke-linejoin:round}.teacher-line{stroke:var(--c0);stroke-dasharray:2 5;stroke-opacity:.75}.frontier{fill:none;stroke:var(--soft);
stroke-opacity:.35;stroke-width:1.5;stroke-linejoin:round}.dot{outline:none;color:var(--c)}.dot circle{fill:var(--c);fill-opacity:.28;
stroke:var(--c);stroke-width:1.5}.dot .core{fill-opacity:1;stroke:none}.dot line{stroke:var(--c);stroke-width:1.5}
.dot:hover circle,.dot:focus-visible circle{fill-opacity:.55}.dot.teacher circle{fill-opacity:.12;stroke-dasharray:4 3}
.dot.teacher .core{fill-opacity:1}.leader{stroke:var(--soft);stroke-opacity:.6}.key{fill:none;stroke:var(--soft)}
.distribution path{fill:var(--c);fill-opacity:.35;stroke:var(--c);stroke-width:1.2}.mark{stroke:var(--ink);stroke-width:1.5}
.multiples{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:14px 36px}figure{margin:0;
max-width:640px}figcaption{font-size:14px;font-weight:600;margin-bottom:4px}section p{font-size:14px;color:var(--soft);margin:6px 0;
overflow-wrap:anywhere}section p b{color:var(--ink)}#tip{position:fixed;display:none;white-space:pre;pointer-events:none;
background:var(--ink);color:var(--bg);font-size:13px;line-height:1.45;padding:8px 12px;border-radius:8px;max-width:90vw;z-index:9}
@media(max-width:640px){main{padding:24px 12px}section{padding:16px 14px;border-radius:10px}}@media print{section{break-inside:avoid}
body{background:#fff}}
"""

JS = """
const tip=document.getElementById('tip');const show=(e,x,y)=>{tip.textContent=e.dataset.tip;tip.style.display='block';
tip.style.left=Math.min(x+14,innerWidth-tip.offsetWidth-8)+'px';tip.style.top=Math.max(8,Math.min(y+14,
innerHeight-tip.offsetHeight-8))+'px'};document.querySelectorAll('[data-tip]').forEach(e=>{e.onmousemove=v=>show(e,v.clientX,v.clientY);
e.onfocus=()=>{const b=e.getBoundingClientRect();show(e,b.right,b.top)};e.onmouseleave=e.onblur=()=>tip.style.display='none'});
document.querySelectorAll('.sortable thead th').forEach((th,i)=>th.firstChild.onclick=()=>{
const up=th.getAttribute('aria-sort')==='descending'||(i===0&&!th.hasAttribute('aria-sort')),body=th.closest('table').tBodies[0];
th.parentNode.querySelectorAll('th').forEach(o=>o.removeAttribute('aria-sort'));th.setAttribute('aria-sort',
up?'ascending':'descending');const key=r=>r.cells[i].dataset.v,empty=v=>v==='';[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);
if(empty(x)||empty(y))return empty(x)-empty(y);return(i===0?x.localeCompare(y):x-y)*(up?1:-1)}).forEach(r=>body.append(r))});
"""
