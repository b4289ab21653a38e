// Tables that sort, filter and turn pages; the theme; when figures are drawn.
const PAGE = 100;  // rows at a time

function sorted(th, table) {
  const body = table.tBodies[0], column = th.cellIndex, down = th.getAttribute("aria-sort") === "ascending";
  table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  th.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => { const cell = row.cells[column]; return "v" in cell.dataset ? cell.dataset.v : cell.textContent === "–" ? "" : cell.textContent; };
  Array.from(body.rows).map((row) => [key(row), row]).sort(([x], [y]) => {
    if (x === "" || y === "") return (x === "") - (y === "");
    const m = Number(x), n = Number(y), order = isNaN(m) || isNaN(n) ? x.localeCompare(y) : m - n;
    return down ? -order : order;
  }).forEach(([, row]) => body.appendChild(row));
  if (table.turn) table.turn(0);
}

// Tables, the pages of the trials and figures come alive in a section, also in one that is exchanged.
function enliven(section) {
  section.querySelectorAll("table.sortable th").forEach((th) => {
    const table = th.closest("table");
    th.tabIndex = 0;
    th.addEventListener("click", () => sorted(th, table));
    th.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sorted(th, table); }
    });
  });
  if (section.querySelector("#trials")) turning();
  section.querySelectorAll("figure[data-draw]").forEach((figure) => {
    seen.observe(figure);
    figure.querySelectorAll("select:not(.paper)").forEach((select) => select.addEventListener("change", () => drawn[figure.dataset.draw](figure)));
    figure.querySelectorAll("select.paper").forEach((select) => select.addEventListener("change", () => {
      save(figure, select.value.split(" ")[1], forPaper(figure, select.value));
      select.value = "";
    }));
    figure.querySelectorAll("button.save").forEach((button) => button.addEventListener("click", () => save(figure, button.dataset.as)));
  });
}

let trials = null;
function turning() {
  trials = document.getElementById("trials");
  const bar = document.getElementById("trial-controls");
  const [back, on] = bar.querySelectorAll("button"), where = bar.querySelector("output");
  let page = 0;
  trials.page = () => page;
  trials.turn = (to) => {
    const found = Array.from(trials.tBodies[0].rows).filter((row) => {
      row.hidden = true;
      return keeps(Number(row.id.slice(6)), row.dataset.words);
    });
    page = Math.max(0, Math.min(to, Math.ceil(found.length / PAGE) - 1));
    const shownRows = drawingFor.width ? found : found.slice(page * PAGE, (page + 1) * PAGE);  // on paper all
    shownRows.forEach((row) => { row.hidden = false; });
    const last = Math.min(found.length, (page + 1) * PAGE);
    where.textContent = found.length ? `${shown(page * PAGE + 1)} to ${shown(last)} of ${shown(found.length)}` : "none";
    back.disabled = page === 0;
    on.disabled = last >= found.length;
    return found;
  };
  back.addEventListener("click", () => trials.turn(page - 1));
  on.addEventListener("click", () => trials.turn(page + 1));
  bar.hidden = false;
}

// Show a trial's line, on whichever page it is.
function visit(number) {
  const row = document.getElementById("trial-" + number);
  if (!row) return;
  if (row.hidden && !keeps(Number(number), row.dataset.words)) showAll();
  trials.turn(Math.floor(trials.turn(0).indexOf(row) / PAGE));
  row.scrollIntoView({ block: "center" });
  document.querySelectorAll("tr.visited").forEach((other) => other.classList.remove("visited"));
  row.classList.add("visited");
}
function visitLinked() {
  const found = /^#trial-(\d+)$/.exec(location.hash);
  if (found) visit(found[1]);
}
addEventListener("hashchange", visitLinked);

// The one filter of all figures and the table.
filterBar.hidden = !data.trials.number.length;
filterBar.querySelector("input").addEventListener("input", refilter);
filterBar.querySelector("button").addEventListener("click", showAll);
const logarithmic = filterBar.querySelector("[name=log]");
logarithmic.checked = filtering.log;
logarithmic.disabled = !data.trials.positive;
logarithmic.addEventListener("change", () => { filtering.log = logarithmic.checked; redraw(); });
function showAll() {
  filterBar.querySelector("input").value = "";
  markOnly(null);
}
function redraw() {
  document.querySelectorAll("figure[data-draw]").forEach((figure) => { if (figure.drawn) drawn[figure.dataset.draw](figure); });
}

// On paper every figure is drawn and every row is shown, in dark on white.
const PAPER = 700;  // pixels across
addEventListener("beforeprint", () => {
  const root = document.documentElement;
  root.dataset.before = root.dataset.theme || "";
  root.dataset.theme = "light";
  drawingFor.width = PAPER;
  document.querySelectorAll("figure[data-draw]").forEach((figure) => drawn[figure.dataset.draw](figure));
  if (trials) trials.turn(0);
});
addEventListener("afterprint", () => {
  const root = document.documentElement;
  if (root.dataset.before) root.dataset.theme = root.dataset.before; else delete root.dataset.theme;
  drawingFor.width = 0;
  document.querySelectorAll("figure[data-draw]").forEach((figure) => { if (!figure.drawn) figure.querySelector(".plot").textContent = ""; });
  redraw();
  if (trials) trials.turn(0);
});

// A figure is drawn when it is first seen, and again when the page's width or its choices change.
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) {
    seen.unobserve(entry.target);
    if (entry.target.drawn) continue;  // drawn again, it would lose a brush in the middle
    entry.target.drawn = true;
    drawn[entry.target.dataset.draw](entry.target);
  }
}, { rootMargin: "400px" });
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  redraw();
});

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
const sources = new Map();  // of each section as it was written, by its heading
document.querySelectorAll("main > section").forEach((section) => {
  sources.set(section.querySelector("h2").textContent, section.innerHTML);
  enliven(section);
});
refilter();
visitLinked();
