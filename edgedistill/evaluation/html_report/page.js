// Draws the page from the JSON in #data (html_report/page.py says what is in it). Text is only ever set as text, never as HTML;
// the one exception is the accuracy plot, an SVG that Python has drawn.
const data = JSON.parse(document.getElementById('data').textContent);

const SVG = new Set('svg g line path rect circle text tspan desc'.split(' '));

/** An element; attributes that are null or false are left out; children are elements or texts. In an <svg>, `drawn` is its <title>. */
function el(tag, attributes = {}, ...children) {
  const name = tag === 'drawn' ? 'title' : tag;
  const found = SVG.has(tag) || tag === 'drawn' ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== false) found.setAttribute(key, value);
  found.append(...children.flat().filter((child) => child !== null && child !== ''));
  return found;
}

const section = (title, ...parts) => el('section', {}, el('h2', {}, title), ...parts);
const one = (value) => value.toFixed(1);

function bundleName(bundle) {
  return [el('span', {title: bundle.name}, bundle.short), ' ', el('span', {class: 'prec'}, bundle.precision)];
}

/** The name of a bundle in a plot, right-aligned at x. */
function plotLabel(bundle, x, y) {
  return el('text', {class: 'label', x, y, 'text-anchor': 'end'}, el('tspan', {class: 'name'}, bundle.shorter), ' ' + bundle.precision);
}

function drawing(wide, high, title, description, parts) {
  const label = {viewBox: `0 0 ${wide} ${high}`, role: 'img', 'aria-label': `${title}: ${description}`};
  return el('svg', label, el('drawn', {}, title), el('desc', {}, description), parts);
}

function header({lead, tiles, where, noise}) {
  const name = lead.bundle && el('span', {style: `color:${lead.colour}`}, lead.bundle);
  const figures = tiles.map(([big, small]) => el('div', {}, el('dt', {}, small), el('dd', {}, big)));
  return el('header', {},
    el('p', {class: 'brand'}, 'edgedistill bench'),
    el('h1', {}, name || '', lead.text),
    figures.length ? el('dl', {class: 'tiles'}, figures) : null,
    el('p', {class: 'where'}, where.flatMap((line, at) => (at ? [el('br'), line] : [line]))),
    noise ? el('p', {class: 'noise'}, noise) : null);
}

/** A table of cells {shown, value, bar, shade, bold}; a row's first cell is its bundle. */
function table({heads, rows, sortable}) {
  const head = heads.map((text) => el('th', {scope: 'col'}, sortable ? el('button', {}, text) : text));
  const body = rows.map(({bundle, cells}) => {
    const of = data.bundles[bundle];
    const dot = sortable ? el('i', {style: `background:${of.colour}`}) : null;
    return el('tr', {class: sortable && of.teacher ? 'teacher' : null},
      el('th', {scope: 'row', 'data-v': of.name}, dot, bundleName(of)),
      cells.map(({shown, value = null, bar = 0, shade = null, bold = false}) => el('td', {
        'data-v': value ?? '',
        class: bar ? 'bar' : shade === null ? null : 'shade',
        style: bar ? `--bar:${one(100 * bar)}%` : shade === null ? null : `--s:${Math.round(100 * shade)}%`,
      }, bold ? el('b', {}, shown) : shown)));
  });
  const whole = el('table', {class: sortable ? 'sortable' : 'plain'}, el('thead', {}, el('tr', {}, head)), el('tbody', {}, body));
  return el('div', {class: 'scroll'}, whole);
}

