"""A page that is watched: what ends meanwhile comes in place, and nothing that was set is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import analysis
from analysis import read_run
from analysis.report import forests
from analysis.report.sections import SECTIONS
from analysis.run.folder import RunFolder
from search_spaces import load_space
from support.browser import MISSING, Browser, browser, installed
from support.run_book import RunBook
from support.toy_space import SPACE
from support.waiting import wait_for
from workflows.watch import Site, serving

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)

SHOWN = (
    "return [...document.querySelectorAll('#trials tbody tr')].filter(r => !r.hidden)"
    ".map(r => Number(r.id.slice(6)))"
)
SETTINGS = (
    "return [document.querySelector('#filter input').value,"
    " document.querySelector('#figure-history select[name=by]').value,"
    " document.querySelector('#trials th[aria-sort]').getAttribute('aria-sort'),"
    " document.querySelector('#trial-2 details').open, scrollY > 0, window.mine]"
)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunBook]:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "own.yaml").write_text(SPACE.replace("[1, 2, 4]", "[1, 2, 4, 12]"))
    book = RunBook(folder / "run")
    RunFolder(book.directory).create(load_space(folder / "own.yaml"))
    for number, tp in enumerate((1, 2, 4), start=1):
        kind, value = ("oom", None) if tp == 2 else ("ok", 9.0 / tp)
        book.run_one(number, {"tp": tp}, kind, value, "out of memory" * (tp == 2))
    yield book
    book.close()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def test_what_ends_meanwhile_comes_in_place_and_nothing_that_was_set_is_lost(
    book: RunBook, window: Browser
) -> None:
    site = Site([book.directory], analysis.write_report)
    pages = site.pages["run"]
    assert pages.refresh()
    with serving(site) as address:
        window.visit(address)
        window.run(
            "window.mine = 1; const i = document.querySelector('#filter input'); i.value = 'tp!=4';"
            "i.dispatchEvent(new Event('input')); drawn.history(document.querySelector('figure'));"
            "const s = document.querySelector('#figure-history select[name=by]'); s.value = 'time';"
            "s.dispatchEvent(new Event('change')); document.querySelector('#trials th').click();"
            "document.querySelector('#trials th').click();"
            "document.querySelector('#trial-2 details').open = true; scrollTo(0, 400)"
        )
        before = window.run(SETTINGS)
        assert before == ["tp!=4", "time", "descending", True, True, 1]
        assert window.run(SHOWN) == [2, 1]

        book.t = time.time()
        book.propose(4, {"tp": 12})
        book.start(4, nodes=["n007"])
        (book.directory / "trials" / "0004").mkdir(parents=True)
        (book.directory / "trials" / "0004" / "stdout.log").write_text("step 1\nstep <2>\n")
        row = "return document.getElementById('live').innerText"
        wait_for(lambda: "step <2>" in window.run(row), "the running trial with its log")
        assert "n007" in window.run(row) and "tp=12" in window.run(row)

        book.end(4, "ok", 7.0)
        pages._not_before = 0.0  # no rest: the page is made now
        assert pages.refresh()
        wait_for(lambda: window.run(SHOWN) == [4, 2, 1], "the trial that ended")
        assert window.run(SETTINGS) == before
        assert window.run("return data.trials.number.filter((_, i) => kept[i])") == [1, 2, 4]
        wait_for(lambda: "0 running" in window.run(row), "word that nothing runs")
        assert window.complaints() == []


def test_runs_are_compared_on_a_page_with_their_courses(book: RunBook, window: Browser) -> None:
    with serving(Site([book.directory] * 2, lambda copy, home: copy)) as address:
        window.visit(address)
        marks = "return document.querySelectorAll('#figure-courses path.line').length"
        assert window.run(marks) == 2
        window.run(
            "const s = document.querySelector('select'); s.value = 'nodes';"
            "s.dispatchEvent(new Event('change'))"
        )
        assert window.run(marks) == 2
        assert "NaN" not in window.run("return document.querySelector('figure').innerHTML")
        window.run("document.querySelector('input[name=run]').checked = false")
        window.run("document.querySelector('form button').click()")
        wait_for(lambda: window.run(marks) == 1, "the page of the other run alone")
        assert window.complaints() == []


def test_runs_are_compared_by_what_mattered_and_by_their_fronts(
    tmp_path: Path, window: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("NUM_TREES", 10), ("NUM_REFITS", 2)):
        monkeypatch.setattr(forests, name, value)
    for name, strong in (("one", "tp"), ("two", "pp")):
        book = RunBook(tmp_path / name, {"maximize": "speed"}, {"minimize": "nodes"})
        RunFolder(book.directory).space_file.write_text("")
        for number in range(16):
            config = {"tp": 1 << number % 4, "pp": 1 << number // 4}
            book.run_one(number, config, "ok", [90.0 / config[strong], 1.0 + number])
        book.close()
    drawn = [s for s in SECTIONS if s.anchor in ("front", "drivers")]
    site = Site(
        [tmp_path / "one", tmp_path / "two"], lambda copy, home: analysis.write_report(copy, drawn)
    )
    assert all(pages.refresh() for pages in site.pages.values())
    with serving(site) as address:
        window.visit(address)
        window.complaints()  # of the page before, whose server is gone
        said = "return document.getElementById('figure-importance').innerText"
        wait_for(lambda: window.run(said).count("by its trials alone") == 2, "both runs' effects")
        shares = window.run(
            "return pages.map(p => p.trials.sort((a, b) => b.mean - a.mean).map(r => r.name))"
        )
        assert shares == [["tp", "pp"], ["pp", "tp"]]
        optimal = [len(read_run(tmp_path / name).front()) for name in ("one", "two")]
        marks = window.run(
            "return [...document.querySelectorAll('#figure-fronts circle')].map(c => c.style.fill)"
        )
        assert len(marks) == sum(optimal) and len(set(marks)) == 2
        assert window.complaints() == []
        window.run("read(0, 1); fetch = async () => new Response('', { status: 404 }); read(1)")
        wait_for(lambda: "two: it has no page" in window.run(said), "word of the run's lost page")
        assert "one: by its trials alone" in window.run(said)
        window.run("fetch = async () => new Response('being made'); read(0, 1)")
        wait_for(lambda: "one: it has no page" in window.run(said), "word that it was long enough")
