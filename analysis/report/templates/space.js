// Figures of several objectives, of a step's parts, and of the whole space as the model sees it.
const PARTS = {  // "gradients" are kept in memory, "gradients µs" is the time of sending them
  "weights": "#4a7fb5", "secondary": "#8fbce2", "gradients": "#0072b2", "optimizer": "#009e73",
  "activations": "#e69f00", "working": "#f0e442", "logits": "#d55e00", "buffers": "#a3a9b3", "framework": "#c3c8cf",
  "forward backward": "#0072b2", "recompute": "#8fbce2", "head": "#4a7fb5", "tensor": "#e69f00", "pipeline": "#f0e442",
  "gradients µs": "#b5543a", "gather": "#d55e00", "context": "#7fb069", "experts": "#cc79a7", "offload": "#b2855c", "publish": "#f2b8a0", "bubble": "#c3c8cf", "launch": "#a3a9b3", "fixed": "#56627a",
};

drawn.front = function (figure) {
  const f = { ...data.front };
  for (const name of ["front", "rest"]) f[name] = f[name].filter((p) => keeps(p[0], ""));
  if (f.front.length < data.front.front.length) f.steps = f.front.map((p) => [p[2], p[1]]).sort((p, q) => (p[0] - q[0]) * (f.up[1] ? -1 : 1)).slice(0, f.steps.length);
  const { svg, width } = blank(figure, 380, "Pareto front: " + f.labels.slice(0, 2).join(" over "));
  const log = (k) => (v) => f.log[k] ? Math.log10(v) : v, all = f.front.concat(f.rest);
  const span = (k) => { const [low, high] = extent(all.map((p) => log(k)(p[k + 1]))), pad = (high - low) * 0.06; return [low - pad, high + pad]; };
  const box = [64, 26, width - 16, 330], xs = span(1), ys = span(0);
  const [x, y] = axes(svg, box, xs, ys, f.labels[1], f.labels[0], [f.log[1], f.log[0]]);
  brushable(svg, box);
  const at = (p) => ({ cx: x(log(1)(p[2])), cy: y(log(0)(p[1])) });
  const told = (p) => f.labels.map((label, k) => `${label}: ${shown(p[k + 1])}`).join("\n");
  for (const p of f.rest) mark(svg, place.get(p[0]), "circle", { ...at(p), r: 3.2, class: "dominated" }, told(p));
  if (f.steps.length) {  // what the front guarantees, from the best second objective towards worse ones
    const points = f.steps.map(([b, a]) => [x(log(1)(b)), y(log(0)(a))]);
    const path = points.map(([px, py], i) => i ? `H${px}V${py}` : `M${px} ${py}`).join("");
    node("path", { d: path + `H${f.up[1] ? box[0] : box[2]}`, class: "best" }, svg);
  }
  const [low, high] = extent(f.front.map((p) => p.length > 3 ? p[3] : null)), names = [];
  f.front.forEach((p, i) => {
    const style = p.length > 3 ? `fill: ${tone((p[3] - low) / (high - low || 1))}` : "";
    mark(svg, place.get(p[0]), "circle", { ...at(p), r: 5.5, class: "ok optimal", style }, told(p));
    const { cx, cy } = at(p), free = i < f.named && names.every(([nx, ny]) => Math.abs(nx - cx) > 30 || Math.abs(ny - cy) > 14);
    if (free) { names.push([cx, cy]); node("text", { x: cx, y: cy - 9, "text-anchor": "middle" }, svg, p[0]); }
  });
  if (width > 500) node("text", { x: box[2], y: 14, "text-anchor": "end" }, svg, `${shown(f.counts[0])} Pareto-optimal, ${shown(f.counts[1])} dominated`);
};

// The bars of the trials that are kept.
function only(stacks) {
  const rows = stacks.labels.map((_, i) => i).filter((i) => keeps(Number(stacks.labels[i].slice(6)), ""));
  const cut = (one) => ({ parts: Object.fromEntries(Object.entries(one.parts).map(([name, part]) => [name, rows.map((i) => part[i])])), measured: rows.map((i) => one.measured[i]) });
  return { ...stacks, labels: rows.map((i) => stacks.labels[i]), memory: cut(stacks.memory), time: cut(stacks.time) };
}