/** A smoothed histogram of the log of each bundle's times, one row each, with p50 and p99. */
function latencies({low, high, first: from, last: to, ticks, rows}) {
  const ROW = 46, LEFT = 300, RIGHT = 128, WIDE = 1120, PEAK = 36, SMOOTHING = [0.1, 0.2, 0.4, 0.2, 0.1];
  const bottom = ROW * rows.length + 14;
  const onLog = (log) => LEFT + 16 + (log - Math.log10(from)) / Math.log10(to / from) * (WIDE - RIGHT - LEFT - 16);
  const x = (time) => onLog(Math.log10(time));
  const parts = ticks.filter((tick) => LEFT <= x(tick) && x(tick) <= WIDE - RIGHT).flatMap((tick) => [
    el('line', {class: 'grid', x1: one(x(tick)), x2: one(x(tick)), y1: 6, y2: bottom}),
    el('text', {class: 'tick', x: one(x(tick)), y: bottom + 17, 'text-anchor': 'middle'}, `${tick} ms`),
  ]);
  rows.forEach(({samples, p50, p99, shown}, row) => {
    const bundle = data.bundles[row], base = ROW * (row + 1) + 4;
    const logs = samples.map((time) => Math.log10(Math.min(Math.max(time, low), high)));
    const first = Math.min(...logs) - 0.02, last = Math.max(...logs) + 0.02;
    const bins = Math.max(24, Math.floor((last - first - 0.04) * 120)) - 1, width = (last - first) / bins;
    const counts = new Array(bins).fill(0);
    for (const log of logs) counts[Math.min(bins - 1, Math.floor((log - first) / width))] += 1;
    const smooth = counts.map((_, at) => SMOOTHING.reduce((sum, share, by) => sum + share * (counts[at + by - 2] ?? 0), 0));
    const tallest = Math.max(...smooth), at = counts.map((_, bin) => one(onLog(first + (bin + 0.5) * width)));
    const top = smooth.map((count, bin) => `L${at[bin]} ${one(base - count / tallest * PEAK)}`).join('');
    parts.push(el('g', {class: 'distribution', style: `--c:${bundle.colour}`},
      el('path', {d: `M${at[0]} ${base}${top}L${at[bins - 1]} ${base}Z`}),
      el('line', {class: 'base', x1: at[0], x2: at[bins - 1], y1: base, y2: base}),
      [[p50, PEAK], [p99, PEAK / 3]].map(([time, tall]) =>
        el('line', {class: 'mark', x1: one(x(time)), x2: one(x(time)), y1: base - tall, y2: base + 3}))));
    parts.push(plotLabel(bundle, LEFT - 14, base - 8));
    parts.push(el('text', {class: 'note', x: WIDE - 4, y: base - 8, 'text-anchor': 'end'}, shown));
  });
  parts.push(el('text', {class: 'tick', x: WIDE - 4, y: bottom + 17, 'text-anchor': 'end'}, 'p50 · p99, ms'));
  const about = rows.map(({shown}, row) => `${data.bundles[row].name} ${data.bundles[row].precision}: ${shown} ms`).join('; ');
  return el('div', {class: 'scroll'}, drawing(WIDE, bottom + 26, 'Latency of single texts', about, parts));
}

/** Bars from zero of the share of the teacher's score that each student retains on one suite. */
function bars({suite, rows}) {
  const ROW = 26, LEFT = 250, WIDE = 512, RIGHT = 58;
  const scale = (WIDE - LEFT - RIGHT) / Math.max(1, ...rows.map((row) => row.share));
  const high = ROW * rows.length + 30, full = one(LEFT + scale);
  const parts = [
    el('line', {class: 'teacher-line', x1: full, x2: full, y1: 18, y2: high - 6}),
    el('text', {class: 'hint', x: full, y: 12, 'text-anchor': 'end'}, 'teacher, 100%'),
  ];
  rows.forEach(({bundle, share, shown}, at) => {
    const of = data.bundles[bundle], y = 22 + ROW * at;
    const width = one(Math.max(0, share) * scale);
    parts.push(plotLabel(of, LEFT - 10, y + 14));
    parts.push(el('rect', {x: LEFT, y: y + 2, width, height: ROW - 9, rx: 3, style: `fill:${of.colour}`}));
    parts.push(el('text', {class: 'note', x: WIDE - 2, y: y + 14, 'text-anchor': 'end'}, shown));
  });
  const about = rows.map(({bundle, shown}) => `${data.bundles[bundle].name} ${data.bundles[bundle].precision} ${shown}`).join('; ');
  return el('figure', {}, el('figcaption', {}, suite), drawing(WIDE, high, `Retained on ${suite}`, about, parts));
}

function accuracy({tabs, plots}) {
  const inside = el('div', {class: tabs.length > 1 ? 'tabs' : 'one'});
  tabs.forEach((name, at) => {
    const input = el('input', {type: 'radio', name: 'suite', id: `s${at}`});
    input.checked = at === 0;
    input.onchange = () => inside.querySelectorAll('.panel').forEach((panel, other) => { panel.style.display = other === at ? 'block' : 'none'; });
    inside.append(input, el('label', {for: `s${at}`}, name));
  });
  plots.forEach((svg, at) => {
    const panel = el('div', {class: 'panel scroll', style: `display:${at ? 'none' : 'block'}`});
    panel.innerHTML = svg;
    inside.append(panel);
  });
  return inside;
}

document.title = `edgedistill · ${data.subject}`;
document.querySelector('main').replaceChildren(...[
  header(data),
  data.accuracy.tabs.length ? section('Accuracy against latency', accuracy(data.accuracy)) : null,
  section('Measurements', table(data.measurements)),
  section('Latency distributions', latencies(data.latencies)),
  data.retained.length ? section("Retained of the teacher's score", el('div', {class: 'multiples'}, data.retained.map(bars))) : null,
  data.tasks.length ? section('Scores by task', ...data.tasks.flatMap((each) => [el('h3', {}, each.suite), table(each)])) : null,
  data.agreement ? section('Agreement with the teacher', el('p', {}, data.agreement.source), table(data.agreement)) : null,
  section('How it was measured', el('p', {}, data.method), ...data.made_by.map(([what, text]) => el('p', {}, el('b', {}, what), ` ${text}`))),
].filter(Boolean));
