// Draws the report's page from the JSON in #data; page.py says what is in it.
const data = JSON.parse(document.getElementById('data').textContent);
const all = data.reports;
const teachers = all.filter(({teacher}) => teacher);
const reference = teachers.find(({bundle}) => bundle.precision === 'fp32') ?? teachers[0] ?? null; // whom students are compared with
let reports = all; // those that the filters show
const FILLED = {fp32: 0, fp16: 0.25, w8: 0.5, w4: 0.75, int8: 1}; // the solid share of a point in the accuracy plot, where precisions differ
const GOOD_SHARE = 0.95; // the heading names the smallest student that retains at least this share,
const NEAR = 0.005; // and where none does, the fastest of those whose score is this close to the best
const VAGUE = 0.2; // resolution of times above which a factor of them is told roughly
const CROWDED = 10; // reports above which the accuracy plot names those on the front and each bundle once, and has no notes
const PHONE = 840; // pixels, as in page.css
const FOLDED_FROM = 4; // terms
const SIDE_BY_SIDE = 4; // bundles at most that are columns on a phone;
const KEY = 3; // of more, the values that a phone shows of each beside the one that sorts them
const METHOD = 'Each measurement ran in a fresh process, and bundles alternated. Times include tokenization. Latency: {counted} per '
  + 'bundle, with 95% bootstrap intervals over rounds and texts. The first bundle was measured twice in every round, which shows what the run can resolve.';

const ABOUT = 'edgedistill distils sentence encoders into small students, exports them as quantized ONNX bundles, and measures them; '
  + 'this page shows what edgedistill bench measured.';

/** A section with a heading; the line of links on top has a shorter one. */
const section = (title, link, ...parts) =>
  el('section', {id: title.toLowerCase().replace(/[^a-z]+/g, '-'), 'data-link': link}, el('h2', {}, title), ...parts.filter(Boolean));
const scroll = (...parts) => el('div', {class: 'scroll'}, ...parts);
/** What the terms of a section mean: pairs [term, meaning], of which null is left out; null where none is left. On a phone many are folded. */
const terms = (...pairs) => {
  const told = pairs.filter(Boolean);
  const list = el('dl', {class: 'terms'}, told.map(([term, meaning]) => el('div', {}, el('dt', {}, term), ' ', el('dd', {}, meaning))));
  if (told.length > FOLDED_FROM) return el('details', {class: 'folded', open: innerWidth > PHONE ? '' : null}, el('summary', {}, 'What the terms mean'), list);
  return told.length ? list : null;
};
const distinct = (values) => [...new Set(values)];
const count = (value) => value.toLocaleString('en');
const about = data.noise ? '~' : ''; // before a time
const vague = all.some(({noise}) => (noise?.resolution || noise?.between) > VAGUE);
/** A plot drawn twice, for a desktop and paper, and for a phone; the style sheet shows one, so that nothing is drawn anew to print. */
const plots = (drawn) => [el('div', {class: 'wide'}, drawn(false)), el('div', {class: 'narrow'}, drawn(true))];
/** Ends of an interval for a table: whole numbers where it is wide. */
const ends = (interval) => { const digits = interval[1] - interval[0] < 0.02 ? 1 : 0; return interval.map((end) => (100 * end).toFixed(digits)).join('–'); };
const title = ({bundle, variant}) => `${bundle.name} ${variant}`;
/** A report for each graph, named without its runner: accuracy is that of the graph, whoever runs it. */
const graphs = () => reports.filter(({bundle}, at) => reports.findIndex(({bundle: other}) => other.name === bundle.name && other.precision === bundle.precision) === at)
  .map((report) => ({...report, variant: report.bundle.precision}));

const heads = all[0].cells.map(({head}) => head);
/** How the table shows a report's value in the column of that head. */
const shown = (report, head) => report.cells[heads.indexOf(head)].shown;
const retained = (report, suite) => report.cells[heads.indexOf(suite) + 1].shown;

/** The colour of a report's bundle: all teachers share --c0, students take --c1 to --c8 in turn. */
const students = distinct(all.filter(({teacher}) => !teacher).map(({bundle}) => bundle.name));
const colour = ({bundle}) => `var(--c${students.includes(bundle.name) ? 1 + students.indexOf(bundle.name) % 8 : 0})`;

/** The name of a report's bundle in a plot, right-aligned at x; without x at the left edge. */
function plotLabel({short, variant}, x, y) {
  return el('text', {class: 'label', x, y, 'text-anchor': x ? 'end' : null}, el('tspan', {class: 'name'}, short), ` ${variant}`);
}

const names = distinct(all.map(({bundle}) => bundle.name));
const subject = names.length === 1 ? all[0].short : `${names.length} bundles`;
const milliseconds = (value) => significant(value, about ? 2 : 3);
/** A time or rate in a table. */
const timed = (value) => (typeof value === 'number' ? about + (value && milliseconds(value)) : '–');
const tenths = (value) => value.toFixed(1);
const between = ([low, high], of = milliseconds) => `${of(low)} to ${of(high)}`;
const hundredfold = (ends) => ends.map((end) => 100 * end);

/** What a reader can restrict the page to: a value of each report by name. */
const FILTERS = {
  precision: ({bundle}) => bundle.precision,
  runner: ({runner}) => runner?.name ?? 'python',
  device: ({device}) => device ?? 'cpu',
};
const hidden = new Set();

/** A box to tick for each value that not all reports share; null where all are alike. The last one cannot be unticked. */
function filters() {
  const rows = Object.entries(FILTERS).map(([key, of]) => [key, of, distinct(all.map(of))]).filter(([, , values]) => values.length > 1);
  const left = (without) => all.filter((report) => Object.entries(FILTERS).every(([name, of]) => !without.has(`${name} ${of(report)}`)));
  const chip = (id, value) => {
    const input = el('input', {type: 'checkbox', id});
    input.checked = !hidden.has(id);
    input.disabled = input.checked && !left(new Set([...hidden, id])).length;
    input.onchange = () => {
      if (input.checked) hidden.delete(id); else hidden.add(id);
      reports = left(hidden);
      draw();
    };
    return el('label', {}, input, ` ${value}`);
  };
  return rows.length ? el('nav', {class: 'filters', 'aria-label': 'Filters'}, rows.map(([key, , values]) => el('span', {}, el('b', {}, key), values.map((value) => chip(`${key} ${value}`, value))))) : null;
}

