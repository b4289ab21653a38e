// The page's figures, each drawn into its place from the record in `data`.
const drawn = {};  // by the figure's name: draws it again, as wide as the page is now

function choice(figure, name) { return figure.querySelector(`select[name=${name}]`).value; }

drawn.history = function (figure) {
  const t = data.trials, by = choice(figure, "by"), rows = keptRows();
  const [unit, each] = clock(t.time_h[t.time_h.length - 1] || 0);
  let hours = 0;
  const xs = by === "trials" ? t.number.map((_, i) => i + 1) : by === "time" ? t.time_h.map((h) => each * h) : t.metrics.node_hours.of.map((h) => hours += h);
  const names = { trials: "trials that have ended", time: `search time (${unit})`, nodes: "node-hours" };
  const failed = t.kinds.map((kind, k) => [kind, rows.filter((i) => t.kind[i] === k && t.objective[i] === null)]).filter(([, those]) => those.length);
  const none = !rows.some((i) => t.objective[i] !== null), under = none ? 10 : failed.length ? 280 : 258;  // no empty axis
  // Of the trials whose end says something about their configuration; after Dash et al. 2023, Figure 9.
  const judged = rows.filter((i) => t.kinds[t.kind[i]][2] !== "gray"), window = Math.min(20, Math.max(5, Math.floor(judged.length / 6)));
  const shares = !none && judged.some((i) => t.objective[i] === null), low = under + 18 * failed.length, height = low + 44 + (shares ? 58 : 0);
  const { svg, width } = blank(figure, height, "Objective of every trial and the best so far");
  const words = failed.map(([kind, those]) => `${kind[0]} ${shown(those.length)}`);
  const box = [Math.max(64, 14 + 6.4 * Math.max(0, ...words.map((one) => one.length))), 26, width - 12, 250];
  const log = filtering.log && t.positive, lg = log ? Math.log10 : (v) => v;
  const [least, most] = extent(rows.flatMap((i) => t.objective[i] === null ? [] : [t.objective[i], ...(t.repeats[i] || [])]).map(lg));
  const pad = (most - least) * 0.06, whole = rows.length === t.number.length;
  const span = [whole ? 0 : xs[rows[0]] || 0, rows.length ? xs[rows[rows.length - 1]] : 1];
  if (span[1] <= span[0]) span[1] = span[0] + 1;
  let x = scale(...span, box[0], box[2]), plain = (v) => v;
  if (!none) { [x, plain] = axes(svg, box, span, [least - pad, most + pad], "", t.label, [false, log], false, by === "trials" ? 1 : 0); brushable(svg, box); }
  else for (const at of ticks(...span, 6, by === "trials" ? 1 : 0)) node("text", { x: x(at), y: height - 18, "text-anchor": "middle" }, svg, shown(at));
  const y = (v) => plain(lg(v));
  let best = null, path = "";
  const early = new Set(t.early);
  rows.forEach((i) => {
    const value = t.objective[i];
    if (value === null || early.has(i)) return;
    if (best === null || (t.maximize ? value > best : value < best)) {
      path += best === null ? `M${x(xs[i])} ${y(value)}` : `H${x(xs[i])}V${y(value)}`;
      best = value;
    }
  });
  const small = rows.length > 1500;
  rows.forEach((i) => {
    const value = t.objective[i];
    if (value === null) return;
    for (const again of t.repeats[i] || []) node("line", { x1: x(xs[i]) - 4, x2: x(xs[i]) + 4, y1: y(again), y2: y(again), class: "repeat" }, svg);
    const at = { cx: x(xs[i]), cy: y(value), r: small ? 1.8 : 3.6, class: early.has(i) ? "early" : "ok" };
    if (small) { node("circle", at, svg); spot(svg, i, at.cx, at.cy); } else mark(svg, i, "circle", at, early.has(i) ? "stopped early" : "");
  });
  if (path) node("path", { d: path + `H${box[2]}`, class: "best" }, svg);
  failed.forEach(([kind, failures], k) => {
    const top = under + 10 + 18 * k, bins = new Map();
    for (const i of failures) {  // many of them in one place are one mark, the darker the more
      const cell = Math.round(x(xs[i]) / 5) * 5;
      bins.set(cell, (bins.get(cell) || []).concat(i));
    }
    for (const [at, those] of bins) {
      const made = node("rect", { x: at - 2, y: top - 5, width: 4, height: 10, class: "fail-" + kind[2], opacity: Math.min(1, 0.6 + 0.1 * those.length) }, svg);
      hover(made, those.length === 1 ? told(those[0]) : `${shown(those.length)} trials: ${kind[0]}, ${kind[1]}`);
    }
    node("text", { x: box[0] - 6, y: top + 4, "text-anchor": "end" }, svg, words[k]);
  });
  if (shares) {
    const top = low + 26, up = scale(0, 1, top + 50, top), failing = judged.map((i) => t.objective[i] === null ? 1 : 0);
    for (const share of [0, 0.5, 1]) {
      node("line", { x1: box[0], x2: box[2], y1: up(share), y2: up(share), class: "grid" }, svg);
      node("text", { x: box[0] - 6, y: up(share) + 4, "text-anchor": "end" }, svg, `${100 * share} %`);
    }
    let sum = 0;
    const steps = judged.map((i, k) => {
      sum += failing[k] - (k < window ? 0 : failing[k - window]);
      return `H${x(xs[i])}V${up(sum / Math.min(k + 1, window))}`;
    });
    node("path", { d: `M${x(xs[judged[0]])} ${up(failing[0])}` + steps.join("") + `H${box[2]}`, class: "share" }, svg);
    node("text", { x: box[0], y: top - 6, class: "name" }, svg, `failed among the last ${window}`);
  }
  node("text", { x: (box[0] + box[2]) / 2, y: height - 2, "text-anchor": "middle", class: "name" }, svg, names[by]);
};

