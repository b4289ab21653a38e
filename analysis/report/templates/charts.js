// The page's figures, each drawn into its place from the record in `data`.
const drawn = {};  // by the figure's name: draws it again, as wide as the page is now

function choice(figure, name) { return figure.querySelector(`select[name=${name}]`).value; }

drawn.history = function (figure) {
  const t = data.trials, by = choice(figure, "by");
  const xs = by === "trials" ? t.number.map((_, i) => i + 1) : by === "time" ? t.time_h : t.node_hours;
  const names = { trials: "trials that have ended", time: "search time (h)", nodes: "node-hours" };
  const failed = t.kinds.map((kind, k) => [kind, t.number.map((_, i) => i).filter((i) => t.kind[i] === k && t.objective[i] === null)]).filter(([, rows]) => rows.length);
  const height = 312 + 18 * failed.length;
  const { svg, width } = blank(figure, height, "Objective of every trial and the best so far");
  const box = [64, 26, width - 12, 250];
  const every = t.objective.concat(Object.values(t.repeats).flat());
  let [low, high] = extent(every);
  const pad = (high - low) * 0.06;
  const [x, y] = axes(svg, [box[0], box[1], box[2], box[3]], [0, xs[xs.length - 1] || 1], [low - pad, high + pad], "", t.label);
  let best = null, path = "";
  t.objective.forEach((value, i) => {
    if (value === null || t.early.includes(i)) return;
    if (best === null || (t.maximize ? value > best : value < best)) {
      path += best === null ? `M${x(xs[i])} ${y(value)}` : `H${x(xs[i])}V${y(value)}`;
      best = value;
    }
  });
  const small = t.number.length > 1500;
  const early = new Set(t.early);
  t.objective.forEach((value, i) => {
    if (value === null) return;
    for (const again of t.repeats[i] || []) node("line", { x1: x(xs[i]) - 4, x2: x(xs[i]) + 4, y1: y(again), y2: y(again), class: "repeat" }, svg);
    const at = { cx: x(xs[i]), cy: y(value), r: small ? 1.8 : 3.6, class: early.has(i) ? "early" : "ok" };
    if (small) node("circle", at, svg); else mark(svg, i, "circle", at, early.has(i) ? "stopped early" : "");
  });
  if (path) node("path", { d: path + `H${box[2]}`, class: "best" }, svg);
  failed.forEach(([kind, rows], k) => {
    const top = 280 + 18 * k, bins = new Map();
    for (const i of rows) {  // many of them in one place are one mark, the darker the more
      const cell = Math.round(x(xs[i]) / 5) * 5;
      bins.set(cell, (bins.get(cell) || []).concat(i));
    }
    for (const [at, those] of bins) {
      const made = node("rect", { x: at - 2, y: top - 5, width: 4, height: 10, class: "fail-" + kind[2], opacity: Math.min(1, 0.45 + 0.1 * those.length) }, svg);
      hover(made, those.length === 1 ? told(those[0]) : `${those.length} trials: ${kind[0]}, ${kind[1]}`);
    }
    node("text", { x: box[0] - 6, y: top + 4, "text-anchor": "end" }, svg, `${kind[0]} ${rows.length}`);
  });
  node("text", { x: (box[0] + box[2]) / 2, y: height - 2, "text-anchor": "middle", class: "name" }, svg, names[by]);
};

drawn.expected = function (figure) {
  const t = data.trials, rows = Object.keys(t.expected).map(Number).filter((i) => t.objective[i] !== null);
  const { svg, width } = blank(figure, 340, "Measured over expected objective");
  const size = Math.min(width - 90, 460), all = rows.flatMap((i) => [t.objective[i], ...t.expected[i]]);
  const range = extent(all), pad = (range[1] - range[0]) * 0.04, span = [range[0] - pad, range[1] + pad];
  const [x, y] = axes(svg, [64, 26, 64 + size, 290], span, span, `expected before the trial ran: ${t.label}`, "measured");
  node("line", { x1: x(span[0]), y1: y(span[0]), x2: x(span[1]), y2: y(span[1]), class: "even" }, svg);
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
  const end = n.end_s / 3600 || 1, box = [lanes ? 74 : 64, 20, width - 12, height - 34];
  if (!lanes) {
    const [x, y] = axes(svg, box, [0, end], [0, n.count], "search time (h)", "busy nodes");
    let path = `M${x(0)} ${y(0)}`;
    n.at_s.forEach((at, i) => { path += `L${x(at / 3600)} ${y(n.busy[i])}`; });
    node("path", { d: path + `V${y(0)}Z`, class: "busy" }, svg);
    return;
  }
  const [x] = axes(svg, box, [0, end], [0, 1], "search time (h)", "");
  svg.querySelectorAll("text[text-anchor=end]").forEach((text) => text.remove());
  n.names.forEach((name, lane) => {
    node("rect", { x: box[0], y: box[1] + 15 * lane + 2, width: box[2] - box[0], height: 11, class: "idle" }, svg);
    node("text", { x: box[0] - 6, y: box[1] + 15 * lane + 11, "text-anchor": "end" }, svg, name.slice(-10));
  });
  for (const [number, where, from, to, kind, colour] of n.bars) for (const lane of where) {
    const bar = node("rect", { x: x(from / 3600), y: box[1] + 15 * lane + 2, width: Math.max(1, x(to / 3600) - x(from / 3600) - 0.6), height: 11, class: "fail-" + colour + " mark" }, svg);
    hover(bar, `trial ${number} on ${n.names[lane]}: ${kind}\n${shown(to - from)} s`);
    bar.addEventListener("click", () => visit(number));
  }
};