const SCORED = /^(.*?)(?:, documents of (.*?))?( \+ BM25)?$/; // a suite's name: the suite, who embedded its documents, and whether BM25 helped
/** A suite's name, and the name for columns and tabs: of one that was scored in other ways too, those ways. */
const suiteOf = (name) => {
  const [, base, teacher, hybrid] = name.match(SCORED);
  const ways = [teacher && `${teacher} docs`, hybrid && '+ BM25'].filter(Boolean).join(' ');
  const alone = data.suites.every((other) => other.name.startsWith(base));
  return {base, teacher, hybrid, brief: ways && !alone ? `${base} ${ways}` : ways || base};
};
const brief = (name) => suiteOf(name).brief;
/** The suites that ship: a few hundred pairs. */
const SMALL = ['sts-small', 'mini'];

/** How little a suite's scores can tell: the mean width of their intervals; then come those scored in other ways, and small ones. */
function coarseness({name}) {
  const widths = all.flatMap(({quality}) => (quality[name]?.interval95 ? [quality[name].interval95[1] - quality[name].interval95[0]] : []));
  const mean = widths.length ? widths.reduce((sum, each) => sum + each, 0) / widths.length : 1;
  return suiteOf(name).base === name ? mean + (SMALL.includes(name) ? 4 : 0) : 2;
}
data.suites.sort((a, b) => coarseness(a) - coarseness(b)); // everywhere the one that tells most comes first
let tab = 0; // the suite whose plot is shown, and which the heading is about

/** What a suite stands for, in few words. */
const gloss = (name) => `${name}: ${KINDS[data.suites.find((suite) => suite.name === name).kind].split(/[:,]/)[0]}.`;
/** The name of a report's bundle, with its variant where that tells it from others. */
const called = (report) => (names.length === all.length ? report.short : title(report));
const coloured = (report, text) => el('span', {style: `color:${colour(report)}`}, text);

/** The heading of two files that were compared: how many measures fell and rose. */
function verdicts() {
  const told = ['worse', 'better'].map((verdict) => data.changes.filter((cells) => cells.at(-1) === verdict).length);
  return el('header', {}, el('p', {class: 'brand'}, 'edgedistill bench'), el('h1', {}, `Of ${data.changes.length} measures ${told[0]} fell and ${told[1]} rose`),
    el('p', {class: 'where'}, data.where.flatMap((place, at) => (at ? [el('br'), place] : [place]))));
}

/** The heading and its figures, of the bundle that leads and of its rival. */
function header() {
  if (data.changes) return verdicts();
  const suite = data.suites[tab]?.name, {best, rival, says, rule = [], label} = (reference && leading(suite)) ?? compare(suite) ?? alone(suite);
  const told = [suite && gloss(suite), ...rule, ...bm25(best)].filter(Boolean).join(' ');
  return el('header', {},
    el('p', {class: 'brand'}, 'edgedistill bench'),
    el('h1', {}, ...says),
    told ? el('p', {class: 'rule'}, told) : null,
    el('dl', {class: 'tiles'}, tiles(best, rival, suite, label)),
    el('p', {class: 'where'}, data.where.flatMap((place, at) => (at ? [el('br'), place] : [place]))),
    disturbed());
}

/** The figures of the bundle that the heading names, each beside that of its rival; of a bundle alone with their intervals. */
function tiles(best, rival, suite, label = rival && called(rival)) {
  const score = best.quality[suite]?.interval95, p50 = about ? null : best.single.interval95?.p50_ms, interval = (ends) => ends && `95% interval ${ends}`;
  const versus = (of, more, less, mark) => (rival?.teacher && times(of(rival) / of(best), more, less, mark)) || '';
  const query = documents(best) && ' query'; // another encoder embeds a pair's documents
  const figures = [
    best.quality[suite] && [` on ${suite}`, suite, '', '', interval(score && between(hundredfold(score), tenths))],
    [' per text, p50 (median)', 'p50 ms', '\u00a0ms', versus(({single}) => single.p50_ms, 'faster', 'slower', about), interval(p50 && between(p50))],
    [`${query} graph`, 'MB', '\u00a0MB', versus(({size_bytes: {graph}}) => graph, 'smaller', 'larger'), `${shown(best, 'params')} parameters`],
    [`${query} texts/s`, 'texts/s', '', ''],
  ].filter(Boolean);
  return figures.map(([what, head, unit, factor, more]) => el('div', {},
    el('dt', {}, el('b', {}, coloured(best, best.short)), `${what}${factor && `, ${factor}`}`),
    el('dd', {}, `${shown(best, head)}${unit}`, rival ? el('small', {}, coloured(rival, label), `: ${shown(rival, head)}${unit}`) : more && el('small', {}, more))));
}

/** How a suite is told beside one of the same texts: "on retrieval", "with BM25". */
function place(name, suite) {
  const {base, teacher, hybrid} = suiteOf(name), ways = [teacher && `documents embedded by ${teacher}`, hybrid && 'BM25'].filter(Boolean).join(' and ');
  return [base === suiteOf(suite).base && ways ? '' : `on ${base}`, ways && `with ${ways}`].filter(Boolean).join(' ');
}

/** What a bundle loses on the suites that the heading does not name, the worst first: `of` gives how well it does, `told` how that is told. */
function elsewhere(suite, of, told) {
  const found = data.suites.map(({name}) => name).filter((name) => name !== suite && Number.isFinite(of(name))).sort((a, b) => of(a) - of(b));
  return found.length ? listed(found.map((name) => `${told(name)} ${place(name, suite)}`), 6, ', ') : '';
}

/** What BM25 alone scores on the texts of a suite, with its weight beside cosines; null where it was not measured. */
function bm25Of(suite) {
  const found = all.flatMap(({quality}) => Object.entries(quality)).find(([name, {bm25: alone}]) => alone !== undefined && suiteOf(name).base === suiteOf(suite).base);
  return found ? {score: 100 * found[1].bm25, weight: found[1].weight} : null;
}

/** Sentences of what BM25 scores alone, and joined with a bundle. */
function bm25(best) {
  return distinct(data.suites.map(({name}) => suiteOf(name).base)).filter(bm25Of).map((base) => {
    const {score, weight} = bm25Of(base), joined = best.quality[`${base} + BM25`];
    return `BM25 alone scores ${tenths(score)} on ${base}${joined ? `; joined with it (weight ${weight}) ${best.short} scores ${tenths(100 * joined.average)}` : ''}.`;
  });
}

/** What disturbed the run, and what it can resolve; null where nothing did. */
function disturbed() {
  return data.noise ? el('p', {class: 'noise'}, el('b', {}, 'Noisy machine'), `: ${data.noise}. Times with ~ are approximate. ${data.ties}`) : null;
}

/** "6.5× more", or "less" of the inverse; nothing where they do not differ. To two digits, since few runs resolve more; of times (with
 * a mark) in a vague run to one, below 20 to whole numbers and below 3 to halves. */