drawn.stacks = function (figure) {
  const s = only(data.stacks), place = drawingFor.width || figure.querySelector(".plot").clientWidth || 900, wide = place > 620;
  const rows = s.labels.length, names = [s.memory, s.time].map((one) => Object.keys(one.parts).length);
  const columns = place > 760 ? 3 : 2, legend = names.map((n) => 16 * Math.ceil((n + 1) / columns));
  const one = 22 * rows + 34, both = wide ? one + Math.max(...legend) : 2 * one + legend[0] + legend[1] + 16;
  const { svg, width } = blank(figure, both + 8, "Predicted memory and time per token of the best trials, part by part");
  const panel = (from, to, top, of, unit, label, limit) => {
    const sums = s.labels.map((_, i) => Object.values(of.parts).reduce((sum, part) => sum + part[i], 0));
    const most = Math.max(...sums, ...of.measured.map((v) => v || 0), limit || 0) * 1.04 || 1, x = scale(0, most, from, to);
    for (const at of ticks(0, most, 4)) {
      node("line", { x1: x(at), x2: x(at), y1: top, y2: top + 22 * rows, class: "grid" }, svg);
      node("text", { x: x(at), y: top + 22 * rows + 13, "text-anchor": "middle" }, svg, shown(at));
    }
    s.labels.forEach((name, i) => {
      let start = 0;
      const y = top + 22 * i + 3;
      node("text", { x: from - 6, y: y + 12, "text-anchor": "end" }, svg, name);
      for (const part in of.parts) {
        const bar = node("rect", { x: x(start), y, width: Math.max(0, x(start + of.parts[part][i]) - x(start)), height: 16, style: `fill: ${hue(part, unit)}` }, svg);
        hover(bar, `${name}, ${part}: ${shown(of.parts[part][i])} ${unit} of ${shown(sums[i])}`);
        start += of.parts[part][i];
      }
      if (of.measured[i] === null) return;
      const mx = x(of.measured[i]), my = y + 8;
      hover(node("path", { d: `M${mx} ${my - 6}L${mx + 5} ${my}L${mx} ${my + 6}L${mx - 5} ${my}Z`, class: "measured" }, svg), `${name}, measured: ${shown(of.measured[i])} ${unit}`);
    });
    if (limit) node("line", { x1: x(limit), x2: x(limit), y1: top, y2: top + 22 * rows, class: "limit" }, svg);
    node("text", { x: (from + to) / 2, y: top + 22 * rows + 28, "text-anchor": "middle", class: "name" }, svg, label);
    Object.keys(of.parts).forEach((part, k) => {
      const lx = from + (k % columns) * (to - from) / columns, ly = top + 22 * rows + 46 + 16 * Math.floor(k / columns);
      node("rect", { x: lx, y: ly - 9, width: 10, height: 10, style: `fill: ${hue(part, unit)}` }, svg);
      node("text", { x: lx + 14, y: ly }, svg, part);
    });
  };
  const left = 62, half = wide ? width / 2 : width;
  panel(left, half - 14, 4, s.memory, "GiB", `predicted memory, ${s.counted} (GiB)`, s.limit);
  panel(wide ? half + left : left, width - 14, wide ? 4 : one + legend[0] + 16, s.time, "µs", "predicted time per token (µs)");
};

function hue(part, unit) { return PARTS[`${part} ${unit}`] || PARTS[part] || "var(--gray)"; }

