// The best so far of several runs.
const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8f98"];

function courses(figure) {
  const by = figure.querySelector("select").value, names = { trials: "trials that have ended", time: "search time (h)", nodes: "node-hours" };
  const { svg, width } = blank(figure, 330 + 18 * data.runs.length, "Best objective so far of each run");
  const every = data.runs.flatMap((run) => run.best), [low, high] = extent(every), pad = (high - low) * 0.06;
  const last = Math.max(1e-9, ...data.runs.flatMap((run) => run[by])), box = [64, 26, width - 16, 280];
  const [x, y] = axes(svg, box, [0, last], [low - pad, high + pad], names[by], data.label);
  data.runs.forEach((run, k) => {
    const at = run[by].map((px, i) => [x(px), run.best[i]]).filter(([, best]) => best !== null).map(([px, best]) => [px, y(best)]);
    const line = node("path", { d: at.map(([px, py], i) => i ? `H${px}V${py}` : `M${px} ${py}`).join("") || "M0 0", class: "line", style: `stroke: ${HUES[k % HUES.length]}` }, svg);
    hover(line, run.name);
    node("rect", { x: box[0], y: 326 + 18 * k, width: 10, height: 10, style: `fill: ${HUES[k % HUES.length]}` }, svg);
    node("text", { x: box[0] + 16, y: 335 + 18 * k }, svg, run.name);
  });
}
const figure = document.getElementById("figure-courses");
figure.querySelector("select").addEventListener("change", () => courses(figure));
addEventListener("resize", () => courses(figure));
courses(figure);
