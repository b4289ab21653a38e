// Drawing: SVG elements, axes, a tip beside the pointer. Colours are the page's own, so that a
// figure follows its theme.
"use strict";
const NS = document.getElementById("svg").namespaceURI;
const tip = document.getElementById("tip");

function node(name, attributes, parent, text) {
  const made = document.createElementNS(NS, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

function shown(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  if (size && (size < 1e-4 || size >= 1e12)) return Number(x.toPrecision(4)).toExponential();
  const digits = size ? Math.max(0, 3 - Math.floor(Math.log10(size))) : 0;
  return Number(x.toFixed(digits)).toLocaleString("en", { maximumFractionDigits: 8 });
}

// Round numbers between two, no nearer to each other than `least`.
function ticks(low, high, count, least = 0) {
  const rough = Math.max(least, (high - low) / count) || 1, power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = power * [1, 2, 5, 10].find((s) => s * power >= rough);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) found.push(x);
  return found.length > 1 || step <= least || count > 20 ? found : ticks(low, high, 2 * count, least);
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const x of values) if (x !== null) { if (x < low) low = x; if (x > high) high = x; }
  return low > high ? [0, 1] : low === high ? [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1] : [low, high];
}

// The unit in which so many hours are shown: its name, and how many of it an hour has.
function clock(hours) { return hours < 0.1 ? ["s", 3600] : hours < 3 ? ["min", 60] : ["h", 1]; }

function scale(low, high, from, to) { return (x) => from + (x - low) / (high - low || 1) * (to - from); }

const drawingFor = { width: 0 };  // pixels of every figure, on paper; 0: as wide as its place

// An empty figure of the height asked for, as wide as its place: { svg, width, height }.
function blank(figure, height, label) {
  const place = figure.querySelector(".plot");
  place.textContent = "";
  const width = drawingFor.width || Math.max(280, Math.min(1120, place.clientWidth || 900));
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, place);
  return { svg, width, height };
}

// 1, 2 and 5 times powers of ten between two logarithms.
function powers(low, high) {
  const found = [];
  for (let e = Math.floor(low); e <= high; e += 1) for (const m of high - low > 2.5 ? [1] : [1, 2, 5]) {
    const at = e + Math.log10(m);
    if (at >= low && at <= high) found.push(at);
  }
  return found.length > 1 ? found : [low, high];
}

// A scale of a parameter or a metric: {low, high, of(x) -> 0..1, ticks: [[share, text]]}.
function measure(values, logarithmic) {
  const to = logarithmic ? Math.log10 : (x) => x, [low, high] = extent(values.filter((x) => x !== null).map(to));
  const at = logarithmic ? powers(low, high) : ticks(low, high, 4);
  const words = (x) => shown(logarithmic ? Number(Math.pow(10, x).toPrecision(3)) : x);
  return { of: (x) => (to(x) - low) / (high - low || 1), ticks: at.map((x) => [(x - low) / (high - low || 1), words(x)]) };
}

// Where a parameter's values lie between 0 and 1, and its ticks. Inactive is at 0.
function measured(column) {
  if (column.numbers) {
    const one = measure(column.numbers, column.type === "logarithmic");
    return { of: (v) => column.numbers[v] === null ? 0 : one.of(column.numbers[v]), ticks: one.ticks };
  }
  const last = Math.max(1, column.values.length - 1);
  return { of: (v) => column.values.length === 1 ? 0.5 : v / last, ticks: column.values.map((value, v) => [column.values.length === 1 ? 0.5 : v / last, value]) };
}

// A parameter with at most so many values: neighbouring numbers share a bin, named by its ends.
const BINS = 8;
function binned(column) {
  if (!column.numbers || column.values.length <= BINS) return column;
  const one = measured(column), bin = (v) => Math.min(BINS - 1, Math.floor(one.of(v) * BINS));
  const ends = new Map();
  column.values.forEach((value, v) => { if (column.numbers[v] !== null) ends.set(bin(v), [...(ends.get(bin(v)) || []), column.numbers[v]]); });
  const order = [...ends.keys()].sort((a, b) => a - b), rank = new Map(order.map((b, k) => [b, k]));
  const values = order.map((b) => { const own = ends.get(b); return [...new Set([Math.min(...own), Math.max(...own)].map((x) => shown(Number(x.toPrecision(2)))))].join("–"); });
  const off = column.values.some((_, v) => column.numbers[v] === null);
  return { values: off ? ["–", ...values] : values, of: column.of.map((v) => column.numbers[v] === null ? 0 : rank.get(bin(v)) + (off ? 1 : 0)) };
}

