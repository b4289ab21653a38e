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
  if (size && (size < 1e-4 || size >= 1e12)) return x.toExponential(3);
  const digits = size ? Math.max(0, 3 - Math.floor(Math.log10(size))) : 0;
  return Number(x.toFixed(digits)).toLocaleString("en", { maximumFractionDigits: 8 });
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1, power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = power * [1, 2, 5, 10].find((s) => s * power >= rough);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) found.push(x);
  return found;
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const x of values) if (x !== null) { if (x < low) low = x; if (x > high) high = x; }
  return low > high ? [0, 1] : low === high ? [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1] : [low, high];
}

function scale(low, high, from, to) { return (x) => from + (x - low) / (high - low || 1) * (to - from); }

// An empty figure of the height asked for, as wide as its place: { svg, width, height }.
function blank(figure, height, label) {
  const place = figure.querySelector(".plot");
  place.textContent = "";
  const width = Math.max(280, Math.min(1120, place.clientWidth || 900));
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

// Axes in a box [left, top, right, bottom] over [xLow, xHigh] x [yLow, yHigh]; gives both scales.
// Of a logarithmic axis (logs: [x, y]) the limits and what the scale takes are logarithms.
function axes(svg, box, [xLow, xHigh], [yLow, yHigh], xLabel, yLabel, logs = [], bare = false) {
  const [left, top, right, bottom] = box;
  const x = scale(xLow, xHigh, left, right), y = scale(yLow, yHigh, bottom, top);
  const named = (at, log) => shown(log ? Number(Math.pow(10, at).toPrecision(3)) : at);
  if (!bare) for (const at of logs[0] ? powers(xLow, xHigh) : ticks(xLow, xHigh, Math.max(3, (right - left) / 110))) {
    node("line", { x1: x(at), x2: x(at), y1: top, y2: bottom, class: "grid" }, svg);
    node("text", { x: x(at), y: bottom + 15, "text-anchor": "middle" }, svg, named(at, logs[0]));
  }
  for (const at of logs[1] ? powers(yLow, yHigh) : ticks(yLow, yHigh, Math.max(2, (bottom - top) / 50))) {
    node("line", { x1: left, x2: right, y1: y(at), y2: y(at), class: "grid" }, svg);
    node("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, svg, named(at, logs[1]));
  }
  node("text", { x: (left + right) / 2, y: bottom + 32, "text-anchor": "middle", class: "name" }, svg, xLabel);
  node("text", { x: Math.max(2, left - 44), y: top - 8, class: "name" }, svg, yLabel);
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
  hover(made, told(trial) + (more ? "\n" + more : ""));
  made.addEventListener("click", () => visit(data.trials.number[trial]));
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

// The figure as SVG text of its own, with the colours that it has now.
function standalone(svg) {
  const copy = svg.cloneNode(true), from = svg.querySelectorAll("*"), to = copy.querySelectorAll("*");
  const kept = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "stroke-opacity", "font-size", "font-family", "font-weight"];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of kept) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
    to[i].removeAttribute("style");
  });
  const ground = getComputedStyle(document.querySelector("section")).backgroundColor;
  copy.insertBefore(node("rect", { width: "100%", height: "100%", fill: ground }), copy.firstChild);
  return new XMLSerializer().serializeToString(copy);
}

const SHARP = 3;  // pixels of a PNG file for each of the page

// The figure as it is shown, as a Blob: of SVG, or of PNG.
async function exported(figure, as) {
  const svg = figure.querySelector("svg"), text = standalone(svg);
  if (as === "svg") return new Blob([text], { type: "image/svg+xml" });
  const image = new Image(), canvas = document.createElement("canvas");
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  canvas.width = SHARP * svg.getAttribute("width");
  canvas.height = SHARP * svg.getAttribute("height");
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

async function save(figure, as) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await exported(figure, as));
  link.download = `${figure.id}.${as}`;
  link.click();
}
