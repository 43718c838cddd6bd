// Accuracy against latency: x is p50 of a single text (log), y the suite's average, a marker's area the size of the graph. The page and
// bench/readme_plot.py draw with it; the style sheet around it gives the colours.
const MAX_RADIUS = 36, MIN_RADIUS = 3.5;
const DISTANCES = [4, 12, 22, 36, 54, 76, 100]; // of a label, from the edge of its point
const LEADER_FROM = 12; // distance from which a line connects label and point
const CLEARLY = 10; // a label is nearer to its own point than to any other by so much, or a line connects them
const AMBIGUOUS = 400; // cost of one that is not, as much as of one that hides 20 units of an interval

const overlap = (a, b, margin) =>
  Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left) + margin)
  * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) + margin);
const outside = (a, frame) =>
  [frame.left - a.left, a.right - frame.right, frame.top - a.top, a.bottom - frame.bottom].reduce((sum, side) => sum + Math.max(0, side), 0);
const around = ({x, y, radius}) => ({left: x - radius, top: y - radius, right: x + radius, bottom: y + radius});
const nearest = ({x, y}, {left, top, right, bottom}) => [Math.min(Math.max(x, left), right), Math.min(Math.max(y, top), bottom)]; // of a box
/** The distance of a box from the edge of a point. */
const gap = (box, point) => { const [x, y] = nearest(point, box); return Math.max(0, Math.hypot(x - point.x, y - point.y) - point.radius); };
/** Spots along the line between a point and the box of its label, 4 units apart. */
function leader(point, box) {
  const [endX, endY] = nearest(point, box), steps = Math.ceil(Math.hypot(endX - point.x, endY - point.y) / 4);
  return Array.from({length: steps}, (_, at) => {
    const x = point.x + (endX - point.x) * at / steps, y = point.y + (endY - point.y) * at / steps;
    return {left: x - 1, top: y - 1, right: x + 1, bottom: y + 1};
  });
}
const ambiguous = (box, point, points) => points.some((other) => other !== point && gap(box, other) < gap(box, point) + CLEARLY);

/** The <svg>. points: {ms, low, high, score, scores, bytes, name, detail, note, tip, colour, filled, teacher}: low and high are the interval of ms,
 * scores that of the score, where it is known; a point whose name, detail and note are empty has no label; filled is the
 * share of its circle that is solid, where that tells points apart. measure is the title of y, area what the markers' area is, levels {score, text, right} of lines across the plot, such as
 * the teacher's; right: its text stands at the right end. */
function accuracyPlot(points, {wide, high, title, measure, area = 'graph on disk', levels = []}) {
  const frame = {left: 60, top: 84, right: wide - 16, bottom: high - 72};
  const times = points.flatMap(({ms, low, high: upper}) => [ms, low, upper]);
  const x = logScale(times, frame.left + 64, frame.right - 74);
  const y = linearScale([...points, ...levels].flatMap(({score, scores}) => [score, ...scores ?? []]), frame.bottom - 36, frame.top + 40);
  const largest = Math.max(...points.map(({bytes}) => bytes));
  const radius = (bytes) => Math.max(MIN_RADIUS, MAX_RADIUS * Math.sqrt(bytes / largest));
  const placed = points.map((point) => ({
    ...point, x: x.scale(point.ms), y: y.scale(point.score), radius: radius(point.bytes),
    left: x.scale(point.low), right: x.scale(point.high), top: y.scale(point.scores?.[1] ?? point.score), bottom: y.scale(point.scores?.[0] ?? point.score),
  }));
  const steps = stairs(front(placed)), drawn = [...steps, ...placed.flatMap(({x: across, y: up, left, right, top, bottom}) => [{left, right, top: up - 1, bottom: up + 1}, {left: across - 1, right: across + 1, top, bottom}])];
  const parts = [...grid(x, y, frame), ...axes(frame, points.some(({scores}) => scores) ? `${measure}, bars: 95% interval` : measure)];
  for (const level of levels) {
    const at = y.scale(level.score), under = levels.some(({score}) => score > level.score); // so that the texts of two lie apart
    parts.push(line('teacher-line', frame.left, at, frame.right, at));
    const place = level.right ? {x: frame.right - 8, 'text-anchor': 'end'} : {x: frame.left + 8};
    parts.push(el('text', {class: 'hint', ...place, y: one(under ? at + 15 : at - 6)}, level.text));
    drawn.push({left: frame.left, top: at - 1, right: frame.right, bottom: at + 1});
    const left = level.right ? frame.right - 170 : frame.left, right = level.right ? frame.right : frame.left + 140;
    drawn.push({left, top: under ? at : at - 18, right, bottom: under ? at + 18 : at});
  }
  parts.push(...steps.map((step) => line('frontier', step.left, step.top, step.right, step.bottom)));
  parts.push(...[...placed].sort((a, b) => b.radius - a.radius).map(dot)); // the small ones on top
  parts.push(...labels(placed, drawn, frame), ...sizeKey(radius, largest, frame.right, frame.top - 44, area), ...frontierKey(frame.left, high - 12));
  const about = points.map(({name, detail, ms, score}) => `${name} ${detail}`.trim() + `: ${score.toFixed(1)} at ${ms} ms`).join('; ');
  return drawing(wide, high, title, about, parts);
}