// Axes in a box [left, top, right, bottom] over [xLow, xHigh] x [yLow, yHigh]; gives both scales.
// Of a logarithmic axis (logs: [x, y]) the limits and what the scale takes are logarithms. Ticks of x
// are at least `least` apart. A fifth number of the box is where its place in the figure begins.
function axes(svg, box, [xLow, xHigh], [yLow, yHigh], xLabel, yLabel, logs = [], bare = false, least = 0) {
  const [, top, right, bottom, edge = 0] = box, every = logs[1] ? powers(yLow, yHigh) : ticks(yLow, yHigh, Math.max(2, (bottom - top) / 50));
  const named = (at, log) => shown(log ? Number(Math.pow(10, at).toPrecision(3)) : at);
  // As wide a margin as the numbers need; who draws in the box reads its edge afterwards.
  box[0] = Math.max(box[0], edge + 14 + 6.4 * Math.max(0, ...every.map((at) => named(at, logs[1]).length)));
  const left = box[0], x = scale(xLow, xHigh, left, right), y = scale(yLow, yHigh, bottom, top);
  let last = -Infinity;
  if (!bare) for (const at of logs[0] ? powers(xLow, xHigh) : ticks(xLow, xHigh, Math.max(3, (right - left) / 110), least)) {
    const half = 3.4 * named(at, logs[0]).length;
    if (x(at) - half < last + 6 || x(at) + half > right + 14) continue;
    last = x(at) + half;
    node("line", { x1: x(at), x2: x(at), y1: top, y2: bottom, class: "grid" }, svg);
    node("text", { x: x(at), y: bottom + 15, "text-anchor": "middle" }, svg, named(at, logs[0]));
  }
  for (const at of every) {
    node("line", { x1: left, x2: right, y1: y(at), y2: y(at), class: "grid" }, svg);
    node("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, svg, named(at, logs[1]));
  }
  node("text", { x: (left + right) / 2, y: bottom + 32, "text-anchor": "middle", class: "name" }, svg, xLabel);
  node("text", { x: Math.max(edge + 2, left - 44), y: top - 11, class: "name" }, svg, yLabel);
  return [x, y];
}

function hover(element, text) {
  element.addEventListener("pointerenter", () => { tip.textContent = text; tip.hidden = false; });
  element.addEventListener("pointermove", (event) => {
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
  });
  element.addEventListener("pointerleave", () => { tip.hidden = true; });
}

// A mark that tells of its trial, and leads to its line in the table.
function mark(svg, trial, name, attributes, more) {
  const made = node(name, { ...attributes, class: (attributes.class || "") + " mark" }, svg);
  if ("cx" in attributes) spot(svg, trial, attributes.cx, attributes.cy);
  hover(made, told(trial) + (more ? "\n" + more : ""));
  made.addEventListener("click", () => { if (!svg.dragged) visit(data.trials.number[trial]); });
  return made;
}

function settings(trial) {
  const found = [];
  for (const name in data.trials.parameters) {
    const column = data.trials.parameters[name];
    found.push(`${name}=${column.values[column.of[trial]]}`);
  }
  return found.join(" ");
}

function told(trial) {
  const t = data.trials, value = t.objective[trial];
  const end = value === null ? t.kinds[t.kind[trial]].slice(0, 2).join(": ") : `${shown(value)} ${t.unit}`;
  return `trial ${t.number[trial]}: ${end}\n${settings(trial)}`;
}

// The figure as an element of its own, with the colours that it has now.
function standalone(svg) {
  const copy = svg.cloneNode(true), from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
  const kept = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "stroke-opacity", "paint-order", "font-size", "font-family", "font-weight"];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of kept) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
    to[i].removeAttribute("style");
  });
  return copy;
}

const SHARP = 3;  // pixels of a PNG file for each of the page

// The figure as it is shown, as a Blob: of SVG, or of PNG.
async function exported(figure, as) {
  const svg = figure.querySelector("svg"), copy = standalone(svg);
  const ground = getComputedStyle(document.querySelector("section")).backgroundColor;
  copy.insertBefore(node("rect", { width: "100%", height: "100%", fill: ground }), copy.firstChild);
  const text = new XMLSerializer().serializeToString(copy);
  if (as === "svg") return new Blob([text], { type: "image/svg+xml" });
  const image = new Image(), canvas = document.createElement("canvas");
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  canvas.width = SHARP * svg.getAttribute("width");
  canvas.height = SHARP * svg.getAttribute("height");
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

async function save(figure, as, made = exported(figure, as)) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await made);
  link.download = `${figure.id}.${as}`;
  link.click();
}
