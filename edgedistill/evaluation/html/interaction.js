// What a reader can do on the pages: sort a table, and see a point's tip.

/** Let the buttons in a table's head sort its rows by the data-v of their cells. */
function makeSortable(whole) {
  whole.querySelectorAll('thead button').forEach((button, column) => { button.onclick = () => sort(whole, column); });
}

/** Sort by a column, first with the best on top: scores and rates downwards, times, sizes and names upwards; rows without a value stay last. */
function sort(whole, column) {
  const head = whole.tHead.rows[0].cells[column], before = head.getAttribute('aria-sort');
  const up = before ? before === 'descending' : column === 0 || /\b(ms|MB|params|bytes)\b/.test(head.textContent);
  for (const other of whole.tHead.rows[0].cells) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const compare = ([a], [b]) => {
    if (a === '' || b === '') return (a === '') - (b === '');
    const order = Number.isNaN(a - b) ? a.localeCompare(b, 'en', {numeric: true}) : a - b;
    return order * (up ? 1 : -1);
  };
  const keyed = [...whole.tBodies[0].rows].map((row) => [row.cells[column].dataset.v, row]);
  whole.tBodies[0].append(...keyed.sort(compare).map(([, row]) => row));
}

/** Show a point's tip beside the pointer, or beside the point where the keyboard is on it. */
function showTips() {
  const tip = document.getElementById('tip'), hide = () => { tip.style.display = 'none'; };
  const show = (point, x, y) => {
    tip.textContent = point.dataset.tip;
    tip.style.display = 'block';
    tip.style.left = `${Math.min(x + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - tip.offsetHeight - 8))}px`;
  };
  for (const point of document.querySelectorAll('[data-tip]')) {
    point.onmousemove = ({clientX, clientY}) => show(point, clientX, clientY);
    point.onfocus = () => {
      const {right, top} = point.getBoundingClientRect();
      show(point, right, top);
    };
    point.onmouseleave = point.onblur = hide;
  }
  document.onkeydown = ({key}) => { if (key === 'Escape') hide(); };
}
