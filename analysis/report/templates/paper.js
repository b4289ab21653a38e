// Figures for a paper: as wide as a column (3.3 in) or a page (6.9 in), text of 8 pt, dark on white,
// with a title and a legend, as SVG and as PDF.
const UNITS = 99;  // of a figure per inch: its text of 11 units is 8 pt
const LEGENDS = {
  history: [["ok", "trial"], ["best", "best so far"], ["fail-red", "failure by its configuration"], ["fail-gray", "other failure"]],
  expected: [["ok", "trial"], ["interval", "95 % interval"], ["even", "as expected"]],
  front: [["ok optimal", "Pareto-optimal"], ["dominated", "dominated"]],
  scaling: [["ok", "predicted, 95 % interval"], ["even", "ideal"]],
  effects: [["bar", "mean |SHAP|"], ["whisker", "its spread"]],
  slices: [["ok", "trial"], ["fail-red", "failure"]],
  edf: [["ok", "trial"]],
  parallel: [["tone1", "best"], ["tone0", "worst"]],
  heat: [["tone1", "best"], ["tone0", "worst"], ["fail-red", "all failed"]],
  border: [["tone1", "fits"], ["tone0", "does not fit"]],
  roofline: [["tone1", "best trial"], ["tone0", "worst trial"], ["limit", "roof"]],
  stacks: [["measured", "measured"]],
  nodes: [["fail-green", "success"], ["fail-red", "failure by its configuration"], ["fail-gray", "other"]],
};
const LINES = ["best", "even", "limit", "interval", "whisker"];

function legend(svg, name, top, width) {
  let x = 4, y = top;
  for (const [kind, words] of LEGENDS[name] || []) {
    const wide = 26 + 6 * words.length;
    if (x > 4 && x + wide > width) { x = 4; y += 14; }
    if (LINES.includes(kind)) node("line", { x1: x, x2: x + 14, y1: y - 4, y2: y - 4, class: kind }, svg);
    else node("rect", { x: x + 2, y: y - 9, width: 9, height: 9, ...(kind.startsWith("tone") ? { style: `fill: ${tone(Number(kind[4]))}` } : { class: kind }) }, svg);
    node("text", { x: x + 18, y }, svg, words);
    x += wide + 8;
  }
  return LEGENDS[name] ? y + 6 : top - 12;
}

// The figure as an SVG element of its own, `inches` wide.
function onPaper(figure, inches) {
  const root = document.documentElement, theme = root.dataset.theme, name = figure.dataset.draw;
  root.dataset.theme = "light";
  drawingFor.width = Math.round(UNITS * inches);
  drawn[name](figure);
  const svg = figure.querySelector("svg"), width = drawingFor.width, below = Number(svg.getAttribute("height")) + 14;
  const height = legend(svg, name, below, width);
  node("text", { x: 4, y: -6, class: "title" }, svg, svg.getAttribute("aria-label"));
  const made = standalone(svg);
  made.setAttribute("viewBox", `0 -18 ${width} ${height + 18}`);
  made.setAttribute("width", `${inches}in`);
  made.setAttribute("height", `${((height + 18) / UNITS).toFixed(3)}in`);
  made.querySelectorAll("text").forEach((text) => text.setAttribute("font-size", "11px"));
  drawingFor.width = 0;
  if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  drawn[name](figure);
  return made;
}

// Widths of Helvetica's signs from the space on, in 1/1000 of the text's size (Adobe's metrics).
const WIDTHS = [278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584];
const ems = (text) => [...text].reduce((sum, sign) => sum + (WIDTHS[sign.charCodeAt(0) - 32] || 556), 0) / 1000;
const SIGNS = { "–": "\\226", "—": "\\227", "…": "\\205", "’": "\\222", "→": "to", "↑": "(up)", "≥": ">=", "≤": "<=", "✕": "x", "●": "o" };

function words(text) {  // in PDF's WinAnsi encoding
  return [...text].map((c) => SIGNS[c] ? SIGNS[c].replace(/[()]/g, "\\$&") : "()\\".includes(c) ? "\\" + c : c.charCodeAt(0) > 126 ? c.charCodeAt(0) < 256 ? "\\" + c.charCodeAt(0).toString(8) : "?" : c).join("");
}