drawn.expected = function (figure) {
  const t = data.trials, rows = Object.keys(t.expected).map(Number).filter((i) => kept[i] && t.objective[i] !== null);
  const { svg, width } = blank(figure, 340, "Measured over expected objective");
  const all = rows.flatMap((i) => [t.objective[i], ...t.expected[i]]), log = filtering.log && all.every((v) => v > 0), lg = log ? Math.log10 : (v) => v;
  const range = extent(all.map(lg)), pad = (range[1] - range[0]) * 0.04, span = [range[0] - pad, range[1] + pad];
  const box = [64, 26, Math.min(width - 26, 524), 290];
  const [px, py] = axes(svg, box, span, span, `expected ${t.label}`, "measured", [log, log]), x = (v) => px(lg(v)), y = (v) => py(lg(v));
  brushable(svg, box);
  node("line", { x1: px(span[0]), y1: py(span[0]), x2: px(span[1]), y2: py(span[1]), class: "even" }, svg);
  for (const i of rows) {
    const [middle, low, high] = t.expected[i], at = y(t.objective[i]);
    node("line", { x1: x(low), x2: x(high), y1: at, y2: at, class: "interval" }, svg);
    mark(svg, i, "circle", { cx: x(middle), cy: at, r: 3.6, class: "ok" }, `expected ${shown(middle)} (${shown(low)} to ${shown(high)})`);
  }
};