function times(ratio, more, less, mark = '') {
  const factor = Math.max(ratio, 1 / ratio), rough = mark && vague;
  const steps = factor < 3 ? 2 : 1; // of 1
  const found = rough && factor < 20 ? Math.round(steps * factor) / steps : Number(factor.toPrecision(rough ? 1 : 2));
  return found > 1 ? `${rough ? 'about ' : mark}${found}× ${ratio > 1 ? more : less}` : '';
}

/** The heading of a single bundle. */
function alone(suite) {
  const [best] = reports, score = best.quality[suite];
  const scored = score ? ` and scores ${tenths(100 * score.average)} on ${suite}` : '';
  return {best, says: [coloured(best, best.short), ` in ${best.variant} embeds a text in ${shown(best, 'p50 ms')}\u00a0ms${scored}`]};
}

/** The heading without a teacher: the fastest bundle beside the most accurate, or the next where it is both; null for a single one. */
function compare(suite) {
  const scored = reports.filter(({quality}) => quality[suite]), score = ({quality}, of = suite) => quality[of]?.average;
  if (reports.length < 2) return null;
  const compared = scored.length > 1 ? scored : reports;
  const a = compared.reduce((best, each) => (each.single.p50_ms < best.single.p50_ms ? each : best));
  const b = compared.filter((each) => each !== a).reduce((best, each) => (score(each) > score(best) ? each : best));
  const tied = a.against?.[`${b.bundle.name}:${b.variant}`]?.tie;
  const speed = tied ? '' : times(b.single.p50_ms / a.single.p50_ms, 'faster', 'slower', about);
  const costs = [speed, times(b.size_bytes.graph / a.size_bytes.graph, 'smaller', 'larger')].filter(Boolean);
  const level = [`as fast as ${called(b)} within the noise of this run`, ...costs], first = speed ? `${costs.join(' and ')} than ${called(b)}` : level.join(' and ');
  const others = elsewhere(suite, (name) => score(a, name) - score(b, name), (name) => `${shown(a, name)} (${called(b)}: ${shown(b, name)})`);
  const leads = score(a) >= score(b) ? `, and scores best on ${suite}` : `, and ${distance(a, b, suite).replace(' with it', '')} ${called(b)}, the best on ${suite}`;
  const ofMany = ` is the fastest of ${compared.length} bundles${scored.length > 1 ? leads : ''}`;
  return {
    best: a, rival: b, says: [coloured(a, called(a)), compared.length > 2 ? ofMany : ` is ${first}${scored.length > 1 ? `, and ${distance(a, b, suite)} on ${suite}` : ''}`],
    rule: [others && `Elsewhere ${called(a)} scores ${others}.`, distinct(reports.map((each) => `${languages(each)}`)).length > 1 && learned() && `${learned()[1]}.`],
  };
}

/** How far apart two bundles are on a suite: "5.7 points behind"; ~ where the intervals of both hold both scores. */
function distance(a, b, suite) {
  const scores = [a, b].map(({quality}) => quality[suite]), points = 100 * (scores[0].average - scores[1].average), told = tenths(Math.abs(points));
  const within = scores.every(({interval95: [low, high] = [1, 0]}) => scores.every(({average}) => low <= average && average <= high));
  return told === '0.0' ? 'level with it' : `${within ? '~' : ''}${told} points ${points > 0 ? 'ahead' : 'behind'}`;
}

/** The student that the heading names, and the rule that chose it; null where none was compared. */
function leading(suite) {
  const compared = reports.filter((report) => !report.teacher && report.kept[suite]);
  if (!compared.length) return null;
  const good = unbeaten(suite).filter((report) => compared.includes(report) && report.kept[suite] >= GOOD_SHARE);
  const score = ({quality}) => quality[suite].average, most = Math.max(...compared.map(score));
  const best = good.length ? good.reduce((smallest, each) => (each.size_bytes.graph < smallest.size_bytes.graph ? each : smallest))
    : compared.filter((report) => score(report) >= most - NEAR).reduce((quickest, each) => (each.single.p50_ms < quickest.single.p50_ms ? each : quickest));
  const chosen = good.length ? `Shown: the smallest student that retains ${100 * GOOD_SHARE}% of the teacher’s score or more, of those on the Pareto front.`
    : `No student on the Pareto front retains ${100 * GOOD_SHARE}% of the teacher’s score. Shown: the fastest within ${100 * NEAR} points of the best.`;
  const others = elsewhere(suite, (name) => best.kept[name] ?? NaN, (name) => retained(best, name));
  return {
    best, rival: reference, label: 'teacher',
    rule: [chosen, documents(best) && `Queries are embedded by ${best.short}, ${shown(best, 'MB')} MB; ${documents(best)}.`, others && `It retains ${others}.`],
    says: [coloured(best, best.short), ` in ${best.bundle.precision} retains ${retained(best, suite)} of its teacher’s score on ${suite}`],
  };
}

/** The reports on the front of the accuracy plot. */
const unbeaten = (suite) => front(reports.filter(({quality}) => quality[suite]).map((report) => ({report, ms: report.single.p50_ms, score: report.quality[suite].average}))).map(({report}) => report);

/** A bundle's name in a head of a table. */
const bundleHead = (report, scope) => el('th', {scope, 'data-v': report.bundle.name}, el('i', {style: `background:${colour(report)}`}),
  el('span', {title: [report.bundle.name, ...languages(report)].join(' ')}, report.short), ' ', el('span', {class: 'prec'}, report.variant));

/** A table of rows {report, cells: [{shown, share, value, shade, bold, small}]}; a row's first cell is its bundle. With a name its columns
 * of values sort it; of many bundles a phone folds all but the first values. */
function table(heads, rows, name = null) {
  const valued = (at) => at === 0 || rows.some(({cells}) => (cells[at - 1].value ?? '') !== '');
  const head = heads.map((each, at) => el('th', {scope: 'col'}, name && valued(at) ? el('button', {}, each) : each));
  const folds = name && rows.length > SIDE_BY_SIDE && heads.length > KEY + 2;
  const body = rows.map(({report, cells}) => el('tr', {class: name && report.teacher ? 'teacher' : null},
    bundleHead(report, 'row'), cells.map((each, at) => cell({...each, head: heads[at + 1], more: folds && at >= KEY})), folds ? rest(heads, cells) : null));
  const whole = el('table', {class: name ? 'stacked sortable' : 'stacked'}, el('thead', {}, el('tr', {}, head)), el('tbody', {}, body));
  if (name) makeSortable(whole, name);
  return scroll(whole);
}

/** What a phone folds of a row of a table. */
function rest(heads, cells) {
  const folded = cells.slice(KEY).map(({shown: text, share, small}, at) => el('div', {}, el('dt', {}, heads[KEY + 1 + at]), el('dd', {}, [text, share, small && `(${small})`].filter(Boolean).join(' '))));
  return el('td', {class: 'rest'}, el('details', {}, el('summary', {}, 'all values'), el('dl', {}, folded)));
}

