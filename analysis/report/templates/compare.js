// Several runs: the best so far of each; and what their own pages say mattered, and of their fronts.
const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8f98"];
const hue = (k) => HUES[k % HUES.length];

function named(svg, left, top, words) {
  words.forEach((text, k) => {
    node("rect", { x: left, y: top + 18 * k, width: 10, height: 10, style: `fill: ${hue(k)}` }, svg);
    node("text", { x: left + 16, y: top + 9 + 18 * k }, svg, text);
  });
}

function courses(figure) {
  const by = figure.querySelector("select").value, names = { trials: "trials that have ended", time: "search time (h)", nodes: "node-hours" };
  const { svg, width } = blank(figure, 330 + 18 * data.runs.length, "Best objective so far of each run");
  const every = data.runs.flatMap((run) => run.best), [low, high] = extent(every), pad = (high - low) * 0.06;
  const last = Math.max(1e-9, ...data.runs.flatMap((run) => run[by])), box = [64, 26, width - 16, 280];
  const [x, y] = axes(svg, box, [0, last], [low - pad, high + pad], names[by], data.label);
  data.runs.forEach((run, k) => {
    const at = run[by].map((px, i) => [x(px), run.best[i]]).filter(([, best]) => best !== null).map(([px, best]) => [px, y(best)]);
    const line = node("path", { d: at.map(([px, py], i) => i ? `H${px}V${py}` : `M${px} ${py}`).join("") || "M0 0", class: "line", style: `stroke: ${hue(k)}` }, svg);
    hover(line, run.name);
  });
  named(svg, box[0], 326, data.runs.map((run) => run.name));
}

const pages = data.runs.map(() => null);  // of each run what its page says, once it is read
const MOST = 12;  // parameters

function importance(figure) {
  const shares = pages.map((page) => {
    const rows = page && (page.model || page.trials) || [], sum = rows.reduce((s, row) => s + row.mean, 0) || 1;
    return new Map(rows.map((row) => [row.name, 100 * row.mean / sum]));
  });
  const most = (name) => Math.max(...shares.map((own) => own.get(name) || 0));
  const names = [...new Set(shares.flatMap((own) => [...own.keys()]))].sort((a, b) => most(b) - most(a)).slice(0, MOST);
  const one = 10 + 9 * data.runs.length, { svg, width } = blank(figure, 40 + one * names.length + 18 * data.runs.length, "Share of each parameter in the effects, by run");
  const left = Math.min(width * 0.4, 16 + 6.8 * Math.max(4, ...names.map((name) => name.length))), x = scale(0, Math.max(1, ...names.map(most)), left, width - 56);
  names.forEach((name, i) => {
    node("text", { x: left - 8, y: 4 + one * (i + 0.5), "text-anchor": "end", class: "name" }, svg, name);
    shares.forEach((own, k) => {
      if (!own.has(name)) return;
      const bar = node("rect", { x: left, y: 4 + one * i + 9 * k, width: Math.max(1, x(own.get(name)) - left), height: 8, style: `fill: ${hue(k)}` }, svg);
      hover(bar, `${data.runs[k].name}: ${name} ${shown(own.get(name))} %`);
      node("text", { x: x(own.get(name)) + 5, y: 12 + one * i + 9 * k, class: "small" }, svg, `${Math.round(own.get(name))} %`);
    });
  });
  const by = (page) => !page ? "its page is being made" : page.missing ? "it has no page" : page.model ? "by its cost model" : page.trials ? "by its trials alone" : "too few trials to tell";
  named(svg, left, 16 + one * names.length, data.runs.map((run, k) => `${run.name}: ${by(pages[k])}`));
}

function fronts(figure) {
  const first = pages.find((page) => page && page.front), rows = pages.map((page) => page && page.front && String(page.front.labels) === String(first.front.labels) ? page.front.front : []);
  figure.closest("section").hidden = !first;
  if (!first) return;
  const { svg, width } = blank(figure, 330 + 18 * data.runs.length, "Pareto front of each run");
  const log = first.front.log, to = (v, axis) => log[axis] ? Math.log10(v) : v, box = [64, 26, width - 16, 280], every = rows.flat();
  const spans = [2, 1].map((column) => { const [low, high] = extent(every.map((row) => to(row[column], column - 1))), pad = (high - low) * 0.06; return [low - pad, high + pad]; });
  const [x, y] = axes(svg, box, ...spans, first.front.labels[1], first.front.labels[0], [log[1], log[0]]);
  rows.forEach((points, k) => points.forEach(([trial, a, b]) => {
    hover(node("circle", { cx: x(to(b, 1)), cy: y(to(a, 0)), r: 4.5, style: `fill: ${hue(k)}` }, svg), `${data.runs[k].name}, trial ${trial}\n${first.front.labels[0]}: ${shown(a)}\n${first.front.labels[1]}: ${shown(b)}`);
  }));
  named(svg, box[0], 326, data.runs.map((run) => run.name));
}

async function read(k, tries = 600) {
  const answer = await fetch(encodeURIComponent(data.runs[k].name) + "/report/").catch(() => null);
  if (!answer) return;  // the server has ended
  const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("data");
  if (!found && answer.ok && tries > 1) { setTimeout(() => read(k, tries - 1), 1000); return; }
  const page = found && JSON.parse(found.textContent);
  pages[k] = !page ? { missing: true } : { model: page["effects-model"], trials: page["effects-trials"], front: page.front };
  redraw();
}

const figures = [courses, importance, fronts].map((draw) => [draw, document.getElementById("figure-" + draw.name)]);
function redraw() { for (const [draw, figure] of figures) draw(figure); }
document.querySelector("#figure-courses select").addEventListener("change", redraw);
addEventListener("resize", redraw);
redraw();
data.runs.forEach((_, k) => read(k));
