"""The page in a real browser: it draws its figures, sorts, filters, turns pages, fits a phone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from analysis.report import tables
from analysis.report.page import write_report
from analysis.report.sections import SECTIONS
from analysis.run.fold import read_run
from analysis.run.folder import RunFolder
from foundation.quantities import value_text
from support.browser import MISSING, Browser, installed
from support.page_run import FIGURES, TRIALS, write_run
from support.run_book import RunBook

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)

SHOWN = (
    "return [...document.querySelectorAll('#trials tbody tr')].filter(r => !r.hidden)"
    ".map(r => Number(r.id.slice(6)))"
)


def test_every_figure_is_drawn_and_the_console_has_no_word_of_it(window: Browser) -> None:
    window.run("document.querySelectorAll('figure').forEach(f => drawn[f.dataset.draw](f))")
    marks = window.run(
        "return [...document.querySelectorAll('figure')]"
        ".map(f => [f.id, f.querySelectorAll('svg *').length])"
    )
    assert [name for name, _ in marks] == [f"figure-{name}" for name in FIGURES]
    assert min(count for _, count in marks) > 10
    for by in ("time", "nodes"):
        window.run(
            "const s = document.querySelector('select[name=by]');"
            f"s.value = '{by}'; s.dispatchEvent(new Event('change'));"
        )
    assert not any("NaN" in text for text in window.run(
        "return [...document.querySelectorAll('figure svg *')].map(e => e.outerHTML)"
    ))  # fmt: skip
    assert window.complaints() == []


def test_a_page_of_ten_thousand_trials_has_at_most_2500_kilobytes(
    folder: Path, window: Browser
) -> None:
    page = (folder / "run/report/index.html").read_text()
    record = "JSON.parse(document.getElementById('data').textContent).trials"
    each = window.run(f"return JSON.stringify({record}).length") / TRIALS
    rows = sum(
        len(body) for title, body in re.findall(r"<h2>(.*?)</h2>(.*?)</section>", page, re.DOTALL)
        if title in ("Every trial", "What the cost model says")
    ) / TRIALS  # fmt: skip
    rest = len(page.encode()) - (each + rows) * TRIALS
    assert 10_000 * each + tables.LISTED * rows + rest < 2_500_000 and rest < 200_000


def test_the_page_unpacks_what_the_run_has_to_five_digits(folder: Path, window: Browser) -> None:
    run, page = read_run(folder / "run"), window.run("return data.trials")
    ended = [trial for _, trial in sorted(run.trials.items())]
    assert page["number"] == [trial.number for trial in ended]
    assert [page["kinds"][code][0] for code in page["kind"]] == [trial.kind for trial in ended]
    for name, column in page["parameters"].items():
        told = [column["values"][code] for code in column["of"]]
        configs = [trial.config.get(name) for trial in ended]
        assert told == ["–" if value is None else value_text(value) for value in configs]
    speeds = np.array([trial.result.get("tokens_per_second") for trial in ended], float)
    of = {name: metric["of"] for name, metric in page["metrics"].items()}
    for name, values in (("tokens_per_second", speeds), ("us_per_token", 1e6 / speeds)):
        assert np.array(of[name], float) == pytest.approx(values, rel=1e-5, nan_ok=True)
    hours = [trial.node_seconds / 3600 for trial in ended]
    assert of["node_hours"] == pytest.approx(hours, rel=1e-5)
    foretold = [[t.expected[name] for name in ("objective", "low", "high")] for t in ended]
    assert [page["expected"][str(i)] for i in range(TRIALS)] == [
        pytest.approx(each, rel=1e-3) for each in foretold
    ]


@pytest.mark.heavy
def test_all_figures_of_ten_thousand_trials_are_drawn(window: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "run", "gpt_22b_frontier", 10_000)
    page = write_report(tmp_path / "run")
    text = page.read_text()
    assert len(text.encode()) < 2_500_000
    assert "calibrated with 2,000 measured trials" in text  # of thousands, evenly over the run
    window.open(page)
    window.run("document.querySelectorAll('[data-draw]').forEach(f => drawn[f.dataset.draw](f))")
    figures = "[...document.querySelectorAll('[data-draw]')]"
    assert window.run(f"return {figures}.every(figure => figure.childElementCount)")
    assert window.complaints() == []


def test_any_two_parameters_can_be_set_against_each_other(window: Browser) -> None:
    chosen = (
        "const f = document.getElementById('figure-{0}');"
        "const [a, b] = f.querySelectorAll('select:not(.paper)');"
        "a.selectedIndex = {1}; b.selectedIndex = {2};"
        "a.dispatchEvent(new Event('change'));"
        "return [f.querySelectorAll('svg *').length, f.textContent.includes('NaN'),"
        " a.options.length]"
    )
    for name in ("dependence", "border"):
        _, _, many = window.run(chosen.format(name, 0, 1))
        for pair in ((many - 1, 0), (1, many - 1), (0, 0)):
            marks, broken, _ = window.run(chosen.format(name, *pair))
            assert marks > 10 and not broken
    assert window.complaints() == []


def test_the_table_turns_its_pages_and_finds_a_trial_on_another(window: Browser) -> None:
    assert window.run(SHOWN) == list(range(100))
    window.run("document.querySelectorAll('#trial-controls button')[1].click()")
    assert window.run(SHOWN) == list(range(100, TRIALS))
    window.run("visit(5)")
    assert window.run(SHOWN) == list(range(100))
    assert window.run("return document.querySelector('tr.visited').id") == "trial-5"


PUT = (
    "const i = document.querySelector('#filter input');"
    "i.value = {!r}; i.dispatchEvent(new Event('input'));"
)
KEPT = "return data.trials.number.filter((_, i) => kept[i])"
OF_TRIALS = ("history", "expected", "slices", "parallel", "edf", "roofline")
SPOTS = (
    "const f = document.getElementById('figure-{}'); f.drawn = true; drawn[f.dataset.draw](f);"
    "return [...new Set(f.querySelector('svg').spots.map(([, , i]) => data.trials.number[i]))]"
    ".sort((a, b) => a - b)"
)


def test_terms_are_exact_and_every_figure_and_the_table_obey_them(
    window: Browser, folder: Path
) -> None:
    trials = read_run(folder / "run").trials
    successes = {n for n, t in trials.items() if t.ok}
    reached = sorted(t.objective for t in trials.values() if t.objective is not None)
    middle = (reached[40] + reached[41]) / 2  # the page rounds them
    for text, means in {
        "mbs=1": lambda t: t.config["mbs"] == 1,
        "mbs!=1 tp=2": lambda t: t.config["mbs"] != 1 and t.config["tp"] == 2,
        "mbs>=4 mbs<16": lambda t: 4 <= t.config["mbs"] < 16,
        "mbs=2..8": lambda t: 2 <= t.config["mbs"] <= 8,
        "recompute=Full": lambda t: t.config["recompute"] == "full",
        "kind=oom": lambda t: t.kind == "oom",
        f"objective<{middle}": lambda t: t.ok and (t.objective or 0.0) < middle,
        "node_hours>=0": lambda t: True,
        "no-such-word": lambda t: False,
        "nothing=1": lambda t: False,
    }.items():
        window.run(PUT.format(text))
        expected = {n for n, t in trials.items() if means(t)}
        assert set(window.run(KEPT)) == expected, text
        assert set(window.run(SHOWN)) == set(sorted(expected)[:100]), text
        for name in OF_TRIALS if expected & successes else ():
            assert set(window.run(SPOTS.format(name))) == expected & successes, (text, name)
    assert "nothing here is called nothing" in window.run(
        "return document.querySelector('#filter output').textContent"
    )
    window.run("document.querySelector('#filter button').click()")
    assert len(window.run(SHOWN)) == 100 and set(window.run(KEPT)) == set(trials)
    assert window.complaints() == []


def test_dragging_over_any_figure_keeps_the_trials_in_the_box(window: Browser) -> None:
    # A figure that is drawn when it comes near would move those below it meanwhile.
    window.run(
        "document.querySelectorAll('[data-draw]').forEach((f) => {"
        "f.drawn = true; drawn[f.dataset.draw](f); });"
    )
    for name in OF_TRIALS:
        window.run(SPOTS.format(name))
        left, top, right, bottom = window.run(
            f"const svg = document.querySelector('#figure-{name} svg');"
            "const [x, y] = svg.spots[svg.spots.length >> 1];"
            # Below the bar with the filter, which stays at the top.
            "scrollBy(0, svg.getBoundingClientRect().top + y - 0.7 * innerHeight);"
            "const r = svg.getBoundingClientRect();"
            "return [r.left + x - 9, r.top + y - 9, r.left + x + 9, r.top + y + 9]"
        )
        inside = window.run(
            f"const svg = document.querySelector('#figure-{name} svg');"
            "const r = svg.getBoundingClientRect();"
            f"return svg.spots.filter(([x, y]) => r.left + x >= {left} && r.left + x <= {right}"
            f" && r.top + y >= {top} && r.top + y <= {bottom}).map(([, , i]) => i)"
        )
        window.drag(left, top, right, bottom)
        kept = window.run("return data.trials.number.map((_, i) => i).filter((i) => kept[i])")
        assert set(kept) == set(inside) and 0 < len(kept) < TRIALS, name
        assert len(window.run(SHOWN)) == len(kept)
        window.run("document.querySelector('#filter button').click()")
    assert window.complaints() == []


CUT = """
for (const f of document.querySelectorAll('figure[data-draw]')) drawn[f.dataset.draw](f);
const over = [], least = (a, b) => Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
for (const f of document.querySelectorAll('figure[data-draw]')) {
  const texts = [...f.querySelectorAll('text')];
  const every = texts.map((e) => [e.textContent, e.getBBox(), e.classList]);
  const {width, height} = f.querySelector('svg').viewBox.baseVal;
  const all = every.filter(([, , classes]) => !classes.contains('small'));
  for (const [text, a] of every)
    if (a.x < -1 || a.y < -1 || a.x + a.width > width + 1 || a.y + a.height > height + 1)
      over.push([f.id, text, 'is cut']);
  all.forEach(([text, a], i) => {
    for (const [other, b] of all.slice(i + 1)) {
      const down = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
      if (text && other && down > 3 && least(a, b) > 1) over.push([f.id, text, other]);
    }
  });
}
return over;
"""


@pytest.mark.parametrize("width", [1440, 400])
def test_no_text_of_a_figure_is_cut_or_lies_on_another(window: Browser, width: int) -> None:
    window.width(width)
    window.run(  # the longest numbers, on every axis
        "data.trials.objective = data.trials.objective.map((v) => v && 1e5 * v);"
        "for (const name of ['model', 'trials']) for (const row of data['effects-' + name]) {"
        "for (const key of ['mean', 'low', 'high']) row[key] *= 1e5;"
        "for (const one of row.values) one[1] *= 1e5; }"
    )
    found = window.run(CUT)
    window.run("location.reload()")
    window.width(1440)
    assert found == []


def test_what_a_narrow_cell_says_fits_into_it(window: Browser) -> None:
    for width in (320, 400, 768):
        window.width(width)
        cells = window.run(
            "const f = document.getElementById('figure-border'); drawn.border(f);"
            "return [...f.querySelectorAll('rect + text')].map((text) => [text.textContent,"
            " text.getBBox().width - text.previousElementSibling.getBBox().width])"
        )
        assert len(cells) > 5 and all("%" in words for words, _ in cells)
        assert [words for words, over in cells if over > 0] == []
    window.width(1440)
    window.run("location.reload()")


def test_the_objective_has_a_logarithmic_axis_if_asked(window: Browser) -> None:
    names = (
        "const f = document.getElementById('figure-history'); drawn.history(f);"
        "return [...f.querySelectorAll('text[text-anchor=end]')].map((e) => e.textContent)"
    )
    toggle = "document.querySelector('[name=log]').click();"
    plain, logarithmic = window.run(names), window.run(toggle + names)
    assert plain != logarithmic
    objectives = [x for x in logarithmic if x[0].isdigit() and "%" not in x]  # beside the failures
    numbers = [float(x.replace(",", "")) for x in objectives]
    assert all(n / 10 ** int(np.log10(n)) in (1, 2, 5) for n in numbers) and len(numbers) > 1
    assert window.run(toggle + names) == plain


def test_the_keyboard_sorts_the_table_by_numbers(window: Browser) -> None:
    press = (
        "const th = document.querySelector('#trials th'); th.focus();"
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}));"
        "return th.getAttribute('aria-sort')"
    )
    assert window.run(press) == "ascending"
    assert window.run(press) == "descending"
    assert window.run(SHOWN) == list(range(TRIALS - 1, TRIALS - 101, -1))
    assert window.run(press) == "ascending"


def test_the_theme_turns_and_a_phone_has_nothing_to_scroll_sideways_for(window: Browser) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = window.run(colour)
    window.run("document.getElementById('theme').click()")
    assert window.run(colour) != before
    window.width(375)
    wide = window.run(
        "dispatchEvent(new Event('resize'));"
        "return [document.documentElement.scrollWidth, innerWidth]"
    )
    assert wide == [375, 375]
    assert window.complaints() == []


def test_the_front_is_drawn_with_its_line_and_its_points_lead_to_trials(
    window: Browser, tmp_path: Path
) -> None:
    book = RunBook(tmp_path / "run", {"maximize": "tokens_per_second"}, {"minimize": "num_nodes"})
    for number, reached in enumerate([(100.0, 1), (90.0, 1), (150.0, 2), (4000.0, 16)]):
        book.run_one(number, {"tp": number}, "ok", reached)
    window.open(write_report(book.directory))
    window.run("drawn.front(document.getElementById('figure-front'))")
    marks = "return document.querySelectorAll('#figure-front {}').length"
    assert window.run(marks.format(".optimal")) == 3
    assert window.run(marks.format(".dominated")) == 1
    assert window.run(marks.format("path.best")) == 1
    click = "document.querySelector('#figure-front .optimal').dispatchEvent(new Event('click'))"
    window.run(click)
    assert window.run("return document.querySelector('tr.visited').id") == "trial-3"
    assert window.complaints() == []


def test_two_continuous_parameters_are_drawn_with_contours(window: Browser, folder: Path) -> None:
    book = RunBook(folder / "rates", {"minimize": "loss"})
    RunFolder(book.directory).space_file.write_text("")
    for number in range(169):
        i, j = number % 13, number // 13
        config = {"lr": 1e-5 * 2.0**i, "weight_decay": 0.01 * j}
        book.run_one(number, config, "ok", 2.0 + ((i - 6) ** 2 + (j - 6) ** 2) / 100)
    book.close()
    landscape = [s for s in SECTIONS if s.title == "Parameters and objective"]
    window.open(write_report(book.directory, landscape))
    window.run("document.querySelectorAll('figure').forEach(f => drawn[f.dataset.draw](f))")
    lengths = window.run(
        "return [...document.querySelectorAll('#figure-heat path.level')].map(p => ["
        "p.getTotalLength(), p.getBBox().x + p.getBBox().width / 2, p.getBBox().height])"
    )
    drawn = [(length, middle) for length, middle, high in lengths if high > 0]
    assert len(drawn) > 4
    near = [length for length, _ in drawn[-3:]]
    assert near == sorted(near, reverse=True)  # rings, the better the smaller
    middle = window.run(
        "const all = [...document.querySelectorAll('#figure-heat circle')]"
        ".map(c => Number(c.getAttribute('cx'))); return (Math.min(...all) + Math.max(...all)) / 2"
    )
    assert all(abs(each - middle) < 5 for _, each in drawn)  # around the best
    straight = window.run(
        "const field = Array.from({length: CELLS + 1}, () => Array.from({length: CELLS + 1},"
        " (_, i) => i / CELLS)); return level(field, 0.6, (x) => 100 * x, (y) => y)"
    )
    assert {float(x) for x in re.findall(r"[ML]([\d.]+) ", straight)} == {60.0}
    assert window.complaints() == []