/** A table that on a phone has few bundles as its columns, so that they stand side by side. */
function comparison(heads, rows, name = null) {
  if (rows.length < 2 || rows.length > SIDE_BY_SIDE) return [table(heads, rows, name)];
  const turned = heads.slice(1).map((head, at) => el('tr', {}, el('th', {scope: 'row'}, head), rows.map(({cells}) => cell(cells[at]))));
  return [el('div', {class: 'wide'}, table(heads, rows, name)), el('div', {class: 'narrow scroll'},
    el('table', {class: 'turned'}, el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, heads[0]), rows.map(({report}) => bundleHead(report, 'col')))), el('tbody', {}, turned)))];
}

/** A cell; on a phone, where a row is a block of its own, its head stands above it, unless it is one `more`. */
function cell({shown: text, share = null, head = null, value = null, shade = null, bold = false, small = null, more = false}) {
  const kinds = [shade !== null && 'shade', more && 'more'].filter(Boolean).join(' ');
  const attributes = {'data-v': value ?? '', 'data-head': head, class: kinds || null, style: shade !== null && `--s:${Math.round(100 * shade)}%`};
  const main = [text, share ? [' ', el('small', {class: 'share'}, share)] : null].flat();
  return el('td', attributes, bold ? el('b', {}, main) : el('span', {}, main), small ? [' ', el('small', {}, `(${small})`)] : null);
}

/** The columns of the measurements: the suite that tells most, p50, size and p99, then the others; none that is zero or empty everywhere. */
function columns() {
  const scores = data.suites.map(({name}) => heads.indexOf(name)), costs = ['p50 ms', 'MB', 'p99 ms'].map((head) => heads.indexOf(head));
  const tells = (at) => reports.some(({cells}) => !['', '0', '–'].includes(cells[at].shown));
  return distinct([...scores.slice(0, 1), ...costs, ...scores, ...heads.keys()]).filter((at) => heads[at] !== 'retained' && tells(at));
}

function measurements() {
  const order = columns();
  const rows = reports.map((report) => ({
    report,
    cells: order.map((at) => {
      const interval = report.quality[heads[at]]?.interval95, each = report.cells[at], share = report.quality[heads[at]] && !report.teacher && retained(report, heads[at]);
      return {...each, shown: each.shown || '–', share, small: interval && ends(interval)};
    }),
  }));
  const intervals = reports.some(({quality}) => Object.values(quality).some(({interval95}) => interval95));
  const has = (head) => order.some((at) => heads[at] === head), runners = distinct(reports.map(FILTERS.runner)).filter((name) => name !== 'python');
  return [...comparison(['bundle', ...order.map((at) => brief(heads[at]))], rows, 'measurements'),
    terms(...data.suites.map(aboutSuite), intervals && ['in brackets', 'the 95% interval of a score, over pairs or queries'], rows.some(({cells}) => cells.some(({share}) => share)) && ['· %', 'what a student retains of the score of its teacher, the encoder that it learned from'],
      ...sameGraph(),
      learned(),
      ['p50, p99', 'half of the single texts take at most p50, 99 of 100 at most p99'], ['MB', 'of the graph, the ONNX file of the encoder'], has('params') && ['params', 'parameters, millions of them'],
      has('texts/s') && ['texts/s', 'many texts at once, in the fastest batches'], has('RSS MB') && ['RSS', 'memory of the process at its peak, after texts of many lengths'],
      ...distinct(reports.map(FILTERS.precision)).map((name) => [name, data.precisions[name] ?? 'a precision that this edgedistill does not know']),
      runners.length ? [runners.map((name) => `[${name}]`).join(', '), 'the same graph, run by that program in place of Python; its scores are those in Python'] : null)];
}

/** What embeds the documents of a pair of encoders; nothing for a single one. */
const documents = ({bundle: {documents: other}}) => (other ? `documents embedded by ${other.name} ${other.precision}, ${significant(other.size_bytes / 1e6)} MB` : '');

/** What tells bundles with the same graph apart, as terms. */
function sameGraph() {
  const groups = distinct(graphs().map(({bundle}) => bundle.sha256)).map((hash) => graphs().filter(({bundle}) => bundle.sha256 === hash));
  return groups.filter((group) => group.length > 1).map((group) => [group.map(({short}) => short).join(', '),
    `the same graph; ${group.filter(documents).map((report) => `${report.short} is a pair, its ${documents(report)}`).join('; ') || 'the report does not tell them apart'}`]);
}

const languages = ({bundle}) => bundle.languages ?? [];

/** The languages of the students that know several, and whether the suites test them; null where none does. */
function learned() {
  const known = graphs().filter((report, at, list) => languages(report).length > 1 && list.findIndex(({bundle}) => bundle.name === report.bundle.name) === at);
  if (!known.length) return null;
  const named = new Set(all.flatMap(({quality}) => Object.values(quality).flatMap(({kind, tasks: of}) => (['sts', 'transfer', 'pair_classification'].includes(kind) ? Object.keys(of) : ['other', ...Object.keys(of)]))).flatMap((task) => task.toLowerCase().split(/[^a-z]+/)));
  const untested = !named.has('other') && known.every((report) => !languages(report).some((each) => each !== 'en' && named.has(each)));
  return ['languages', `${known.map((report) => `${report.short} was trained on ${languages(report).join(', ')}`).join('; ')}${untested ? '; the suites here test English only' : ''}`];
}

/** What each kind of suite stands for, and its measure. */
const KINDS = {
  sts: 'sentence similarity: the rank correlation of cosines with what people rated, 100 where both order all pairs alike',
  retrieval: 'search: how high the documents that answer a query stand among the first ten, 100 where all are on top',
  bitext: 'translations: the share of sentences whose nearest neighbour is their translation',
  transfer: 'use as features: the share of texts that a linear classifier, trained on the embeddings, labels right',
  pair_classification: 'paraphrases: the share of pairs that a threshold on the cosine labels right',
  mteb: 'tasks of mteb, each by the measure that mteb gives it',
  task: 'the task that the bundle was trained for: the share of texts that it labels right',
};

/** What the score on a suite is. */
function aboutSuite({name, kind, measure, averaged}) {
  const {base, teacher, hybrid} = suiteOf(name), others = [teacher && `with documents embedded by ${teacher}`, hybrid && 'by cosine and full-text search together'].filter(Boolean);
  if (others.length && data.suites.some((other) => other.name === base)) return [brief(name), `${base} ${others.join(', ')}`];
  const of = Object.keys(all.find(({quality}) => quality[name]).quality[name].tasks), list = of.length > 8 ? `${of.length} tasks` : of.join(', ');
  const certain = kind === 'transfer' && !all.some(({quality}) => quality[name]?.interval95) ? '; no interval, since it is the accuracy of a classifier' : '';
  const quick = SMALL.includes(name) ? '; a small English suite that ships with edgedistill, for a quick check, not a benchmark' : '';
  return [brief(name), `${[...others, measure].join(', ')}${of.length > 1 ? `, mean of ${list}` : ''}; ${KINDS[kind]}${certain}${quick}`];
}