drawn.nodes = function (figure) {
  const n = data.nodes, lanes = n.names ? n.names.length : 0;
  const height = lanes ? 50 + 15 * lanes : 220;
  const { svg, width } = blank(figure, height, "What ran on which node");
  const [unit, each] = clock(n.end_s / 3600), end = each * n.end_s / 3600 || 1, at = (seconds) => each * seconds / 3600, box = [lanes ? 74 : 64, 20, width - 12, height - 34];
  if (!lanes) {
    const [x, y] = axes(svg, box, [0, end], [0, n.count], `search time (${unit})`, "busy nodes");
    let path = `M${x(0)} ${y(0)}`;
    n.at_s.forEach((moment, i) => { path += `L${x(at(moment))} ${y(n.busy[i])}`; });
    node("path", { d: path + `V${y(0)}Z`, class: "busy" }, svg);
    return;
  }
  const [x] = axes(svg, box, [0, end], [0, 1], `search time (${unit})`, "");
  svg.querySelectorAll("text[text-anchor=end]").forEach((text) => text.remove());
  n.names.forEach((name, lane) => {
    node("rect", { x: box[0], y: box[1] + 15 * lane + 2, width: box[2] - box[0], height: 11, class: "idle" }, svg);
    node("text", { x: box[0] - 6, y: box[1] + 15 * lane + 11, "text-anchor": "end" }, svg, name.slice(-10));
  });
  for (const [number, where, from, to, kind, colour] of n.bars) for (const lane of where) {
    const bar = node("rect", { x: x(at(from)), y: box[1] + 15 * lane + 2, width: Math.max(1, x(at(to)) - x(at(from)) - 0.6), height: 11, class: "fail-" + colour + " mark" + (keeps(number, "") ? "" : " faint") }, svg);
    hover(bar, `trial ${number} on ${n.names[lane]}: ${kind}\n${shown(to - from)} s`);
    bar.addEventListener("click", () => visit(number));
  }
};

drawn.effects = function (figure) {
  const rows = data["effects-" + figure.dataset.of], one = 34, unit = figure.dataset.unit && ", " + figure.dataset.unit;
  const { svg, width } = blank(figure, 50 + one * rows.length, "Mean absolute SHAP value of each parameter");
  const wide = width > 620, left = Math.min(width * 0.45, 16 + 6.8 * Math.max(...rows.map((r) => Math.min(20, r.name.length)))), middle = wide ? width * 0.5 : width - 14;
  const top = Math.max(...rows.map((r) => Math.max(r.high, r.mean))) || 1;
  const x = scale(0, top, left, middle - 20);
  const far = Math.max(...rows.flatMap((r) => r.values.map(([, v]) => Math.abs(v)))) || 1;
  const z = scale(-far, far, middle + 26, width - 26);
  node("text", { x: left, y: 14, class: "name" }, svg, "mean |SHAP|" + unit);
  if (wide) {
    node("text", { x: z(0), y: 14, class: "name", "text-anchor": "middle" }, svg, "effect of each value" + unit);
    node("line", { x1: z(0), x2: z(0), y1: 22, y2: 30 + one * rows.length, class: "even" }, svg);
    for (const end of [-far, far]) node("text", { x: z(end), y: 44 + one * rows.length, "text-anchor": end > 0 ? "end" : "start" }, svg, (end > 0 ? "+" : "") + shown(end));
  }
  for (const at of ticks(0, top, 3)) node("text", { x: x(at), y: 44 + one * rows.length, "text-anchor": "middle" }, svg, shown(at));
  rows.forEach((row, i) => {
    const y = 40 + one * i;
    node("text", { x: left - 8, y: y + 4, "text-anchor": "end", class: "name" }, svg, row.name.length > 20 ? row.name.slice(0, 19) + "…" : row.name);
    const bar = node("rect", { x: left, y: y - 8, width: Math.max(1, x(row.mean) - left), height: 16, class: "bar" }, svg);
    const line = node("line", { x1: x(row.low), x2: x(row.high), y1: y, y2: y, class: "whisker" }, svg);
    for (const part of [bar, line]) hover(part, `${row.name}: ${shown(row.mean)} (${shown(row.low)} to ${shown(row.high)})\n` + row.values.map(([v, e]) => `${v}: ${e > 0 ? "+" : ""}${shown(e)}`).join("\n"));
    if (!wide) return;
    let last = -Infinity;
    const order = row.values.map(([value, effect], rank) => [value, effect, rank]).sort((a, b) => a[1] - b[1]);
    for (const [value, effect, rank] of order) {
      const share = row.values.length > 1 ? rank / (row.values.length - 1) : 0.5;
      const dot = node("circle", { cx: z(effect), cy: y, r: 4.5, style: `fill: ${tone(share)}` }, svg);
      hover(dot, `${row.name} = ${value}: ${effect > 0 ? "+" : ""}${shown(effect)}`);
      const half = 3.2 * value.length, at = Math.min(z(effect), width - half - 2);  // whole at the edge, too
      if (at - half - 3 > last) { node("text", { x: at, y: y - 8, "text-anchor": "middle", class: "small halo" }, svg, value); last = at + half; }
    }
  });
};

