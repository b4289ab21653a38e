// Throughput beside ideal scaling, and the efficiency, by nodes, with 95 % intervals.
drawn.scaling = function (figure) {
  const s = data.scaling, { svg, width } = blank(figure, 300, s.title), half = width / 2, lg = Math.log10;
  const across = extent(s.nodes.map(lg)), speeds = extent([...s.low, ...s.high, ...s.ideal].map(lg));
  const panel = (box, span, log, label, middle, low, high, even) => {
    const to = log ? lg : (v) => v, [x, y] = axes(svg, box, across, span, "nodes", label, [true, log], true);
    const points = (values) => s.nodes.map((n, i) => `${x(lg(n))} ${y(to(values[i]))}`);
    node("path", { d: `M${points(low).join("L")}L${points(high).reverse().join("L")}Z`, class: "ok", opacity: 0.15 }, svg);
    node("path", { d: "M" + points(even).join("L"), class: "even", fill: "none" }, svg);
    node("path", { d: "M" + points(middle).join("L"), class: "line", style: "stroke: var(--ok)" }, svg);
    let last = -Infinity;
    s.nodes.forEach((n, i) => {
      const at = x(lg(n)), words = shown(n);
      node("circle", { cx: at, cy: y(to(middle[i])), r: 3.6, class: "ok" }, svg);
      if (at - 3.4 * words.length < last + 4) return;
      last = at + 3.4 * words.length;
      node("text", { x: at, y: box[3] + 15, "text-anchor": "middle" }, svg, words);
    });
  };
  panel([64, 26, half - 16, 250], speeds, true, "tokens/s", s.tokens, s.low, s.high, s.ideal);
  panel([half + 50, 26, width - 16, 250, half], [0, Math.max(110, ...s.efficiency_high)], false, "efficiency (%)", s.efficiency, s.efficiency_low, s.efficiency_high, s.nodes.map(() => 100));
};