function axes({left, top, right, bottom}, measure) {
  const middle = (top + bottom) / 2;
  return [
    el('text', {class: 'axis', x: (left + right) / 2, y: bottom + 38, 'text-anchor': 'middle'}, 'milliseconds per text, p50, log scale'),
    el('text', {class: 'axis', transform: `translate(16 ${middle}) rotate(-90)`, 'text-anchor': 'middle'}, measure),
    el('text', {class: 'hint', x: left, y: top - 14}, '↖ better and faster'),
  ];
}

/** The Pareto front of points {ms, score}, from fast to slow: those that none beats in both. */
function front(points) {
  const found = [];
  for (const point of [...points].sort((a, b) => a.ms - b.ms || b.score - a.score)) if (!found.length || point.score > found.at(-1).score) found.push(point);
  return found;
}

/** The lines between the points of a front, across and then up. */
function stairs(points) {
  return points.slice(1).flatMap((next, before) => {
    const at = points[before];
    return [{left: at.x, top: at.y, right: next.x, bottom: at.y}, {left: next.x, top: next.y, right: next.x, bottom: at.y}];
  });
}

/** A point with its intervals; `tip` is shown beside it. */
function dot({x, y, radius, left, right, top, bottom, tip, colour, filled, teacher}) {
  return el('g', {class: ['dot', teacher && 'teacher', Number.isFinite(filled) && 'filled'].filter(Boolean).join(' '), 'data-tip': tip || null, style: colour ? `--c:${colour}` : null},
    el('circle', {cx: one(x), cy: one(y), r: one(radius)}), filled > 0 ? pie(x, y, radius, filled) : null,
    line('interval', left, y, right, y), top < bottom ? line('interval', x, top, x, bottom) : null,
    el('circle', {class: 'core', cx: one(x), cy: one(y), r: 2}));
}

/** A share of a circle, clockwise from its top. An arc whose ends meet has no direction, so a whole one is a circle. */
function pie(x, y, radius, share) {
  if (share >= 1) return el('circle', {class: 'solid', cx: one(x), cy: one(y), r: one(radius)});
  const at = (turn) => [x + radius * Math.sin(2 * Math.PI * turn), y - radius * Math.cos(2 * Math.PI * turn)].map((value) => value.toFixed(3)).join(' ');
  return el('path', {class: 'solid', d: `M${x.toFixed(3)} ${y.toFixed(3)}L${at(0)}A${radius.toFixed(3)} ${radius.toFixed(3)} 0 ${share > 0.5 ? 1 : 0} 1 ${at(share)}Z`});
}

/** What the steps are. */
function frontierKey(left, y) {
  return [line('frontier', left, y - 4, left + 30, y - 4), el('text', {class: 'hint', x: left + 38, y}, 'Pareto front: none is better and faster')];
}