/** The precisions that the fill of a point tells apart, the largest first; null where all are alike. */
function filledBy() {
  const found = distinct(reports.map(FILTERS.precision)).filter((precision) => precision in FILLED);
  return found.length > 1 ? found.sort((a, b) => FILLED[a] - FILLED[b]) : null;
}

/** What the plot of a suite shows. */
function caption(suite) {
  const [name, text] = aboutSuite(suite);
  return [el('p', {}, el('b', {}, name), ` ${text}`), filledBy() && el('p', {class: 'key'}, filledBy().map((precision) => el('span', {}, el('i', {class: 'filled', style: `--f:${FILLED[precision]}turn`}), precision)))];
}

/** A plot for each suite, one of which is shown, all on paper. */
function accuracy() {
  const inside = el('div', {class: data.suites.length > 1 ? 'tabs' : 'one'});
  const panels = data.suites.map((suite) => el('div', {class: 'panel scroll'}, el('h3', {class: 'on-paper'}, suite.name), ...caption(suite).filter(Boolean), plots((narrow) => accuracyOf(suite, narrow))));
  const open = (at) => { tab = at; panels.forEach((panel, other) => panel.classList.toggle('off', other !== at)); };
  data.suites.forEach(({name}, at) => {
    const input = el('input', {type: 'radio', name: 'suite', id: `s${at}`});
    input.checked = at === tab;
    input.onchange = () => { open(at); document.querySelector('header').replaceWith(header()); };
    inside.append(input, el('label', {for: `s${at}`}, brief(name)));
  });
  open(tab);
  inside.append(...panels);
  return inside;
}

function accuracyOf({name: suite, measure}, narrow) {
  const measured = reports.filter(({quality}) => quality[suite]), crowded = measured.length > CROWDED;
  const best = unbeaten(suite), alone = ({bundle}) => !best.some((other) => other.bundle.name === bundle.name);
  const told = (report) => !crowded || best.includes(report) || (alone(report) && measured.find(({bundle}) => bundle.name === report.bundle.name) === report);
  const fills = filledBy(), plain = (report) => told(report) || (!narrow && measured.length <= 2 * CROWDED);
  const points = measured.map((report) => {
    const ms = report.single.p50_ms, [low, high] = report.single.interval95?.p50_ms ?? [ms, ms];
    const cost = `${shown(report, 'MB')} MB`, p50 = `${shown(report, 'p50 ms')} ms`, share = retained(report, suite);
    const interval = report.quality[suite].interval95, lost = report.quality[suite].difference;
    const tied = Object.entries(report.against ?? {}).filter(([, {tie}]) => tie).map(([name]) => name);
    const tip = [
      `${report.bundle.name} · ${report.variant}`,
      `${measure.split(' ')[0]} ${shown(report, suite)}${share ? `, ${share} of the teacher's` : ''}`,
      interval ? `  95% interval ${between(hundredfold(interval), tenths)}` : '',
      lost ? `  to the teacher ${signed(100 * lost.mean)} (${hundredfold(lost.interval95).map(signed).join(' to ')})` : '',
      `p50 ${p50}, p99 ${shown(report, 'p99 ms')} ms`,
      ...['p50', 'p99'].map((each) => report.single.interval95?.[`${each}_ms`]?.length && `  95% interval of ${each} ${between(report.single.interval95[`${each}_ms`])} ms`),
      tied.length ? `  tied at p50 with ${listed(tied, 4, ', ')}` : '',
      `${cost}, ${shown(report, 'params')} parameters`, documents(report),
    ].filter(Boolean).join('\n');
    return {
      ms, low, high, tip, colour: colour(report), filled: fills?.includes(report.bundle.precision) ? FILLED[report.bundle.precision] : null, teacher: report.teacher,
      score: 100 * report.quality[suite].average, scores: interval && hundredfold(interval), bytes: report.size_bytes.graph,
      name: told(report) ? report.short : '', detail: plain(report) ? report.variant : '', note: crowded || narrow ? '' : `${cost} · ${p50}`,
    };
  });
  const teacher = reference?.quality[suite] && {score: 100 * reference.quality[suite].average, text: `teacher, ${shown(reference, suite)}`};
  const bare = bm25Of(suite), levels = [teacher, bare && {score: bare.score, text: `BM25 alone, ${tenths(bare.score)}`}].filter(Boolean);
  const [wide, high] = narrow ? [390, 480] : [1120, 600];
  return accuracyPlot(points, {wide, high, title: `${suite}: accuracy against latency`, measure, levels});
}

const quantile = (sorted, share) => {
  const at = share * (sorted.length - 1), low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
};

/** A smoothed histogram of the log of each bundle's times, one row each, with p50 and p99. */
function latencies() {
  const high = 1.1 * Math.max(...reports.map(({single}) => single.p99_ms));
  const slowest = reports.map((report) => [Math.max(...(report.samples_ms ?? [report.single.p50_ms]).flat()), report]).reduce((most, each) => (each[0] > most[0] ? each : most));
  const beyond = slowest[0] > high ? el('p', {}, `The axis ends just past the largest p99. The slowest text of all took ${timed(slowest[0])} ms, in ${title(slowest[1])}.`) : null;
  return [scroll(plots((narrow) => distributions(high, narrow))),
    el('p', {}, 'How many single texts took how long, on a log scale: the higher, the more texts. The long mark is p50, the short one p99.'), beyond, data.noise || !data.ties ? null : el('p', {}, data.ties)];
}

