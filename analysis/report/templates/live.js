// While `meshtune watch` serves the page: what runs now, and the trials that have ended since, in
// place. Nothing that the reader has set is lost; a section in which he is choosing waits.
const EVERY = 2000;  // milliseconds
const live = { version: null, stale: false };

function chosenIn(section) {
  const open = [...section.querySelectorAll("details")].map((one) => one.open && (one.closest("tr") || { id: "" }).id + [...(one.closest("tr") || section).querySelectorAll("details")].indexOf(one)).filter(Boolean);
  const head = section.querySelector("th[aria-sort]"), own = section.querySelector("#trials");
  return {
    open,
    selects: [...section.querySelectorAll("figure select:not(.paper)")].map((select) => [select.closest("figure").id, select.name, select.value]),
    drawn: [...section.querySelectorAll("figure[data-draw]")].filter((figure) => figure.drawn).map((figure) => figure.id),
    sort: head && [head.cellIndex, head.getAttribute("aria-sort"), head.closest("table").id],
    page: own && trials ? trials.page() : 0,
  };
}

function choose(section, before) {
  for (const [id, name, value] of before.selects) {
    const select = section.querySelector(`#${CSS.escape(id)} select[name=${name}]`);
    if (select && [...select.options].some((option) => option.value === value)) select.value = value;
  }
  for (const id of before.drawn) { const figure = document.getElementById(id); if (figure) figure.drawn = true; }
  section.querySelectorAll("details").forEach((one) => {
    const row = one.closest("tr") || { id: "" };
    if (before.open.includes(row.id + [...(one.closest("tr") || section).querySelectorAll("details")].indexOf(one))) one.open = true;
  });
  if (before.sort) {
    const table = [...section.querySelectorAll("table.sortable")].find((one) => one.id === before.sort[2]);
    const th = table && table.querySelectorAll("th")[before.sort[0]];
    if (th) { sorted(th, table); if (before.sort[1] === "descending") sorted(th, table); }
  }
}

// Exchange what differs between this page and a newer one; false if a section has to wait.
function exchange(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html"), main = document.querySelector("main");
  const marked = filtering.marked && [...filtering.marked].map((i) => data.trials.number[i]);
  const next = JSON.parse(fresh.getElementById("data").textContent);
  for (const name of Object.keys(data)) delete data[name];
  Object.assign(data, next);
  unpack(data.trials);
  place = new Map(data.trials.number.map((number, i) => [number, i]));
  filtering.marked = marked && new Set(marked.map((number) => place.get(number)).filter((i) => i !== undefined));
  let waits = false, turned = 0;
  const here = new Map([...main.querySelectorAll(":scope > section")].map((one) => [one.querySelector("h2").textContent, one]));
  let after = document.querySelector("noscript");
  for (const section of fresh.querySelectorAll("main > section")) {
    const title = section.querySelector("h2").textContent, source = section.innerHTML;
    let own = here.get(title);
    here.delete(title);
    if (own && own.contains(document.activeElement) && sources.get(title) !== source) waits = true;
    else if (!own || sources.get(title) !== source) {
      const before = own ? chosenIn(own) : { open: [], selects: [], drawn: [], sort: null, page: 0 };
      if (!own) { own = document.createElement("section"); own.id = section.id; }
      own.innerHTML = source;
      sources.set(title, source);
      enliven(own);
      after.after(own);
      choose(own, before);
      if (own.querySelector("#trials")) turned = before.page;
    } else after.after(own);
    after = own;
  }
  for (const [title, gone] of here) { gone.remove(); sources.delete(title); }
  for (const name of [".cards", "header + p"]) main.querySelector(name).innerHTML = fresh.querySelector(`main ${name}`).innerHTML;
  filterBar.hidden = !data.trials.number.length;
  refilter();
  if (trials && turned) trials.turn(turned);
  return !waits;
}

function tell(now) {
  const place = document.getElementById("live"), table = document.createElement("table"), [facts, holder] = place.querySelectorAll(".facts, .scroll");
  place.hidden = !now.running.length && !now.facts;
  facts.textContent = now.facts;
  const row = (cells, name) => { const line = table.insertRow(); for (const cell of cells) { const made = document.createElement(name); made.textContent = cell; line.appendChild(made); } return line; };
  row(["trial", "time", "of", "nodes", "configuration", "log"], "th");
  for (const one of now.running) {
    const line = row([one.trial, one.elapsed, one.expected, one.nodes, one.config, ""], "td"), open = holder.querySelector(`details[data-trial="${one.trial}"]`);
    const details = document.createElement("details"), summary = document.createElement("summary"), pre = document.createElement("pre");
    details.dataset.trial = one.trial;
    details.open = Boolean(open && open.open);
    summary.textContent = one.log[one.log.length - 1] || "no line yet";
    pre.textContent = one.log.join("\n");
    details.append(summary, pre);
    line.lastChild.className = "message";
    line.lastChild.append(details);
  }
  holder.replaceChildren(table);
}

async function follow() {
  if (document.hidden) return;
  try {
    const answer = await fetch("live");
    if (!answer.ok) return;
    const now = await answer.json();
    tell(now);
    if (live.version === null) live.version = document.documentElement.dataset.version;
    if (String(now.version) === live.version && !live.stale) return;
    const page = await fetch("");
    if (!page.ok) return;
    live.stale = !exchange(await page.text());
    live.version = String(now.version);
  } catch { }  // the watch has ended, or this machine sleeps
}
if (location.protocol === "http:" && document.documentElement.dataset.version) {
  follow();
  setInterval(follow, EVERY);
}
