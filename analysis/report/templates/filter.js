// The trials as figures read them: each sign of a text is a code; a metric that follows from another has its factor.
const WIDE = 8;  // ratio of largest to smallest objective above which axes are logarithmic
function unpack(t) {
  const codes = (of) => typeof of === "string" ? Array.from(of, (sign) => parseInt(sign, 36)) : of;
  const follows = ({ name, power, times }) => (name === "objective" ? t.objective : t.metrics[name].of).map((x) => x === null || (power < 0 && !x) ? null : Number((times * (power > 0 ? x : 1 / x)).toPrecision(6)));
  for (const name of ["kind", "by"]) t[name] = codes(t[name]);
  for (const column of Object.values(t.parameters)) column.of = codes(column.of);
  for (const metric of Object.values(t.metrics)) if (!Array.isArray(metric.of)) metric.of = follows(metric.of);
  const [middle = [], low, high] = t.expected, reached = t.objective.filter((x) => x !== null), [least, most] = extent(reached);
  t.positive = reached.length > 0 && least > 0;
  t.log = t.positive && most > WIDE * least;
  t.expected = Object.fromEntries(middle.map((x, i) => [i, [x, low[i], high[i]]]).filter(([, [x]]) => x !== null));
}
unpack(data.trials);

// One filter for the page: the terms that the reader types and the trials that a brush marks.
// Every figure of trials and the table of trials show what is kept.
const filtering = { terms: [], marked: null, log: data.trials.log };
let kept = data.trials.number.map(() => true);

const COMPARED = /^([^=<>!\s]+)(!=|<=|>=|=|<|>)(.+)$/;

// One term: words, NAME=VALUE, NAME!=VALUE, NAME<X (<=, >, >=), NAME=LOW..HIGH. Values are whole:
// pp=1 finds 1, not 12 and 16.
function parsed(term) {
  const found = COMPARED.exec(term);
  if (!found) return (record) => record.text.includes(term.toLowerCase());
  const [, name, sign, value] = found, range = /^(.+)\.\.(.+)$/.exec(value), x = Number(value);
  return (record) => {
    const own = record.get(name);
    if (own === undefined || own === null) return sign === "!=";
    if (range && sign === "=") return Number(own) >= Number(range[1]) && Number(own) <= Number(range[2]);
    const both = value !== "" && !isNaN(x) && own !== "" && !isNaN(Number(own)), y = Number(own);
    if (sign === "=" || sign === "!=") return (both ? x === y : String(own).toLowerCase() === value.toLowerCase()) === (sign === "=");
    return both && (sign === "<" ? y < x : sign === "<=" ? y <= x : sign === ">" ? y > x : y >= x);
  };
}

// A trial as the filter reads it: its words, and its numbers by name.
function recordOf(i) {
  const t = data.trials, kind = t.kinds[t.kind[i]][0];
  return {
    text: `trial ${t.number[i]} ${kind} ${t.policies[t.by[i]]} ${settings(i)}`.toLowerCase(),
    get(name) {
      const known = { trial: t.number[i], kind, end: kind, by: t.policies[t.by[i]], objective: t.objective[i] };
      if (name in known) return known[name];
      if (name in t.parameters) return t.parameters[name].values[t.parameters[name].of[i]];
      return name in t.metrics ? t.metrics[name].of[i] : undefined;
    },
  };
}

// The same of a line of the table whose trial has not ended.
function recordIn(words) {
  return {
    text: words.toLowerCase(),
    get(name) { const at = ` ${words}`.indexOf(` ${name}=`); return at < 0 ? undefined : words.slice(at + name.length + 1).split(" ")[0]; },
  };
}

const matches = (record) => filtering.terms.every((term) => term(record));
const filterBar = document.getElementById("filter");
let place = new Map(data.trials.number.map((number, i) => [number, i]));

// Whether a trial is kept, by its number; one that has not ended by the words of its line.
function keeps(number, words) {
  const i = place.get(number);
  return i === undefined ? filtering.marked === null && matches(recordIn(words || "")) : kept[i];
}

function unknownNames(text) {
  const t = data.trials, known = ["trial", "kind", "end", "by", "objective", ...Object.keys(t.parameters), ...Object.keys(t.metrics)];
  return text.split(/\s+/).map((term) => COMPARED.exec(term)).filter((found) => found && !known.includes(found[1])).map((found) => found[1]);
}

function refilter() {
  const input = filterBar.querySelector("input"), text = input.value.trim();
  filtering.terms = text ? text.split(/\s+/).map(parsed) : [];
  kept = data.trials.number.map((_, i) => (filtering.marked === null || filtering.marked.has(i)) && (!filtering.terms.length || matches(recordOf(i))));
  const count = kept.filter(Boolean).length, unknown = unknownNames(text);
  const words = `${count === kept.length ? "all" : `${shown(count)} of`} ${shown(kept.length)} trials that have ended`.replace("all 1 trials that have", "the only trial that has");
  filterBar.querySelector("output").textContent = unknown.length ? `${words}; nothing here is called ${unknown.join(", ")}` : words;
  filterBar.querySelector("button").disabled = count === kept.length && !text;
  redraw();
  if (trials) trials.turn(0);
}

function markOnly(found) {
  filtering.marked = found;
  refilter();
}

// Dragging over a figure keeps the trials in the box. Fingers scroll, and use the terms.
function brushable(svg, [left, top, right, bottom]) {
  let from = null, box = null;
  const at = (event) => {
    const area = svg.getBoundingClientRect(), by = svg.viewBox.baseVal.width / area.width;
    return [(event.clientX - area.left) * by, (event.clientY - area.top) * by];
  };
  svg.classList.add("brushed");
  svg.addEventListener("pointerdown", (event) => {
    const [x, y] = at(event);
    if (event.pointerType === "touch" || x < left || x > right || y < top || y > bottom) return;
    from = [x, y];
    svg.dragged = false;
    event.preventDefault();
  });
  svg.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [x, y] = at(event), [x0, y0] = from;
    if (!box && Math.hypot(x - x0, y - y0) < 5) return;
    if (!box) { svg.dragged = true; box = node("rect", { class: "brush" }, svg); svg.setPointerCapture(event.pointerId); }
    for (const [name, value] of Object.entries({ x: Math.min(x, x0), y: Math.min(y, y0), width: Math.abs(x - x0), height: Math.abs(y - y0) })) box.setAttribute(name, value);
  });
  svg.addEventListener("pointerup", () => {
    const drawnBox = box && ["x", "y", "width", "height"].map((name) => Number(box.getAttribute(name)));
    from = null;
    if (!drawnBox) return;
    box.remove();
    box = null;
    const [x, y, wide, high] = drawnBox;
    const found = (svg.spots || []).filter(([px, py]) => px >= x && px <= x + wide && py >= y && py <= y + high).map(([, , i]) => i);
    if (found.length) markOnly(new Set(found));
  });
}

// Remember where a trial is drawn, for the brush.
function spot(svg, i, x, y) { (svg.spots = svg.spots || []).push([x, y, i]); }
