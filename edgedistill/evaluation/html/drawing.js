// What the plots share: elements, scales with their ticks, grids, and the <svg> around them. Lengths are in SVG units; y grows
// downwards. Text is only ever set as text, never as HTML.
const SVG = new Set('svg g line path rect circle text tspan desc'.split(' '));
const MIN_DECADES = 0.5; // width of a log scale, so that noise does not look like distance
const MIN_POINTS = 2; // height of a linear scale
const CLOSEST = 34; // distance of two ticks, so that their labels do not overlap

/** An element; attributes that are null or false are left out; children are elements or texts. */
function el(tag, attributes = {}, ...children) {
  const found = SVG.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== false) found.setAttribute(key, value);
  found.append(...children.flat().filter((child) => child !== null && child !== ''));
  return found;
}

const one = (value) => value.toFixed(1);
const line = (kind, x1, y1, x2, y2) => el('line', {class: kind, x1: one(x1), y1: one(y1), x2: one(x2), y2: one(y2)});

/** A time or rate to that many significant digits, as tables.py shows it. */
function significant(value, digits = 3) {
  const places = Math.min(3, Math.max(0, digits - 1 - Math.floor(Math.log10(value || 1))));
  return Number(value.toPrecision(digits)).toLocaleString('en', {minimumFractionDigits: places, maximumFractionDigits: places});
}

const drawing = (wide, high, title, description, parts) =>
  el('svg', {viewBox: `0 0 ${wide} ${high}`, role: 'img', 'aria-label': title}, el('desc', {}, description), parts);

const DIGITS = [[1, 1.5, 2, 3, 4, 5, 7], [1, 2, 5], [1, 3], [1]]; // of a log scale's ticks

/** Map the range of positive values to left … right, at least MIN_DECADES. Returns {scale, ticks}: in every decade the same of DIGITS, as
 * many as are not closer than CLOSEST. */
function logScale(values, left, right) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const wider = Math.max(0, MIN_DECADES - Math.log10(most / least)) / 2;
  const low = Math.log10(least) - wider, high = Math.log10(most) + wider;
  const powers = Array.from({length: 11}, (_, at) => at - 4);
  const scale = (value) => left + (Math.log10(value) - low) / (high - low) * (right - left);
  const even = DIGITS.slice(most / least < 12 ? 0 : 1).map((digits) => powers.flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`))));
  const all = even.find((ticks) => apart(ticks, scale).length === ticks.length) ?? even.at(-1);
  return {scale, ticks: apart(all.filter((tick) => least / 1.9 <= tick && tick <= most * 1.9), scale)};
}

/** The ticks that are not too close to an earlier one, in ascending order. */
function apart(ticks, scale) {
  const found = [];
  for (const tick of ticks) if (found.every((other) => Math.abs(scale(other) - scale(tick)) >= CLOSEST)) found.push(tick);
  return found.sort((a, b) => a - b);
}

/** Map the range of values to bottom … top, at least MIN_POINTS. Returns {scale, ticks}. */
function linearScale(values, bottom, top) {
  const middle = (Math.min(...values) + Math.max(...values)) / 2;
  const span = Math.max(MIN_POINTS, Math.max(...values) - Math.min(...values)), low = middle - span / 2;
  const size = 10 ** Math.floor(Math.log10(span / 5));
  const step = [1, 2, 5, 10].map((digit) => digit * size).find((each) => each >= span / 5);
  const first = Math.floor((low - span * 0.2) / step) * step;
  const ticks = Array.from({length: 20}, (_, at) => Number((first + step * at).toFixed(6)));
  return {
    scale: (value) => bottom - (value - low) / span * (bottom - top),
    ticks: ticks.filter((tick) => tick <= low + span * 1.2),
  };
}

/** Grid lines and tick labels of two scales within a frame, and its base line. */
function grid(x, y, {left, top, right, bottom}) {
  const parts = [];
  for (const tick of x.ticks.filter((each) => left <= x.scale(each) && x.scale(each) <= right)) {
    parts.push(line('grid', x.scale(tick), top, x.scale(tick), bottom));
    parts.push(el('text', {class: 'tick', x: one(x.scale(tick)), y: bottom + 18, 'text-anchor': 'middle'}, `${tick}`));
  }
  for (const tick of y.ticks.filter((each) => top <= y.scale(each) && y.scale(each) <= bottom)) {
    parts.push(line('grid', left, y.scale(tick), right, y.scale(tick)));
    parts.push(el('text', {class: 'tick', x: left - 8, y: one(y.scale(tick) + 4), 'text-anchor': 'end'}, `${tick}`));
  }
  return [...parts, line('base', left, bottom, right, bottom)];
}
