// Tables that sort, filter and turn pages; the theme; when figures are drawn.
const PAGE = 100;  // rows at a time

function sorted(th, table) {
  const body = table.tBodies[0], column = th.cellIndex, down = th.getAttribute("aria-sort") === "ascending";
  table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  th.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => { const cell = row.cells[column]; return "v" in cell.dataset ? cell.dataset.v : cell.textContent; };
  Array.from(body.rows).map((row) => [key(row), row]).sort(([x], [y]) => {
    if (x === "" || y === "") return (x === "") - (y === "");
    const m = Number(x), n = Number(y), order = isNaN(m) || isNaN(n) ? x.localeCompare(y) : m - n;
    return down ? -order : order;
  }).forEach(([, row]) => body.appendChild(row));
  if (table.turn) table.turn(0);
}

document.querySelectorAll("table.sortable").forEach((table) => {
  table.querySelectorAll("th").forEach((th) => {
    th.tabIndex = 0;
    th.addEventListener("click", () => sorted(th, table));
    th.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sorted(th, table); }
    });
  });
});

const trials = document.getElementById("trials");
if (trials) {
  const bar = document.getElementById("trial-controls"), filter = bar.querySelector("input");
  const [back, on] = bar.querySelectorAll("button"), where = bar.querySelector("output");
  let page = 0;
  trials.turn = (to) => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = Array.from(trials.tBodies[0].rows).filter((row) => {
      row.hidden = true;
      if (!words.length) return true;
      row.words = row.words || row.dataset.words.toLowerCase();
      return words.every((word) => row.words.includes(word));
    });
    page = Math.max(0, Math.min(to, Math.ceil(found.length / PAGE) - 1));
    found.slice(page * PAGE, (page + 1) * PAGE).forEach((row) => { row.hidden = false; });
    const last = Math.min(found.length, (page + 1) * PAGE);
    where.textContent = found.length ? `${page * PAGE + 1} to ${last} of ${found.length}` : "none";
    back.disabled = page === 0;
    on.disabled = last >= found.length;
    return found;
  };
  filter.addEventListener("input", () => trials.turn(0));
  back.addEventListener("click", () => trials.turn(page - 1));
  on.addEventListener("click", () => trials.turn(page + 1));
  trials.turn(0);
  bar.hidden = false;
}

// Show a trial's line, on whichever page it is.
function visit(number) {
  const row = document.getElementById("trial-" + number);
  if (!row) return;
  const input = document.querySelector("#trial-controls input");
  input.value = "";
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

// A figure is drawn when it is first seen, and again when the page's width or its choices change.
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) {
    seen.unobserve(entry.target);
    entry.target.drawn = true;
    drawn[entry.target.dataset.draw](entry.target);
  }
}, { rootMargin: "400px" });
document.querySelectorAll("figure[data-draw]").forEach((figure) => {
  seen.observe(figure);
  figure.querySelectorAll("select").forEach((select) => select.addEventListener("change", () => drawn[figure.dataset.draw](figure)));
  figure.querySelectorAll("button.save").forEach((button) => button.addEventListener("click", () => save(figure, button.dataset.as)));
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  document.querySelectorAll("figure[data-draw]").forEach((figure) => { if (figure.drawn) drawn[figure.dataset.draw](figure); });
});

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
visitLinked();