drawn.dependence = function (figure) {
  const d = data.dependence, names = [choice(figure, "of"), choice(figure, "by")], [a, b] = names.map((name) => ({ ...d[name], ...binned(d[name]) }));
  const cells = new Map();
  a.of.forEach((i, row) => {
    const key = b.of[row] + " " + i, cell = cells.get(key) || { sum: 0, count: 0 };
    cell.sum += a.shap[row]; cell.count += 1;
    cells.set(key, cell);
  });
  const { svg, width } = blank(figure, 330, `Effect of ${names[0]} by ${names[1]}`);
  const means = [...cells.values()].map((cell) => cell.sum / cell.count), [low, high] = extent(means.concat(0)), pad = (high - low) * 0.06;
  const box = [64, 26, width - 40 - 6 * Math.max(8, ...b.values.map((value) => value.length)), 280];
  const [, y] = axes(svg, box, [0, 1], [low - pad, high + pad], names[0], `effect of ${names[0]}, ${figure.dataset.unit}`, [], true);
  const x = scale(-0.4, a.values.length - 0.6, box[0], box[2]), side = x(1) - x(0);
  across(svg, a.values, x(0) - side / 2, side, box[3] + 15);
  node("line", { x1: box[0], x2: box[2], y1: y(0), y2: y(0), class: "even" }, svg);
  const most = Math.max(8, Math.floor((width - box[2] - 12) / 7)), by = names[1];
  node("text", { x: box[2] + 12, y: 18, class: "name" }, svg, by.length > most ? by.slice(0, most - 1) + "…" : by);
  const step = Math.min(18, 250 / b.values.length);
  b.values.forEach((value, j) => {
    const colour = tone(b.values.length > 1 ? j / (b.values.length - 1) : 0.5);
    const points = a.values.map((_, i) => [i, cells.get(j + " " + i)]).filter(([, cell]) => cell);
    node("path", { d: points.map(([i, cell], k) => `${k ? "L" : "M"}${x(i)} ${y(cell.sum / cell.count)}`).join(""), class: "line", style: `stroke: ${colour}` }, svg);
    for (const [i, cell] of points) {
      const dot = node("circle", { cx: x(i), cy: y(cell.sum / cell.count), r: 4, style: `fill: ${colour}` }, svg);
      hover(dot, `${names[0]} = ${a.values[i]}, ${names[1]} = ${value}: ${shown(cell.sum / cell.count)}\n${cell.count} configurations`);
    }
    if (step < 9 && j % Math.ceil(9 / step)) return;
    node("rect", { x: box[2] + 12, y: 26 + step * j, width: 9, height: 9, style: `fill: ${colour}` }, svg);
    node("text", { x: box[2] + 25, y: 34 + step * j }, svg, value);
  });
};

drawn.border = function (figure) {
  const d = data.border, names = [choice(figure, "across"), choice(figure, "up")], [a, b] = names.map((name) => d.parameters[name]);
  const cells = new Map(), cell = (i, j) => { const key = i + " " + j; if (!cells.has(key)) cells.set(key, { sum: 0, count: 0, oom: 0, ran: 0 }); return cells.get(key); };
  d.fits.forEach((p, row) => { const at = cell(a.of[row], b.of[row]); at.sum += p; at.count += 1; });
  const t = data.trials, tried = names.map((name) => t.parameters[name]);
  if (tried[0] && tried[1]) keptRows().forEach((row) => {
    const [i, j] = [a, b].map((c, k) => c.values.indexOf(tried[k].values[tried[k].of[row]]));
    if (i < 0 || j < 0) return;
    if (t.objective[row] !== null) cell(i, j).ran += 1;
    else if (t.kinds[t.kind[row]][0].endsWith("oom")) cell(i, j).oom += 1;
  });
  const one = Math.max(16, Math.min(34, 340 / b.values.length));
  const { svg, width } = blank(figure, 44 + one * b.values.length, "Share of configurations that fit, by two parameters");
  const left = Math.max(70, 14 + 6.4 * Math.max(...b.values.map((value) => value.length))), side = Math.min(110, (width - left - 10) / a.values.length);
  for (const [key, c] of cells) {
    const [i, j] = key.split(" ").map(Number), share = c.count ? c.sum / c.count : 0;
    const at = { x: left + side * i, y: 4 + one * (b.values.length - 1 - j), width: side - 1, height: one - 1 };
    const box = node("rect", { ...at, class: c.count ? "" : "idle", style: c.count ? `fill: ${tone(share)}` : "" }, svg);
    const seen = (c.oom ? ` ✕${c.oom}` : "") + (c.ran ? ` ●${c.ran}` : "");
    hover(box, `${names[0]} = ${a.values[i]}, ${names[1]} = ${b.values[j]}: ${c.count ? Math.round(100 * share) + " % expected to fit" : "none drawn"}\n${c.count} configurations; ${c.oom} trials out of memory, ${c.ran} ran`);
    const words = (c.count && side > 34 ? Math.round(100 * share) + " %" : "") + (side > 80 || side <= 34 ? seen : side > 50 && seen ? ` ${c.oom ? "✕" : ""}${c.ran ? "●" : ""}` : "");
    if (one > 13) node("text", { x: at.x + side / 2, y: at.y + one / 2 + 4, "text-anchor": "middle", style: `fill: ${!c.count ? "var(--text)" : share > 0.6 ? "#111" : "#fff"}; pointer-events: none` }, svg, words);
  }
  b.values.forEach((value, j) => node("text", { x: left - 6, y: 8 + one * (b.values.length - 1 - j) + one / 2, "text-anchor": "end" }, svg, value));
  across(svg, a.values, left, side, one * b.values.length + 18);
  node("text", { x: left, y: one * b.values.length + 36, class: "name" }, svg, names[0] + " →, " + names[1] + " ↑");
};