drawn.effects = function (figure) {
  const rows = data["effects-" + figure.dataset.of], one = 34;
  const { svg, width } = blank(figure, 50 + one * rows.length, "Mean absolute SHAP value of each parameter");
  const wide = width > 620, left = Math.min(150, width * 0.3), middle = wide ? width * 0.5 : width - 14;
  const top = Math.max(...rows.map((r) => Math.max(r.high, r.mean))) || 1;
  const x = scale(0, top, left, middle - 20);
  const far = Math.max(...rows.flatMap((r) => r.values.map(([, v]) => Math.abs(v)))) || 1;
  const z = scale(-far, far, middle + 26, width - 26);
  node("text", { x: left, y: 14, class: "name" }, svg, "mean |SHAP|, " + figure.dataset.unit);
  if (wide) {
    node("text", { x: z(0), y: 14, class: "name", "text-anchor": "middle" }, svg, "effect of each value, " + figure.dataset.unit);
    node("line", { x1: z(0), x2: z(0), y1: 22, y2: 30 + one * rows.length, class: "even" }, svg);
    for (const end of [-far, far]) node("text", { x: z(end), y: 44 + one * rows.length, "text-anchor": "middle" }, svg, (end > 0 ? "+" : "") + shown(end));
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
      if (z(effect) - last > 6 * value.length + 6) { node("text", { x: z(effect), y: y - 8, "text-anchor": "middle", class: "small" }, svg, value); last = z(effect); }
    }
  });
};

// From dark blue by green to yellow (viridis): the same order for every kind of sight.
function tone(share) {
  const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [222, 210, 50]];
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at));
  return `rgb(${stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (at - i))).join(",")})`;
}

function successes() { return data.trials.objective.map((_, i) => i).filter((i) => data.trials.objective[i] !== null); }

drawn.parallel = function (figure) {
  const t = data.trials, names = Object.keys(t.parameters);
  let rows = successes().sort((a, b) => (t.objective[a] - t.objective[b]) * (t.maximize ? 1 : -1));
  if (rows.length > 400) rows = rows.filter((_, i) => i % Math.ceil(rows.length / 200) === 0 || i >= rows.length - 200);
  const { svg, width } = blank(figure, 300, "Parameters of every success, coloured by the objective");
  const [low, high] = extent(t.objective), columns = names.length;
  const x = scale(0, columns, 34, width - 40), y = scale(low, high, 250, 34);
  const place = (name, i) => { const c = t.parameters[name]; return scale(0, Math.max(1, c.values.length - 1), 250, 34)(c.of[i]); };
  for (const i of rows) {
    const points = names.map((name, k) => `${x(k)} ${place(name, i)}`).concat(`${x(columns)} ${y(t.objective[i])}`);
    const share = (t.objective[i] - low) / (high - low || 1);
    mark(svg, i, "path", { d: "M" + points.join("L"), class: "thread", style: `stroke: ${tone(t.maximize ? share : 1 - share)}` });
  }
  names.concat(t.unit).forEach((name, k) => {
    node("line", { x1: x(k), x2: x(k), y1: 34, y2: 250, class: "rail" }, svg);
    const label = node("text", { x: x(k), y: k % 2 ? 284 : 270, "text-anchor": "middle", class: "name" }, svg, name.slice(0, 16));
    if (name.length > 16) hover(label, name);
    if (k === columns) for (const at of [low, high]) node("text", { x: x(k) + 4, y: y(at) + (at === low ? 12 : -4), "text-anchor": "middle" }, svg, shown(at));
    else {
      const values = t.parameters[name].values, each = scale(0, Math.max(1, values.length - 1), 250, 34);
      values.forEach((value, v) => { if (values.length < 9 || v === 0 || v === values.length - 1) node("text", { x: x(k) + 4, y: each(v) - 3, class: "small" }, svg, value.slice(0, 9)); });
    }
  });
};