function distributions(high, narrow) {
  const ordered = [...reports].sort((a, b) => a.single.p50_ms - b.single.p50_ms), widest = Math.max(...reports.map((report) => `${report.short} ${report.variant}`.length));
  const [ROW, LEFT, RIGHT, WIDE, ABOVE] = narrow ? [66, 0, 12, 390, 34] : [46, 24 + 7 * widest, 128, 1120, 0];
  const PEAK = 36, SMOOTHING = [0.1, 0.2, 0.4, 0.2, 0.1];
  const samples = ordered.map(({samples_ms: times, single}) => (times ?? [[single.p50_ms]]).flat().sort((a, b) => a - b));
  const low = Math.min(...samples.map((times) => quantile(times, 0.001)));
  const {scale, ticks} = logScale([low, high], LEFT + 16, WIDE - RIGHT), bottom = ROW * reports.length + 14;
  const parts = ticks.filter((tick) => LEFT + (narrow ? 14 : 0) <= scale(tick) && scale(tick) <= WIDE - RIGHT).flatMap((tick) => [
    line('grid', scale(tick), 6, scale(tick), bottom),
    el('text', {class: 'tick', x: one(scale(tick)), y: bottom + 17, 'text-anchor': 'middle'}, ABOVE ? `${tick}` : `${tick} ms`),
  ]);
  const both = ordered.map((report) => `${shown(report, 'p50 ms')} · ${shown(report, 'p99 ms')}`);
  ordered.forEach((report, row) => {
    const base = ROW * (row + 1) + 4, {p50_ms: p50, p99_ms: p99} = report.single;
    const logs = samples[row].filter((time) => time <= high).map((time) => Math.log10(Math.max(time, low)));
    const first = logs[0] - 0.02, last = logs.at(-1) + 0.02;
    const bins = Math.max(24, Math.floor((last - first - 0.04) * 120)) - 1, width = (last - first) / bins;
    const counts = new Array(bins).fill(0);
    for (const log of logs) counts[Math.min(bins - 1, Math.floor((log - first) / width))] += 1;
    const smooth = counts.map((_, at) => SMOOTHING.reduce((sum, share, by) => sum + share * (counts[at + by - 2] ?? 0), 0));
    const tallest = Math.max(...smooth), at = counts.map((_, bin) => one(scale(10 ** (first + (bin + 0.5) * width))));
    const top = smooth.map((height, bin) => `L${at[bin]} ${one(base - height / tallest * PEAK)}`).join('');
    parts.push(el('g', {class: 'distribution', style: `--c:${colour(report)}`},
      el('path', {d: `M${at[0]} ${base}${top}L${at[bins - 1]} ${base}Z`}),
      el('line', {class: 'base', x1: at[0], x2: at[bins - 1], y1: base, y2: base}),
      [[p50, PEAK], [p99, PEAK / 3]].map(([time, tall]) => line('mark', scale(time), base - tall, scale(time), base + 3))));
    parts.push(plotLabel(report, LEFT ? LEFT - 14 : null, base - 8 - ABOVE));
    parts.push(el('text', {class: 'note', x: WIDE - 4, y: base - 8 - ABOVE, 'text-anchor': 'end'}, both[row]));
  });
  parts.push(el('text', {class: 'tick', x: WIDE - 4, y: ABOVE ? bottom + 34 : bottom + 17, 'text-anchor': 'end'}, 'p50 · p99, ms'));
  const told = ordered.map((report, row) => `${title(report)}: ${both[row]} ms`).join('; ');
  return drawing(WIDE, bottom + (ABOVE ? 42 : 26), 'Latency of single texts', told, parts);
}

/** Every task's score on a suite, shaded from the column's lowest to its highest; null where it has one task. */
function tasks({name: suite, measure, averaged}) {
  const measured = graphs().filter(({quality}) => quality[suite]), names = Object.keys(measured[0]?.quality[suite].tasks ?? {});
  if (names.length < 2) return null;
  const values = measured.map(({quality}) => names.map((name) => quality[suite].tasks[name]?.[averaged] ?? 0));
  const rows = measured.map((report, row) => {
    const cells = names.map((_, at) => {
      const column = values.map((each) => each[at]), least = Math.min(...column), span = Math.max(...column) - least;
      return {shown: (100 * values[row][at]).toFixed(1), shade: span ? (values[row][at] - least) / span : 0};
    });
    return {report, cells: [...cells, {shown: shown(report, suite), bold: true}]};
  });
  return [el('h3', {}, suite), ...comparison([measure, ...names, 'average'], rows)];
}

/** Scores of embeddings in fewer bytes; null where suites were scored in float32 alone. */
function embeddings() {
  if (!data.embeddings.length) return null;
  const rows = graphs().flatMap((report) => data.embeddings.filter((row) => title(all[row.report]) === `${report.bundle.name} ${report.bundle.precision}`).map(({cells}) => ({report, cells})));
  if (!rows.length) return null;
  const place = ({head}) => data.suites.findIndex(({name}) => name === head), has = (name) => rows.some(({cells}) => cells[0].shown === name);
  for (const {cells} of rows) cells.sort((a, b) => place(a) - place(b));
  return section('Embeddings in fewer bytes', 'Bytes', table(['bundle', ...rows[0].cells.map(({head}) => brief(head))], rows), terms(
    ['bytes', 'of one embedding'], has('int8') && ['int8', 'a byte for each dimension'], has('binary') && ['binary', 'a bit for each'], has('binary+int8') && ['binary+int8', 'the bits find candidates, which int8 puts in order']));
}

/** Agreement with the teacher; null where it was not measured. */
function agreement() {
  const measured = graphs().filter((report) => report.agreement);
  if (!measured.length) return null;
  const rows = measured.map((report) => {
    const {spearman, cosine_mean: cosine, top10_overlap: neighbours} = report.agreement;
    return {report, cells: [spearman, cosine, neighbours].map((value) => ({shown: typeof value === 'number' ? value.toFixed(3) : '–'}))};
  });
  const {texts, source} = measured[0].agreement;
  const on = `On ${count(texts)} ${source ?? 'texts'}.`;
  const heads = ['bundle', 'Spearman of cosines', 'mean cosine', 'top-10 overlap'];
  return section('Agreement with the teacher', 'Agreement', el('p', {}, on), table(heads, rows), terms(
    ['Spearman of cosines', 'rank correlation of the student’s and the teacher’s cosines of pairs of texts'], ['mean cosine', 'of a text’s two embeddings, where both have as many dimensions'],
    ['top-10 overlap', 'share of a text’s ten nearest by the teacher that are also the student’s']));
}

const signed = (value) => { const points = Math.abs(value).toFixed(1); return points === '0.0' ? '±0.0' : `${value < 0 ? '−' : '+'}${points}`; };
const whole = (value) => (typeof value === 'number' ? Math.round(value).toLocaleString('en') : '–');