function outline(element) {
  const n = (name) => Number(element.getAttribute(name) || 0);
  if (element.tagName === "line") return `${n("x1")} ${n("y1")} m ${n("x2")} ${n("y2")} l`;
  if (element.tagName === "rect") return `${n("x")} ${n("y")} ${n("width")} ${n("height")} re`;
  if (element.tagName === "circle") {
    const [x, y, r, k] = [n("cx"), n("cy"), n("r"), 0.5523 * n("r")];
    return `${x + r} ${y} m ${x + r} ${y + k} ${x + k} ${y + r} ${x} ${y + r} c ${x - k} ${y + r} ${x - r} ${y + k} ${x - r} ${y} c ${x - r} ${y - k} ${x - k} ${y - r} ${x} ${y - r} c ${x + k} ${y - r} ${x + r} ${y - k} ${x + r} ${y} c h`;
  }
  let at = [0, 0];
  return [...element.getAttribute("d").matchAll(/([MLHVZ])([^MLHVZ]*)/g)].map(([, command, rest]) => {
    const given = rest.trim().split(/[\s,]+/).map(Number);
    if (command === "Z") return "h";
    at = command === "H" ? [given[0], at[1]] : command === "V" ? [at[0], given[0]] : given;
    return `${at[0]} ${at[1]} ${command === "M" ? "m" : "l"}`;
  }).join(" ");
}

// The text of a PDF of one page with what our figures are made of: lines, boxes, circles, paths and words.
function pdfOf(svg) {
  const [, top, width, height] = svg.getAttribute("viewBox").split(" ").map(Number), k = 72 / UNITS, states = new Map();
  const rgb = (colour) => (colour.match(/[\d.]+/g) || ["0", "0", "0"]).slice(0, 3).map((c) => (c / 255).toFixed(3)).join(" ");
  const body = [`${k} 0 0 ${-k} 0 ${k * (height + top)} cm`];
  for (const element of svg.querySelectorAll("line, rect, circle, path, text")) {
    const get = (name, otherwise) => element.getAttribute(name) || otherwise, all = Number(get("opacity", 1));
    const alpha = [all * Number(get("fill-opacity", 1)), all * Number(get("stroke-opacity", 1))].map((a) => a.toFixed(2)).join(" ");
    if (!states.has(alpha)) states.set(alpha, `G${states.size}`);
    const fill = get("fill", "none"), stroke = get("stroke", "none"), filled = fill !== "none" && element.tagName !== "line";
    body.push(`q /${states.get(alpha)} gs`);
    if (element.tagName === "text" && !element.textContent) { body.push("Q"); continue; }
    if (element.tagName === "text") {
      const text = element.textContent, size = 11;
      const shift = { middle: 0.5, end: 1 }[get("text-anchor", "")] || 0, x = Number(get("x", 0)) - shift * size * ems(text);
      body.push(`${rgb(fill)} rg BT /F1 ${size} Tf 1 0 0 -1 ${x.toFixed(2)} ${get("y", 0)} Tm (${words(text)}) Tj ET`);
    } else if (filled || stroke !== "none") {
      const dashes = get("stroke-dasharray", "none");
      if (filled) body.push(`${rgb(fill)} rg`);
      if (stroke !== "none") body.push(`${rgb(stroke)} RG ${parseFloat(get("stroke-width", 1))} w [${dashes === "none" ? "" : dashes.match(/[\d.]+/g).join(" ")}] 0 d`);
      body.push(`${outline(element)} ${filled && stroke !== "none" ? "B" : filled ? "f" : "S"}`);
    }
    body.push("Q");
  }
  const stream = body.join("\n"), points = (x) => (k * x).toFixed(2);
  const alphas = [...states].map(([alpha, name]) => `/${name} << /ca ${alpha.split(" ")[0]} /CA ${alpha.split(" ")[1]} >>`).join(" ");
  const objects = [
    "<< /Type /Catalog /Pages 2 0 R >>",
    "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 ${points(width)} ${points(height)}] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> /ExtGState << ${alphas} >> >> >>`,
    `<< /Length ${stream.length} >>\nstream\n${stream}\nendstream`,
    "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
  ];
  let text = "%PDF-1.4\n";
  const offsets = objects.map((object, i) => { const at = text.length; text += `${i + 1} 0 obj\n${object}\nendobj\n`; return at; });
  const end = text.length;
  text += `xref\n0 ${objects.length + 1}\n0000000000 65535 f \n${offsets.map((at) => `${String(at).padStart(10, "0")} 00000 n \n`).join("")}`;
  return text + `trailer\n<< /Size ${objects.length + 1} /Root 1 0 R >>\nstartxref\n${end}\n%%EOF\n`;
}

// "3.3 svg" and the like, as a Blob.
function forPaper(figure, choice) {
  const [inches, as] = choice.split(" "), svg = onPaper(figure, Number(inches));
  const [text, type] = as === "pdf" ? [pdfOf(svg), "application/pdf"] : [new XMLSerializer().serializeToString(svg), "image/svg+xml"];
  return new Blob([text], { type });
}