// From violet by green to yellow (viridis, its dark end lighter, 3:1 against dark ground): the same
// order for every kind of sight.
function tone(share) {
  const stops = [[130, 80, 180], [66, 118, 178], [33, 145, 140], [94, 201, 98], [222, 210, 50]];
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at));
  return `rgb(${stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (at - i))).join(",")})`;
}

function keptRows() { return data.trials.number.map((_, i) => i).filter((i) => kept[i]); }
function successes() { return keptRows().filter((i) => data.trials.objective[i] !== null); }
function better(a, b) { return data.trials.maximize ? a > b : a < b; }
// The share of the way from the worst to the best of the successes that are kept, by logarithms if asked.
function merit(rows) {
  const t = data.trials, one = measure(rows.map((i) => t.objective[i]), filtering.log && t.positive);
  return (i) => t.maximize ? one.of(t.objective[i]) : 1 - one.of(t.objective[i]);
}

drawn.parallel = function (figure) {
  const t = data.trials, names = Object.keys(t.parameters);
  let rows = successes().sort((a, b) => (t.objective[a] - t.objective[b]) * (t.maximize ? 1 : -1));
  if (rows.length > 400) rows = rows.filter((_, i) => i % Math.ceil(rows.length / 200) === 0 || i >= rows.length - 200);
  const { svg, width } = blank(figure, 300, "Parameters of every success, coloured by the objective");
  const columns = names.length, share = merit(rows), reached = measure(rows.map((i) => t.objective[i]), filtering.log && t.positive);
  const wide = 10 + 5.8 * Math.max(...reached.ticks.map(([, text]) => text.length));
  const x = scale(0, columns, 34, width - Math.max(60, wide)), up = scale(0, 1, 250, 34), own = Object.fromEntries(names.map((name) => [name, measured(t.parameters[name])]));
  for (const i of rows) {
    const points = names.map((name, k) => [x(k), up(own[name].of(t.parameters[name].of[i]))]).concat([[x(columns), up(reached.of(t.objective[i]))]]);
    points.forEach((at) => spot(svg, i, ...at));
    mark(svg, i, "path", { d: "M" + points.map((at) => at.join(" ")).join("L"), class: "thread", style: `stroke: ${tone(share(i))}` });
  }
  const room = Math.max(1, Math.min(11, Math.floor((x(1) - x(0) - 4) / 6)));  // signs between two columns
  names.concat(t.unit).forEach((name, k) => {
    node("line", { x1: x(k), x2: x(k), y1: 34, y2: 250, class: "rail" }, svg);
    const most = Math.min(k ? 16 : 9, Math.floor(2 * (x(1) - x(0)) / 8.2));  // two rows of names
    const label = node("text", { x: x(k), y: k % 2 ? 284 : 270, "text-anchor": "middle", class: "name" }, svg, name.length > most ? name.slice(0, most - 1) + "…" : name);
    if (name.length > most) hover(label, name);
    const ends = k === columns ? reached.ticks : own[name].ticks, some = Math.ceil(ends.length / 9);
    ends.forEach(([at, value], v) => { if (v % some === 0 || v === ends.length - 1) node("text", { x: x(k) + 4, y: up(at) - 3, class: "small halo" }, svg, k === columns ? value : (value.length > room ? value.slice(0, room - 1) + "…" : value)); });
  });
  brushable(svg, [20, 24, width, 256]);
};

