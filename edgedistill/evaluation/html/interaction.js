// What a reader can do on the pages: sort a table, and see the tips of a plot's points.

const sorted = new Map(); // a table's name: {head, up}, so that it stays sorted when it is drawn anew

/** Let the buttons in a table's head sort its rows by the data-v of their cells. */
function makeSortable(whole, name) {
  const heads = [...whole.tHead.rows[0].cells], kept = sorted.get(name);
  heads.forEach((head, column) => {
    const button = head.querySelector('button');
    if (button) button.onclick = () => { sorted.set(name, {head: head.textContent, up: upwards(head, column)}); sort(whole, column, sorted.get(name).up); };
  });
  const column = heads.findIndex(({textContent}) => textContent === kept?.head);
  if (column >= 0) sort(whole, column, kept.up);
}

/** Whether a click sorts upwards: first the best on top, so rates and scores downwards, times, sizes and names upwards; then the other way. */
function upwards(head, column) {
  const before = head.getAttribute('aria-sort'), text = head.textContent;
  return before ? before === 'descending' : column === 0 || (/\b(ms|MB|params)\b|^≤/.test(text) && !text.includes('texts/s'));
}

/** Sort by a column; rows without a value stay last. */
function sort(whole, column, up) {
  for (const head of whole.tHead.rows[0].cells) head.removeAttribute('aria-sort');
  for (const row of whole.tBodies[0].rows) [...row.cells].forEach((each, at) => each.classList.toggle('by', at === column));
  whole.tHead.rows[0].cells[column].setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const compare = ([a], [b]) => {
    if (a === '' || b === '') return (a === '') - (b === '');
    const order = Number.isNaN(a - b) ? a.localeCompare(b, 'en', {numeric: true}) : a - b;
    return order * (up ? 1 : -1);
  };
  const keyed = [...whole.tBodies[0].rows].map((row) => [row.cells[column].dataset.v, row]);
  whole.tBodies[0].append(...keyed.sort(compare).map(([, row]) => row));
}

const AWAY = 12, EDGE = 8; // pixels: of a tip from its point, and from the edge of the window

/** Show a point's tip beside it: below and right, above and left where there is no room. */
function showTip(tip, point) {
  tip.textContent = point.dataset.tip;
  const {left, right, top, bottom} = (point.querySelector('circle') ?? point).getBoundingClientRect();
  const beside = right + AWAY + tip.offsetWidth > innerWidth - EDGE ? left - AWAY - tip.offsetWidth : right + AWAY;
  const below = bottom + AWAY + tip.offsetHeight > innerHeight - EDGE ? top - AWAY - tip.offsetHeight : bottom + AWAY;
  tip.style.left = `${Math.max(EDGE, beside)}px`;
  tip.style.top = `${Math.max(EDGE, below)}px`;
  tip.style.visibility = 'visible';
}

const STEPS = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1};

/** Make the points of a plot one tab stop, and each an image whose name is its tip. Arrow keys go from point to point, left to right. */
function showTips() {
  const tip = document.getElementById('tip'), hide = () => { tip.style.visibility = 'hidden'; };
  for (const plot of document.querySelectorAll('svg:has([data-tip])')) {
    const points = [...plot.querySelectorAll('[data-tip]')];
    plot.setAttribute('role', 'group'); // the children of an image have no names
    plot.setAttribute('aria-label', `${plot.getAttribute('aria-label')}; arrow keys go from point to point`);
    points.forEach((point, at) => {
      point.setAttribute('role', 'img');
      point.setAttribute('aria-label', point.dataset.tip);
      point.tabIndex = at ? -1 : 0;
      point.onmouseenter = () => showTip(tip, point);
      point.onfocus = () => {
        for (const other of points) other.tabIndex = other === point ? 0 : -1;
        showTip(tip, point);
      };
      point.onmouseleave = point.onblur = hide;
    });
    plot.onkeydown = (event) => {
      if (!STEPS[event.key]) return;
      event.preventDefault();
      const placed = points.map((point) => ({point, ...point.getBoundingClientRect().toJSON()}));
      const order = placed.sort((a, b) => a.left + a.right - b.left - b.right || a.top - b.top).map(({point}) => point);
      order.at((order.indexOf(document.activeElement) + STEPS[event.key]) % order.length).focus();
    };
  }
  document.onkeydown = ({key}) => { if (key === 'Escape') hide(); };
}