/** Milliseconds against tokens, a line a bundle, and as a table; null where no runner measured it. */
function byLength() {
  const measured = reports.filter(({single}) => Object.keys(single.by_length ?? {}).length > 1);
  if (!measured.length) return null;
  const lines = measured.map((report) => ({report, points: Object.entries(report.single.by_length).map(([length, each]) => {
    const ms = each.tokenize_ms + each.graph_ms;
    return {...each, length, ms, range: each.range_ms ?? [ms, ms]};
  })}));
  const tied = tiesByLength(lines), rounds = measured.some(({single}) => Object.values(single.by_length).some(({range_ms: range}) => range));
  const lengths = distinct(lines.flatMap(({points}) => points.map(({length}) => length))).sort((a, b) => a - b);
  const rows = lines.map(({report, points}) => ({report, cells: lengths.map((length) => {
    const point = points.find((each) => each.length === length);
    return point ? {value: point.ms, shown: timed(point.ms), small: rounds && point.range.map(milliseconds).join('–')} : {shown: '–'};
  })}));
  return section('Latency by length', 'Latency by length', scroll(plots((narrow) => lengthsPlot(lines, narrow, tied))), ...comparison(['ms at tokens', ...lengths.map((length) => `≤ ${length}`)], rows, 'lengths'),
    terms(['ms at tokens', `median time of one text that the tokenizer cuts into at most so many tokens, tokenization included${about ? '; ~ since the machine was noisy' : ''}`],
      rounds && ['in brackets, and as bars', 'the fastest and the slowest round'],
      tied.length && ['ties', `closer than this run can tell: ${listed(tied.map(({a, b, at}) => `${title(a)} = ${title(b)} at ${at.join(', ')} tokens`), 6, '; ')}`]));
}

/** The first of a list of texts, and how many more there are. */
const listed = (texts, most, separator) => texts.slice(0, most).join(separator) + (texts.length > most ? `${separator}and ${texts.length - most} more` : '');

/** Pairs of bundles {a, b, at: lengths} whose rounds overlap, or whose times are closer than the A/A test of the run resolves. */
function tiesByLength(lines) {
  const tie = (one, other, {noise}) => (one.range[0] <= other.range[1] && other.range[0] <= one.range[1]) || Math.abs(Math.log(one.ms / other.ms)) <= Math.log1p(noise?.resolution ?? 0);
  return lines.flatMap(({report: a, points}, at) => lines.slice(at + 1).map(({report: b, points: others}) => ({a, b, at: points
    .filter((point) => others.some((other) => other.length === point.length && tie(point, other, a))).map(({length}) => length)}))).filter(({at}) => at.length);
}

/** The ends of lines {report, y}, from top to bottom, as groups {y, reports}, whose names would overlap. */
function nearby(ends) {
  const groups = [];
  for (const {report, y} of ends) {
    if (groups.length && y - groups.at(-1).y < NAME_HIGH) groups.at(-1).reports.push(report); else groups.push({y, reports: [report]});
  }
  return groups;
}

const NAME_HIGH = 16, NAMED = 3; // units; bundles at most that are named at one place

function lengthsPlot(lines, narrow, tied) {
  const points = lines.flatMap((each) => each.points), widest = Math.max(...lines.map(({report}) => `${report.short} ${report.variant}`.length));
  const [wide, high] = narrow ? [390, 340] : [1120, 420], frame = {left: 56, top: 16, right: wide - (narrow ? 12 : 24 + 7 * widest), bottom: high - 50};
  const x = logScale(points.map(({tokens}) => tokens), frame.left + 16, frame.right - 16), y = logScale(points.flatMap(({ms, range}) => [ms, ...range]), frame.bottom - 14, frame.top + 14);
  x.ticks = apart(distinct(points.map(({tokens}) => tokens)).sort((a, b) => b - a), x.scale);
  const parts = grid(x, y, frame);
  const lasts = lines.map(({report, points: its}) => ({report, y: y.scale(its.at(-1).ms)})).sort((a, b) => a.y - b.y);
  const together = nearby(lasts);
  lasts.forEach((end, at) => { if (at) end.y = Math.max(end.y, lasts[at - 1].y + 16); });
  for (const {report, points: its} of lines) {
    const path = its.map(({tokens, ms}, at) => `${at ? 'L' : 'M'}${one(x.scale(tokens))} ${one(y.scale(ms))}`).join('');
    parts.push(el('path', {class: 'length', d: path, style: `stroke:${colour(report)}`}));
    for (const {length, tokens, ms, range, tokenize_ms: tokenizing, graph_ms: graph, pooling_ms: pooling} of its) {
      const inside = typeof pooling === 'number' ? `, ${milliseconds(pooling)} of it pooling` : '', same = tied.filter(({a, b, at}) => (a === report || b === report) && at.includes(length));
      const tip = [`${title(report)}\n${tokens} tokens: ${timed(ms)} ms`, range[0] < range[1] ? `  rounds ${between(range)} ms` : '',
        `  tokenization ${milliseconds(tokenizing)}\n  graph ${milliseconds(graph)}${inside}`,
        same.length ? `  tied with ${listed(same.map(({a, b}) => title(a === report ? b : a)), 4, ', ')}` : ''].filter(Boolean).join('\n');
      const [across, low, upper] = [x.scale(tokens), ...range.map(y.scale)];
      parts.push(el('g', {class: 'dot', 'data-tip': tip, style: `--c:${colour(report)}`}, line('interval', across, low, across, upper), el('circle', {cx: one(across), cy: one(y.scale(ms)), r: 4})));
    }
  }
  if (narrow) {
    for (const {y: at, reports: its} of together) {
      const named = its.slice(0, NAMED).flatMap((report, place) => [place ? ', ' : '', el('tspan', {class: 'name', style: `fill:${colour(report)}`}, called(report))]);
      parts.push(el('text', {class: 'label', x: one(frame.right - 10), y: one(at - 9), 'text-anchor': 'end'}, named, its.length > NAMED ? ` and ${its.length - NAMED} more` : ''));
    }
  } else {
    for (const {report, y: at} of lasts) {
      const label = plotLabel(report, null, one(at + 4));
      label.setAttribute('x', frame.right + 8);
      parts.push(label);
    }
  }
  parts.push(el('text', {class: 'axis', x: (frame.left + frame.right) / 2, y: high - 10, 'text-anchor': 'middle'}, 'tokens of the text, log scale'));
  parts.push(el('text', {class: 'axis', transform: `translate(14 ${(frame.top + frame.bottom) / 2}) rotate(-90)`, 'text-anchor': 'middle'}, `${about}milliseconds, log scale`));
  const told = lines.map(({report, points: its}) => `${title(report)} ${its.map(({tokens, ms}) => `${tokens}: ${timed(ms)} ms`).join(', ')}`).join('; ');
  return drawing(wide, high, 'Latency by length', told, parts);
}