drawn.heat = function (figure) {
  if (["across", "up"].every((name) => data.trials.parameters[choice(figure, name)].numbers)) { contours(figure); return; }
  const t = data.trials, [a, b] = ["across", "up"].map((name) => binned(t.parameters[choice(figure, name)]));
  const cells = new Map(), share = merit(successes());
  keptRows().forEach((i) => {
    const key = a.of[i] + " " + b.of[i], cell = cells.get(key) || { best: null, count: 0, failed: 0 };
    cell.count += 1;
    if (t.objective[i] === null) cell.failed += 1;
    else if (cell.best === null || better(t.objective[i], t.objective[cell.best])) cell.best = i;
    cells.set(key, cell);
  });
  const rows = b.values.length, one = Math.max(14, Math.min(34, 340 / rows));
  const { svg, width } = blank(figure, 44 + one * rows, "Best objective by two parameters");
  const left = Math.max(70, 14 + 6.4 * Math.max(...b.values.map((value) => value.length))), side = Math.min(90, (width - left - 10) / a.values.length);
  for (const [key, cell] of cells) {
    const [i, j] = key.split(" ").map(Number), good = cell.best === null ? 0 : share(cell.best);
    const at = { x: left + side * i, y: 4 + one * (rows - 1 - j), width: side - 1, height: one - 1 };
    const box = node("rect", { ...at, class: cell.best === null ? "fail-red" : "", style: cell.best === null ? "" : `fill: ${tone(good)}` }, svg);
    hover(box, `${cell.count} trials, ${cell.failed} failed` + (cell.best === null ? "" : `; best: ${told(cell.best)}`));
    if (cell.best !== null && side > 52 && one > 15) node("text", { x: at.x + side / 2, y: at.y + one / 2 + 4, "text-anchor": "middle", style: `fill: ${good > 0.6 ? "#111" : "#fff"}; pointer-events: none` }, svg, shown(t.objective[cell.best]));
  }
  b.values.forEach((value, j) => { if (one > 12) node("text", { x: left - 6, y: 8 + one * (rows - 1 - j) + one / 2, "text-anchor": "end" }, svg, value); });
  across(svg, a.values, left, side, one * rows + 18);
  node("text", { x: left, y: one * rows + 36, class: "name" }, svg, choice(figure, "across") + " →, " + choice(figure, "up") + " ↑");
};

// Names below columns, as many as there is room for.
function across(svg, values, left, side, y) {
  const every = Math.ceil((8 + 6 * Math.max(...values.map((value) => value.length))) / side);
  values.forEach((value, i) => { if (i % every === 0) node("text", { x: left + side * (i + 0.5), y, "text-anchor": "middle" }, svg, value); });
}