drawn.heat = function (figure) {
  const t = data.trials, a = t.parameters[choice(figure, "across")], b = t.parameters[choice(figure, "up")];
  const cells = new Map();
  t.number.forEach((_, i) => {
    const key = a.of[i] + " " + b.of[i], cell = cells.get(key) || { best: null, count: 0, failed: 0 };
    cell.count += 1;
    if (t.objective[i] === null) cell.failed += 1;
    else if (cell.best === null || (t.maximize ? t.objective[i] > t.objective[cell.best] : t.objective[i] < t.objective[cell.best])) cell.best = i;
    cells.set(key, cell);
  });
  const rows = b.values.length, one = Math.max(14, Math.min(34, 340 / rows));
  const { svg, width } = blank(figure, 44 + one * rows, "Best objective by two parameters");
  const left = 70, side = Math.min(90, (width - left - 10) / a.values.length), [low, high] = extent(t.objective);
  for (const [key, cell] of cells) {
    const [i, j] = key.split(" ").map(Number), share = cell.best === null ? 0 : (t.objective[cell.best] - low) / (high - low || 1);
    const at = { x: left + side * i, y: 4 + one * (rows - 1 - j), width: side - 1, height: one - 1 };
    const box = node("rect", { ...at, class: cell.best === null ? "fail-red" : "", style: cell.best === null ? "" : `fill: ${tone(t.maximize ? share : 1 - share)}` }, svg);
    hover(box, `${cell.count} trials, ${cell.failed} failed` + (cell.best === null ? "" : `; best: ${told(cell.best)}`));
    if (cell.best !== null && side > 52 && one > 15) node("text", { x: at.x + side / 2, y: at.y + one / 2 + 4, "text-anchor": "middle", style: `fill: ${(t.maximize ? share : 1 - share) > 0.6 ? "#111" : "#fff"}` }, svg, shown(t.objective[cell.best]));
  }
  b.values.forEach((value, j) => { if (one > 12) node("text", { x: left - 6, y: 8 + one * (rows - 1 - j) + one / 2, "text-anchor": "end" }, svg, value.slice(0, 9)); });
  const every = Math.ceil(28 / side);
  a.values.forEach((value, i) => { if (i % every === 0) node("text", { x: left + side * (i + 0.5), y: one * rows + 18, "text-anchor": "middle" }, svg, value.slice(0, 10)); });
  node("text", { x: left, y: one * rows + 36, class: "name" }, svg, choice(figure, "across") + " →, " + choice(figure, "up") + " ↑");
};

drawn.compare = function (figure) {
  const p = data.parts, both = [choice(figure, "a"), choice(figure, "b")];
  const { svg, width } = blank(figure, 66 + 22 * p.names.length, "Predicted time per token of two trials, part by part");
  const most = Math.max(...both.flatMap((n) => p.of[n])) || 1, x = scale(0, most, 120, width - 70);
  p.names.forEach((name, k) => {
    const top = 8 + 22 * k;
    node("text", { x: 112, y: top + 13, "text-anchor": "end" }, svg, name);
    both.forEach((n, which) => {
      const bar = node("rect", { x: 120, y: top + 9 * which, width: Math.max(0, x(p.of[n][k]) - 120), height: 8, class: which ? "second" : "bar" }, svg);
      hover(bar, `trial ${n}, ${name}: ${shown(p.of[n][k])} µs a token`);
    });
    const less = p.of[both[1]][k] - p.of[both[0]][k];
    node("text", { x: Math.max(x(p.of[both[0]][k]), x(p.of[both[1]][k])) + 6, y: top + 13, class: "small" }, svg, Math.abs(less) < 0.001 * most ? "" : (less > 0 ? "+" : "") + shown(less) + " µs");
  });
  both.forEach((n, which) => {
    node("rect", { x: 120 + 150 * which, y: 22 * p.names.length + 20, width: 10, height: 10, class: which ? "second" : "bar" }, svg);
    node("text", { x: 135 + 150 * which, y: 22 * p.names.length + 29 }, svg, `trial ${n}${which ? ", second" : ", first"}`);
  });
  const sum = (n) => p.of[n].reduce((s, v) => s + v, 0), row = (n) => data.trials.number.indexOf(Number(n));
  const different = Object.keys(data.trials.parameters).filter((name) => { const c = data.trials.parameters[name]; return c.of[row(both[0])] !== c.of[row(both[1])]; });
  const words = different.map((name) => { const c = data.trials.parameters[name]; return `${name} ${c.values[c.of[row(both[0])]]} → ${c.values[c.of[row(both[1])]]}`; });
  const changes = p.names.map((name, k) => [p.of[both[1]][k] - p.of[both[0]][k], name]).sort((u, v) => Math.abs(v[0]) - Math.abs(u[0])).slice(0, 3).filter(([by]) => Math.abs(by) > 0.01 * sum(both[0]));
  const said = both.map((n) => `trial ${n}: ${shown(sum(n))} µs a token predicted, ${shown(p.measured[n])} measured`).join("; ");
  figure.querySelector(".words").textContent = `${said}. From the first to the second: ${words.join(", ") || "no parameter differs"}. Most of the difference: ${changes.map(([by, name]) => `${name} ${by > 0 ? "+" : ""}${shown(by)} µs`).join(", ") || "none"}.`;
};