/** Start, memory and batches; null where none was measured. */
function scenarios() {
  const told = reports.filter(({load, memory}) => load?.start_ms?.[0] || memory?.loaded_rss_bytes);
  if (!told.length) return null;
  const middle = (values) => { const known = (values ?? []).filter((value) => value !== null).sort((a, b) => a - b); return known[known.length >> 1]; };
  const columns = [
    ['best batches', ({offline: {batch}}) => [null, batch ? {budget: 'by tokens', 1: '1 text'}[batch] ?? `${batch} texts` : '–']],
    ['start ms', ({load}) => [middle(load?.start_ms)]],
    ['RSS MB loaded', ({memory}) => [memory?.loaded_rss_bytes, memory?.loaded_rss_bytes ? whole(memory.loaded_rss_bytes / 1e6) : '–']],
  ].map(([head, of]) => [head, told.map((report) => { const [value, text = timed(value)] = of(report); return {value, shown: text}; })])
    .filter(([head, cells]) => cells.some((each) => each.shown !== '–') && (head !== 'best batches' || distinct(cells.map((each) => each.shown)).length > 1));
  if (!columns.length) return null;
  const rows = told.map((report, at) => ({report, cells: columns.map(([, cells]) => cells[at])}));
  const has = (word) => columns.some(([head]) => head.startsWith(word));
  return section('Start and memory', 'Start', ...comparison(['bundle', ...columns.map(([head]) => head)], rows, 'scenarios'), terms(
    has('best') && ['best batches', 'those of the texts/s above: of 1, 8 or 32 texts, or by tokens: all texts in one call, which sorts them by length'],
    has('start') && ['start', 'from the start of the process to its first embedding'],
    has('RSS') && ['RSS', 'memory of the process once the bundle is loaded']));
}

/** What changed between two files of reports; null where none were compared. */
function changed() {
  if (!data.changes) return null;
  const heads = ['bundle', 'measure', 'before', 'after', 'change', '95% interval', ''];
  const rows = data.changes.map((cells) => el('tr', {}, cells.map((text, at) => (at ? el('td', {'data-head': heads[at]}, text) : el('th', {scope: 'row'}, text)))));
  return section('What changed', 'Changes', scroll(el('table', {class: 'stacked'}, el('thead', {}, el('tr', {}, heads.map((text) => el('th', {scope: 'col'}, text)))), el('tbody', {}, rows))),
    terms(['within noise', 'the interval holds 0'], ['not resolved', 'smaller than what times differ by within one of the runs']));
}

/** The command that measures the same again, and the graphs by their hashes. */
function reproduce() {
  const values = (of) => distinct(all.map(of)).filter((value) => value !== null && value !== undefined);
  const quoted = (text) => (/^[\w./:=,+-]+$/.test(text) ? text : `'${text}'`);
  const option = (name, list, usual) => (list.length === 1 && list[0] === usual ? [] : list.map((value) => `--${name} ${quoted(`${value}`)}`));
  const suites = data.suites.map(({name}) => name).filter((name) => suiteOf(name).base === name), apart = data.suites.some(({name, kind}) => !SMALL.includes(name) && kind !== 'mteb');
  const command = ['edgedistill bench', ...values(({bundle}) => `${bundle.name}:${bundle.precision}`).map(quoted),
    ...option('suite', suites), ...(data.suites.some(({name}) => name.endsWith(' + BM25')) ? ['--hybrid'] : []),
    ...(apart ? ['--data DIR'] : []), ...option('threads', values(({threads}) => threads)), ...option('device', values(FILTERS.device), 'cpu'), ...option('runner', values(FILTERS.runner), 'python'), ...(all[0].single.distinct < 1024 ? ['--quick'] : [])];
  const hashes = all.map((report) => {
    const {name, precision, sha256, dims, max_tokens: most} = report.bundle;
    return `${sha256.slice(0, 16)}  ${name} ${precision}${dims ? `, ${dims[0]} dimensions, ${most} tokens at most` : ''}${documents(report) && `, ${documents(report)}`}`;
  });
  return section('How to reproduce', 'Reproduce', ...copyable(command.join(' ')), el('p', {}, 'The graphs by the beginning of their sha256:'), el('pre', {}, distinct(hashes).join('\n')));
}

/** A command, and a button that copies it, or selects it where the browser does not let it. */
function copyable(text) {
  const command = el('pre', {}, text), button = el('button', {class: 'copy'}, 'Copy');
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(command);
      button.textContent = 'Selected';
    }
  };
  return [command, button];
}

/** How the numbers were measured, and the machine. */
function method() {
  const {single: {queries, warmups, tokens_mean: tokens}, versions} = all[0];
  const counted = queries ? `${count(queries)} single texts${tokens ? ` of ${tokens.toFixed(0)} tokens on average` : ''} after ${warmups} warm-up calls` : 'single texts';
  const plain = (value) => {
    if (typeof value === 'number') return count(value);
    return typeof value === 'object' ? Object.values(value).join(' ') : String(value);
  };
  const gigabytes = (key, value) => `${key.replace('_bytes', '')} ${(value / 1e9).toFixed(0)} GB`;
  const facts = (values) => Object.entries(values).filter(([, value]) => value !== null && `${value}` !== '')
    .map(([key, value]) => (key.endsWith('_bytes') ? gigabytes(key, value) : `${key.replaceAll('_', ' ')} ${plain(key === 'megahertz' ? distinct([value].flat().map(whole)) : value)}`));
  return section('How it was measured', 'Method',
    el('p', {}, METHOD.replace('{counted}', counted)),
    ...distinct(all.map(({machine}) => facts(machine).join(', '))).map((machine) => el('p', {}, el('b', {}, 'Machine'), ` ${machine}`)),
    ...all.filter(({runner}) => runner?.golden).map(({name, runner: {golden: {worst, least}}}) => el('p', {}, el('b', {}, 'Golden texts'), ` ${name}: cosine ${worst} at least, ${least} is asked`)),
    el('p', {}, el('b', {}, 'Versions'), ` ${facts(versions).join(', ')}`));
}

document.title = `edgedistill · ${subject}`;

function draw() {
  const focused = document.activeElement?.id, byTask = data.suites.flatMap((suite) => tasks(suite) ?? []);
  const parts = [
    changed(),
    data.suites.length && reports.length > 1 ? section('Accuracy against latency', 'Accuracy', accuracy()) : null,
    section('Measurements', 'Measurements', ...measurements()),
    section('Latency distributions', 'Distributions', ...latencies()),
    byLength(),
    scenarios(),
    byTask.length ? section('Scores by task', 'Tasks', ...byTask, reports.length > 1 ? el('p', {}, 'The deeper a cell’s shade, the higher its score among the bundles.') : null) : null,
    embeddings(),
    agreement(),
    method(),
    reproduce(),
  ].filter(Boolean);
  const links = el('nav', {class: 'contents', 'aria-label': 'Sections'}, parts.map(({id, dataset}) => el('a', {href: `#${id}`}, dataset.link)));
  document.querySelector('main').replaceChildren(...[header(), links, filters(), ...parts, el('footer', {}, ABOUT)].filter(Boolean));
  document.getElementById(focused)?.focus(); // a filter's box was drawn anew
  for (const each of document.querySelectorAll('.scroll')) if (each.scrollWidth > each.clientWidth) each.tabIndex = 0; // for the arrow keys
  showTips();
}

draw();
