// What figures need of a browser, where there is none: elements, styles by the page's own rules, and
// SVG text. Python gives `css`, and asks for `picture`.
class Element {
  constructor(tagName) { Object.assign(this, { tagName, own: {}, children: [], text: "", dataset: {}, parent: null }); }
  get all() { return this.children.flatMap((child) => [child, ...child.all]); }
  get firstChild() { return this.children[0]; }
  get textContent() { return this.text; }
  set textContent(text) { this.children = []; this.text = String(text); }
  get classList() { return { add: (name) => this.setAttribute("class", `${this.own.class || ""} ${name}`.trim()) }; }
  setAttribute(name, value) { this.own[name] = String(value); }
  getAttribute(name) { return name in this.own ? this.own[name] : null; }
  removeAttribute(name) { delete this.own[name]; }
  appendChild(child) { child.parent = this; this.children.push(child); return child; }
  remove() { this.parent.children = this.parent.children.filter((child) => child !== this); }
  addEventListener() {}  // nobody points at a picture
  querySelectorAll(selectors) {
    const wanted = selectors.split(", ").map((one) => /^(\*|\w+)(?:\[([\w-]+)=(\w+)\])?$/.exec(one));
    return this.all.filter((child) => wanted.some(([, tag, name, value]) => (tag === "*" || tag === child.tagName) && (!name || child.own[name] === value)));
  }
  cloneNode() {
    const made = Object.assign(new Element(this.tagName), { own: { ...this.own }, text: this.text });
    this.children.forEach((child) => made.appendChild(child.cloneNode()));
    return made;
  }
}

const document = {
  documentElement: new Element("html"),
  createElementNS: (_, tagName) => new Element(tagName),
  getElementById: () => ({ namespaceURI: "http://www.w3.org/2000/svg" }),
};

Number.prototype.toLocaleString = function () {  // the engine knows no languages
  const [whole, rest] = String(this).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + (rest ? "." + rest : "");
};

class XMLSerializer {
  serializeToString({ tagName, own, text, children }) {
    const safe = (words) => words.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
    const named = tagName === "svg" ? { xmlns: NS, ...own } : own;
    const words = Object.entries(named).map(([name, value]) => ` ${name}="${safe(value)}"`).join("");
    return `<${tagName}${words}>${safe(text)}${children.map((child) => this.serializeToString(child)).join("")}</${tagName}>`;
  }
}

// The page's rules for what figures consist of, the most specific one last; the light theme's colours.
const PLAIN = { fill: "#000", stroke: "none", "stroke-width": "1px", "stroke-dasharray": "none", opacity: "1", "fill-opacity": "1", "stroke-opacity": "1", "paint-order": "normal", "font-family": "sans-serif", "font-weight": "400" };
const RULES = [], COLOURS = {}, looks = new Map();
const declared = (body) => Object.fromEntries(body.split(";").filter((one) => one.includes(":")).map((one) => one.split(/:(.*)/s, 2).map((part) => part.trim())));
for (const [, selectors, body] of css.replace(/@[^{]*\{(?:[^{}]*\{[^}]*\})*[^}]*\}/g, "").matchAll(/([^{}]+)\{([^}]*)\}/g)) {
  for (const selector of selectors.split(",").map((one) => one.trim())) {
    if (selector === ":root") Object.assign(COLOURS, declared(body));
    const found = /^(figure )?(\w*)((?:\.[\w-]+)*)(\[style\])?(?::not\(\.([\w-]+)\))?$/.exec(selector);
    if (!found) continue;
    const [, inside, tag, classes, styled, not] = found, names = classes.split(".").slice(1);
    const weight = 10 * (names.length + Boolean(styled) + Boolean(not)) + Boolean(inside) + Boolean(tag);
    RULES.push({ weight, style: declared(body), fits: (element, own) => (!tag || tag === element.tagName) && names.every((name) => own.includes(name)) && !(styled && !element.own.style) && !own.includes(not) });
  }
}
RULES.sort((a, b) => a.weight - b.weight);

function colour(text) {
  const plain = text.replace(/var\((--\w+)\)/g, (_, name) => COLOURS[name]), short = plain.replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3");
  return short.replace(/^#(..)(..)(..)$/, (_, ...parts) => `rgb(${parts.slice(0, 3).map((part) => parseInt(part, 16)).join(", ")})`);
}

function getComputedStyle(element) {
  const key = [element.tagName, element.own.class, Boolean(element.own.style)].join(" ");
  if (!looks.has(key)) {
    const own = (element.own.class || "").split(" ");
    looks.set(key, Object.assign({}, ...RULES.filter((rule) => rule.fits(element, own)).map((rule) => rule.style)));
  }
  const style = { ...PLAIN, ...element.own, ...looks.get(key), ...declared(element.own.style || "") };
  return { getPropertyValue: (name) => colour(style[name] || "") };
}

// A figure as SVG or PDF text, `inches` wide.
function picture({ draw, of, unit, choices, inches, form }) {
  const figure = new Element("figure"), plot = new Element("div"), words = new Element("p");
  Object.assign(figure.dataset, { draw, of, unit });
  figure.querySelector = (selector) => ({ ".plot": plot, ".words": words, svg: plot.firstChild })[selector] || { value: choices[/name=(\w+)/.exec(selector)[1]] };
  const svg = onPaper(figure, inches);
  return form === "pdf" ? pdfOf(svg) : new XMLSerializer().serializeToString(svg);
}