// The objective, or another metric, over each parameter in turn.
drawn.slices = function (figure) {
  const t = data.trials, names = Object.keys(t.parameters), rows = keptRows(), name = choice(figure, "of");
  const column = name === "objective" ? t.objective : t.metrics[name].of, label = name === "objective" ? t.label : t.metrics[name].label;
  const place = figure.querySelector(".plot").clientWidth || 900, [least, high] = drawingFor.width ? [225, 170] : [280, 218];  // on paper a page has all
  const each = Math.max(1, Math.min(names.length, Math.floor((drawingFor.width || place) / least)));
  const { svg, width } = blank(figure, high * Math.ceil(names.length / each) + 20, `${label} over each parameter`);
  const done = rows.filter((i) => column[i] !== null), log = filtering.log && done.every((i) => column[i] > 0), lg = log ? Math.log10 : (v) => v;
  const [low, top] = extent(done.map((i) => lg(column[i]))), pad = (top - low) * 0.06, one = width / each, most = Math.floor(one / 7.4);
  const thin = done.length > 1500 ? Math.ceil(done.length / 1500) : 1;
  names.forEach((parameter, k) => {
    const c = t.parameters[parameter], scaled = measured(c), box = [one * (k % each) + 60, 26 + high * Math.floor(k / each), one * (k % each + 1) - 16, high * (1 + Math.floor(k / each)) - 48, one * (k % each)];
    const [, y] = axes(svg, box, [0, 1], [low - pad, top + pad], "", k % each ? "" : label, [false, log], true);
    const x = scale(0, 1, box[0] + 10, box[2] - 10);
    let last = -Infinity;
    for (const [at, value] of scaled.ticks) if (x(at) - 3.4 * value.length > last + 4) { last = x(at) + 3.4 * value.length; node("text", { x: x(at), y: box[3] + 15, "text-anchor": "middle" }, svg, value); }
    node("text", { x: (box[0] + box[2]) / 2, y: box[3] + 32, "text-anchor": "middle", class: "name" }, svg, parameter.length > most ? parameter.slice(0, most - 1) + "…" : parameter);
    done.forEach((i, n) => {
      const at = { cx: x(scaled.of(c.of[i])), cy: y(lg(column[i])), r: 2.6, class: "ok" };
      spot(svg, i, at.cx, at.cy);
      if (n % thin === 0) if (thin > 1) node("circle", at, svg); else mark(svg, i, "circle", at);
    });
    for (const i of rows) if (t.objective[i] === null) node("rect", { x: x(scaled.of(c.of[i])) - 1, y: box[3] - 5, width: 2, height: 5, class: "fail-" + t.kinds[t.kind[i]][2], opacity: 0.5 }, svg);
  });
  brushable(svg, [0, 0, width, 10000]);
};

// The share of the successes that reach at least so much.
drawn.edf = function (figure) {
  const t = data.trials, rows = successes().sort((a, b) => (t.objective[a] - t.objective[b]) * (t.maximize ? -1 : 1));
  const { svg, width } = blank(figure, 300, "Share of the successes that are at least as good");
  const log = filtering.log && t.positive, lg = log ? Math.log10 : (v) => v, box = [64, 26, width - 16, 250];
  const [x, y] = axes(svg, box, extent(rows.map((i) => lg(t.objective[i]))), [0, 100], t.label, "at least as good (%)", [log, false]);
  brushable(svg, box);
  const path = rows.map((i, k) => { const at = [x(lg(t.objective[i])), y(100 * (k + 1) / rows.length)]; spot(svg, i, ...at); return at; });
  node("path", { d: path.map(([px, py], k) => k ? `H${px}V${py}` : `M${px} ${py}`).join("") || "M0 0", class: "best" }, svg);
  if (rows.length <= 1500) path.forEach(([px, py], k) => mark(svg, rows[k], "circle", { cx: px, cy: py, r: 3, class: "ok" }));
};

// Attained rate over arithmetic intensity, below what the GPU's memory and its products allow.
drawn.roofline = function (figure) {
  const t = data.trials, roof = t.metrics.attained.limits, rows = successes().filter((i) => t.metrics.intensity.of[i] && t.metrics.attained.of[i]);
  const { svg, width } = blank(figure, 330, "Attained rate over arithmetic intensity, below the roof of the GPU");
  const ridge = 1e3 * roof.peak_tflops / roof.gb_per_s, limit = (x) => Math.min(roof.peak_tflops, x * roof.gb_per_s / 1e3);
  const xs = rows.map((i) => t.metrics.intensity.of[i]).concat(ridge), ys = rows.map((i) => t.metrics.attained.of[i]).concat(roof.peak_tflops);
  const [a, b] = extent(xs.map(Math.log10)), [c, d] = extent(ys.map(Math.log10)), box = [64, 26, width - 16, 280];
  const span = [a - 0.3, b + 0.2], tall = [c - 0.15, d + 0.1];
  const [x, y] = axes(svg, box, span, tall, t.metrics.intensity.label, t.metrics.attained.label, [true, true]);
  brushable(svg, box);
  const first = Math.max(span[0], Math.log10(1e3 / roof.gb_per_s) + tall[0]);
  const corners = [first, Math.log10(ridge), span[1]].filter((at, k, all) => k === 0 || at > all[0]);
  node("path", { d: corners.map((at, k) => `${k ? "L" : "M"}${x(at)} ${y(Math.log10(limit(Math.pow(10, at))))}`).join(""), class: "limit", fill: "none" }, svg);
  node("text", { x: box[2] - 4, y: y(Math.log10(roof.peak_tflops)) - 6, "text-anchor": "end" }, svg, `peak ${shown(roof.peak_tflops)} TFLOP/s, memory ${shown(roof.gb_per_s)} GB/s`);
  const share = merit(rows);
  for (const i of rows) {
    const px = t.metrics.intensity.of[i], py = t.metrics.attained.of[i];
    mark(svg, i, "circle", { cx: x(Math.log10(px)), cy: y(Math.log10(py)), r: 4, style: `fill: ${tone(share(i))}` }, `${shown(px)} FLOPs/byte, ${shown(py)} TFLOP/s: ${shown(100 * py / limit(px))} % of the roof`);
  }
};