// The objective over two continuous parameters: a mean of the successes nearby by a Gaussian kernel,
// its levels as lines; empty where none is near.
const CELLS = 36, REACH = 0.07, LEAST = 0.3, LEVELS = 8;
function contours(figure) {
  const t = data.trials, names = ["across", "up"].map((name) => choice(figure, name)), columns = names.map((name) => t.parameters[name]), scales = columns.map(measured);
  const rows = keptRows().filter((i) => columns.every((c) => c.numbers[c.of[i]] !== null)), at = (i) => columns.map((c, k) => scales[k].of(c.of[i]));
  const done = rows.filter((i) => t.objective[i] !== null), share = merit(done), points = done.map((i) => [...at(i), share(i)]);
  const field = Array.from({ length: CELLS + 1 }, (_, j) => Array.from({ length: CELLS + 1 }, (_, i) => {
    let sum = 0, weight = 0;
    for (const [px, py, value] of points) {
      const w = Math.exp(-((px - i / CELLS) ** 2 + (py - j / CELLS) ** 2) / (2 * REACH * REACH));
      sum += w * value; weight += w;
    }
    return weight > LEAST ? sum / weight : null;
  }));
  const { svg, width } = blank(figure, 400, `Objective over ${names[0]} and ${names[1]}`);
  const box = [14 + 6.4 * Math.max(6, ...scales[1].ticks.map(([, text]) => text.length)), 14, Math.min(width - 12, 784), 350];
  const x = scale(0, 1, box[0], box[2]), y = scale(0, 1, box[3], box[1]);
  for (let j = 0; j < CELLS; j += 1) for (let i = 0; i < CELLS; i += 1) {
    const corners = [field[j][i], field[j][i + 1], field[j + 1][i + 1], field[j + 1][i]];
    if (!corners.includes(null)) node("rect", { x: x(i / CELLS), y: y((j + 1) / CELLS), width: x(1 / CELLS) - x(0) + 0.5, height: y(0) - y(1 / CELLS) + 0.5, style: `fill: ${tone(corners.reduce((s, v) => s + v, 0) / 4)}` }, svg);
  }
  for (let n = 1; n < LEVELS; n += 1) node("path", { d: level(field, n / LEVELS, x, y), class: "level" }, svg);
  let last = -Infinity;
  for (const [px, text] of scales[0].ticks) if (x(px) - 3.4 * text.length > last + 4) { last = x(px) + 3.4 * text.length; node("text", { x: x(px), y: box[3] + 15, "text-anchor": "middle" }, svg, text); }
  for (const [py, text] of scales[1].ticks) node("text", { x: box[0] - 6, y: y(py) + 4, "text-anchor": "end" }, svg, text);
  node("text", { x: box[0], y: box[3] + 34, class: "name" }, svg, names[0] + " →, " + names[1] + " ↑");
  for (const i of rows) {
    const [px, py] = at(i), failed = t.objective[i] === null;
    const dot = { cx: x(px), cy: y(py), r: failed ? 2.5 : 3, class: failed ? "fail-" + t.kinds[t.kind[i]][2] : "measured" };
    if (rows.length <= 1500) mark(svg, i, "circle", dot); else { node("circle", dot, svg); spot(svg, i, dot.cx, dot.cy); }
  }
  brushable(svg, box);
}

// The line of a level through a field, by marching squares.
function level(field, value, x, y) {
  let path = "";
  const place = ([i, j], [k, l]) => { const share = (value - field[j][i]) / (field[l][k] - field[j][i]); return `${x((i + share * (k - i)) / CELLS).toFixed(1)} ${y((j + share * (l - j)) / CELLS).toFixed(1)}`; };
  for (let j = 0; j < CELLS; j += 1) for (let i = 0; i < CELLS; i += 1) {
    const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]], over = corners.map(([k, l]) => field[l][k]);
    if (over.includes(null)) continue;
    const cut = corners.map((corner, k) => [corner, corners[(k + 1) % 4]]).filter((_, k) => (over[k] < value) !== (over[(k + 1) % 4] < value)).map((ends) => place(...ends));
    for (let k = 0; k + 1 < cut.length; k += 2) path += `M${cut[k]}L${cut[k + 1]}`;
  }
  return path || "M0 0";
}