/** Circles that explain the area of the markers, the largest first, from `right` to the left. */
function sizeKey(radius, largest, right, y, area) {
  const round = (size) => { const power = 10 ** Math.floor(Math.log10(size)); return [5, 2, 1].map((digit) => digit * power).find((each) => each <= size * 1.001); };
  const parts = [];
  let x = right - 8;
  for (const size of [largest, round(largest / 4), round(largest / 40)]) {
    const text = `${Number((size / 1e6).toPrecision(2))} MB`;
    x -= 6 * text.length;
    parts.push(el('text', {class: 'tick', x: one(x), y: one(y + 4)}, text));
    x -= radius(size) + 6;
    parts.push(el('circle', {class: 'key', cx: one(x), cy: one(y), r: one(radius(size))}));
    x -= radius(size) + 16;
  }
  const narrow = x < 170; // on a phone it stands above the circles
  return [...parts, el('text', {class: 'hint', x: narrow ? 60 : one(x + 6), y: narrow ? 12 : one(y + 4), 'text-anchor': narrow ? null : 'end'}, `area: ${area}`)];
}

/** A label for each point, the teachers' first, then from fast to slow; each avoids those before it. */
function labels(points, drawn, frame) {
  const boxes = [], labelled = points.filter(({name, detail, note}) => name || detail || note);
  return labelled.sort((a, b) => b.teacher - a.teacher || a.x - b.x).flatMap((point) => {
    const first = 7.1 * `${point.name} ${point.detail}`.trim().length; // about as wide as the text is drawn
    const size = point.note ? [Math.max(first, 6.2 * point.note.length) + 4, 28] : [first + 4, 15];
    const box = cheapest(point, size, drawn, boxes, points, frame);
    const led = gap(box, point) > LEADER_FROM || ambiguous(box, point, points);
    boxes.push(box);
    if (led) drawn.push(...leader(point, box));
    return label(point, box, led);
  });
}

/** The box that hides least, also of other points and earlier labels behind its leader, of many distances and angles around the point. */
function cheapest(point, [wide, high], drawn, labels, points, frame) {
  const {x, y, radius} = point;
  const boxes = DISTANCES.flatMap((distance) => Array.from({length: 24}, (_, at) => {
    const across = Math.cos(at * Math.PI / 12), up = -Math.sin(at * Math.PI / 12);
    const middleX = x + across * (radius + distance) + wide / 2 * Math.max(-1, Math.min(1, 1.7 * across));
    const middleY = y + up * (radius + distance) + high / 2 * Math.max(-1, Math.min(1, 1.7 * up));
    const box = {left: middleX - wide / 2, top: middleY - high / 2, right: middleX + wide / 2, bottom: middleY + high / 2};
    const passed = [...labels, ...points.filter((other) => other !== point).map(around)];
    const crossed = leader(point, box).reduce((sum, spot) => sum + passed.reduce((all, each) => all + 8 * overlap(spot, each, 1), 0), 0);
    const hidden = [...drawn, ...labels].reduce((sum, each) => sum + 4 * overlap(box, each, 3), 0) + crossed
      + points.reduce((sum, each) => sum + 2 * overlap(box, around(each), 1), 0);
    const askew = (Math.abs(across) > 0.9 ? 0 : 3) + (across < 0 ? 2 : 0) + (ambiguous(box, point, points) ? AMBIGUOUS : 0);
    return {...box, cost: 400 * outside(box, frame) + hidden + 1.5 * distance + askew};
  }));
  return boxes.reduce((best, box) => (box.cost < best.cost ? box : best));
}

/** A label's text in its box, with a line from its point where that is not the nearest, or away. */
function label({x, y, radius, name, detail, note}, box, led) {
  const [nearestX, nearestY] = nearest({x, y}, box), reach = radius / Math.hypot(nearestX - x, nearestY - y);
  const place = box.right < x ? {x: one(box.right - 2), 'text-anchor': 'end'} : {x: one(box.left + 2)};
  return [
    led ? line('leader', x + (nearestX - x) * reach, y + (nearestY - y) * reach, nearestX, nearestY) : null,
    el('text', {class: 'label', ...place, y: one(box.top + 11.5)}, name ? el('tspan', {class: 'name'}, detail ? `${name} ` : name) : null, detail),
    note ? el('text', {class: 'note', ...place, y: one(box.top + 25)}, note) : null,
  ];
}