drawn.compare = function (figure) {
  const p = data.parts, both = [choice(figure, "a"), choice(figure, "b")];
  const most = Math.max(...both.flatMap((n) => p.of[n])) || 1, longest = p.names.map((_, k) => Math.max(...both.map((n) => p.of[n][k])));
  const parts = p.names.map((_, k) => k).filter((k) => longest[k] > 0.001 * most);  // what neither takes time for is no row
  const { svg, width } = blank(figure, 66 + 22 * parts.length, "Predicted time per token of two trials, part by part"), x = scale(0, most, 120, width - 70);
  parts.forEach((k, row) => {
    const name = p.names[k], top = 8 + 22 * row;
    node("text", { x: 112, y: top + 13, "text-anchor": "end" }, svg, name);
    both.forEach((n, which) => {
      const bar = node("rect", { x: 120, y: top + 9 * which, width: Math.max(0, x(p.of[n][k]) - 120), height: 8, class: which ? "second" : "bar" }, svg);
      hover(bar, `trial ${n}, ${name}: ${shown(p.of[n][k])} µs a token`);
    });
    const less = p.of[both[1]][k] - p.of[both[0]][k];
    node("text", { x: Math.max(x(p.of[both[0]][k]), x(p.of[both[1]][k])) + 6, y: top + 13, class: "small" }, svg, Math.abs(less) < 0.001 * most ? "" : (less > 0 ? "+" : "") + shown(less) + " µs");
  });
  both.forEach((n, which) => {
    node("rect", { x: 120 + 150 * which, y: 22 * parts.length + 20, width: 10, height: 10, class: which ? "second" : "bar" }, svg);
    node("text", { x: 135 + 150 * which, y: 22 * parts.length + 29 }, svg, `${which ? "b" : "a"}: trial ${n}`);
  });
  const sum = (n) => p.of[n].reduce((s, v) => s + v, 0), row = (n) => data.trials.number.indexOf(Number(n));
  const different = Object.keys(data.trials.parameters).filter((name) => { const c = data.trials.parameters[name]; return c.of[row(both[0])] !== c.of[row(both[1])]; });
  const words = different.map((name) => { const c = data.trials.parameters[name]; return `${name} ${c.values[c.of[row(both[0])]]} → ${c.values[c.of[row(both[1])]]}`; });
  const changes = p.names.map((name, k) => [p.of[both[1]][k] - p.of[both[0]][k], name]).sort((u, v) => Math.abs(v[0]) - Math.abs(u[0])).slice(0, 3).filter(([by]) => Math.abs(by) > 0.01 * sum(both[0]));
  const said = both.map((n) => `trial ${n}: ${shown(sum(n))} µs a token predicted, ${shown(p.measured[n])} measured`).join("; ");
  figure.querySelector(".words").textContent = `${said}. From the first to the second: ${words.join(", ") || "no parameter differs"}. Most of the difference: ${changes.map(([by, name]) => `${name} ${by > 0 ? "+" : ""}${shown(by)} µs`).join(", ") || "none"}.`;
};
