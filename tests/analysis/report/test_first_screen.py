"""Every sentence of the first screen is computed again from the trials, and must be the page's."""

from __future__ import annotations

import html
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.finalists import NOISE_LOG_SD
from analysis.prediction.pricing import Pricing
from analysis.report import drivers, section as content
from analysis.report.page import write_report
from analysis.report.sections import SECTIONS
from analysis.run.events import Opened
from analysis.run.fold import Run, read_run
from analysis.run.folder import RunFolder
from foundation.quantities import number, value_text
from search_spaces import Candidates, load_space
from support.run_book import RunBook

pytestmark = pytest.mark.usefixtures("quick_forests")


def written(folder: Path, count: int, failed: int = 0, repeated: float = 0.0) -> Path:
    """A run of a shipped space, some out of memory, the best ``repeated`` so much faster."""
    space = load_space("tiny_cpu")
    candidates = Candidates(space)
    drawn = candidates.draw(count, np.random.default_rng(3), [], 2**31)
    prediction = Pricing(space).predict(drawn)
    speeds, peaks = prediction.tokens_per_second, prediction.peak_bytes
    book = RunBook(folder, space.objective.as_dict())
    RunFolder(folder).space_file.write_text(space.frozen())
    order = sorted(range(count), key=lambda i: speeds[i])
    for i, raw in enumerate(drawn):
        book.propose(i + 1, space.canonical(raw))
        book.start(i + 1, nodes=["n0"] * (1 + i % 2))
        book.t += 30 + i
        if i in order[:failed]:
            book.end(i + 1, "oom", message="out of memory")
            continue
        step_s = {"median": float(prediction.step_time_s[i])}
        result = {"step_time_s": step_s, "peak_memory_bytes": float(peaks[i])}
        book.end(i + 1, "ok", float(speeds[i]), result=result)
    if repeated:
        best = order[-1] + 1
        book.start(best, 2, repeat=True)
        book.end(best, "ok", float(speeds[best - 1]) * repeated, attempt=2, final=False)
    book.close()
    return folder


def page_of(folder: Path) -> str:
    """The page with its first section, and the one on failures."""
    chosen = [s for s in SECTIONS if s.title in ("Best configuration", "What fails, and why")]
    return write_report(folder, chosen).read_text()


def section(page: str) -> str:
    """The first section in plain words."""
    body = page[page.index("<h2>Best configuration</h2>") :].split("</section>")[0]
    text = html.unescape(re.sub(r"<[^>]+>", " ", body))
    return " ".join(text.split())


def cards(page: str) -> str:
    return " ".join(
        re.sub(r"<[^>]+>", " ", page.split('class="cards"')[1].split("</div>\n</div>")[0]).split()
    )


def said_changes(page: str) -> list[tuple[str, str, list[tuple[float, int, int]]]]:
    """The table of changes: parameter, ``before → after``, and (per cent, trial, trial)."""
    found = []
    for row in re.findall(
        r"<tr><td><code>(\w+)</code></td><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", page
    ):
        shares = [float(x) for x in re.findall(r"([+-][\d.]+)&nbsp;%", row[2])]
        pairs = [tuple(map(int, p.split(",&nbsp;"))) for p in row[3].split("; ")]
        found.append((row[0], row[1], [(s, *p) for s, p in zip(shares, pairs, strict=True)]))
    return found


def check_changes(run: Run, page: str) -> int:
    """Each pair differs in the parameter, and in gas at most; the share is that of the trials."""
    for parameter, change, pairs in said_changes(page):
        for share, a, b in pairs:
            one, other = run.trials[a], run.trials[b]
            differing = {n for n in one.config if one.config[n] != other.config.get(n)}
            assert parameter in differing and differing <= {parameter, "gas"}
            assert (
                change
                == f"{value_text(one.config[parameter])} → {value_text(other.config[parameter])}"
            )
            assert one.objective and other.objective
            assert share == pytest.approx(100 * (other.objective / one.objective - 1), abs=0.051)
    return len(said_changes(page))


def check(run: Run, page: str) -> None:
    """The sentences of the first screen, from nothing but the trials."""
    text, trials = section(page), list(run.trials.values())
    done = [t for t in trials if t.ok]
    failed = len(trials) - len(done)
    assert f"trials {len(trials)} {len(done)} ok, {failed} failed" in cards(page)
    spent = sum(a.elapsed_s * len(a.nodes) for t in trials for a in t.attempts)
    lost = sum(a.elapsed_s * len(a.nodes) for t in trials if not t.ok for a in t.attempts)
    hours = re.search(rf"node-hours ([\d.,]+) {100 * lost / spent:.0f} % in failed", cards(page))
    assert hours and float(hours[1].replace(",", "")) == pytest.approx(spent / 3600, rel=0.05)
    assert len(hours[1].lstrip("0.,").replace(".", "")) <= (2 if spent < 3600 else 5)
    if not done:
        assert "No trial has succeeded" in text and "is the best of" not in text
        kinds: Mapping[str, int] = {
            k: sum(t.kind == k for t in trials) for t in trials if (k := str(t.kind))
        }
        for kind, count in kinds.items():
            assert re.search(rf"{count} trials? : [^(]*\( ?{kind} ?\)", text), text
        return
    best = max(done, key=lambda t: t.objective or 0.0)
    assert number(best.objective or 0.0) in cards(page) and f"trial {best.number}" in cards(page)
    for name, value in best.config.items():
        assert f"{name} = {value_text(value)}" in text
    said = re.search(
        r"long run , at its measured speed, 1 trillion tokens take ([\d.,]+) days, ([\d.,]+) "
        r"node-hours. By the model of failures, ([\d.]+) % of the time is useful",
        text,
    )
    assert said, text
    days, node_hours, useful = (float(word.replace(",", "")) for word in said.groups())
    assert node_hours == pytest.approx(24 * days, rel=0.01)  # on one node
    expected = 1e14 / 86400 / (best.objective or 0.0) / useful
    assert days == pytest.approx(expected, rel=0.01)
    among = "only" if len(done) == 1 else f"best of {len(done)}"
    plural = "configuration" if len(done) == 1 else "configurations"
    assert f"Trial {best.number} is the {among} measured {plural}." in text
    assert ("It was measured once" in text) == (len(best.measurements) == 1)
    chance = re.search(r"configuration differ by ([\d.]+) % \(standard deviation(, assumed)?", text)
    assert bool(chance) == ("What one change did" in text)
    if chance:
        repeated = any(len(t.measurements) > 1 for t in done)
        noise = re.search(r"Noise : ([\d.]+) % between runs", text)
        assert bool(chance[2]) != repeated and bool(noise) == repeated
        spread = float(noise[1]) if noise else 100 * NOISE_LOG_SD
        assert float(chance[1]) == pytest.approx(2**0.5 * spread, abs=0.13 if spread < 9 else 1.2)
    sure = re.search(r"(over 99|\d+) % likely within 1 % of it", text)
    risk = re.search(r"Not settled : another configuration is ([\d.]+) % likely to be more", text)
    assert bool(risk) == bool(sure and sure[1] != "over 99" and int(sure[1]) < 90)
    if risk and sure:
        assert float(risk[1]) + int(sure[1]) == pytest.approx(100, abs=1)
    if len(done) > 1:
        ratio = (best.objective or 0.0) / statistics.median(t.objective or 0.0 for t in done)
        assert f"{ratio:.2f} × better than the median success" in cards(page)
    else:
        assert "×" not in cards(page) and "likely" not in text and "Winner" not in text


def test_the_first_screen_says_what_the_trials_say(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", 40, failed=6)
    run, page = read_run(folder), page_of(folder)
    check(run, page)
    assert check_changes(run, page) == 8


@pytest.mark.parametrize("failed", [0, 1])
def test_one_trial_is_neither_the_best_of_many_nor_said_to_matter(
    tmp_path: Path, failed: int
) -> None:
    folder = written(tmp_path / "run", 1, failed=failed)
    page = page_of(folder)
    check(read_run(folder), page)
    assert check_changes(read_run(folder), page) == 0
    assert "What matters most" not in page


@pytest.mark.parametrize("ahead", [1.02, 3.0])
def test_a_winner_that_was_measured_again_is_said_to_be_so(tmp_path: Path, ahead: float) -> None:
    folder = written(tmp_path / "run", 12, repeated=ahead)
    run, page = read_run(folder), page_of(folder)
    check(run, page)
    assert run.best is not None
    said = re.search(
        r"Winner : trial (\d+), ([\d.,]+) ± [\d.,]+ tokens/s, measured twice", section(page)
    )
    assert said and int(said[1]) == run.best.number
    assert float(said[2].replace(",", "")) == pytest.approx(
        run.best.objective, rel=0.01 if ahead < 2 else 0.1
    )
    assert ("Not settled" in section(page)) == (ahead == 3.0)  # so noisy
    assert re.search(
        r"\d+ % likely the best|(\d+|over 99) % likely the fastest of the 12 measured",
        section(page),
    )


def test_failures_alone_are_told_with_their_message_and_blame_no_configuration_for_a_module(
    journal: Any,
) -> None:
    book = journal()
    for n in (1, 2, 3):
        book.run_one(n, {"tp": n}, "crash", None, "ModuleNotFoundError: No module named 'apex'")
    page = page_of(book.directory)
    check(read_run(book.directory), page)
    assert "No module named" in section(page) and "No configuration is to blame" in section(page)
    assert "<td>no</td>" in page[page.index('id="failures"') :]
    assert '"kinds":[["crash","crashed","gray"]]' in page
    book.run_one(4, {"tp": 8}, "ok", 5.0)  # it does not fail everywhere
    page = page_of(book.directory)
    assert "No configuration is to blame" not in page
    assert '["crash","crashed","red"]' in page


def test_with_several_objectives_the_first_screen_leads_to_the_front(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run", {"maximize": "tokens_per_second"}, {"minimize": "num_nodes"})
    reached = [(100.0, 1), (90.0, 1), (150.0, 2), (140.0, 4), (4000.0, 16)]
    for n, pair in enumerate(reached):
        book.run_one(n, {"tp": n}, "ok", pair)
    front = [(a, b) for a, b in reached if not any(
        (x >= a and y <= b) and (x, y) != (a, b) for x, y in reached)]  # fmt: skip
    page = page_of(book.directory)
    said = f"With nodes weighed too, {len(front)} trials are Pareto-optimal"
    assert said in section(page) and '<a href="#front">' in page


@pytest.mark.parametrize("speeds", [(100.0, 200.0, 300.0, 400.0), (90.0, 100.0, 300.0, 400.0)])
def test_the_best_is_compared_with_what_it_was_chosen_among(
    tmp_path: Path, speeds: tuple[float, ...]
) -> None:
    book = RunBook(tmp_path / "run")
    opened = read_run(book.directory)
    book.write(
        Opened(
            space=opened.space, fingerprint="f00d", seed=7, launcher="simulate", nodes=["n000"],
            objective=book.objectives[0], subject_to=["watts <= 100"],
        )
    )  # fmt: skip
    for n, speed in enumerate(speeds, 1):
        book.propose(n, {"tp": n})
        book.start(n)
        book.end(n, "ok", speed, bounded={"watts": speed}, result={"speed": speed})
    kept = [speed for speed in speeds if speed <= 100]
    text, shown = section(page := page_of(book.directory)), cards(page)
    which = "only" if len(kept) == 1 else f"best of {len(kept)}"
    plural = "s" if len(kept) > 1 else ""
    best = 1 + speeds.index(max(kept))
    assert f"Trial {best} is the {which} measured configuration{plural} within the bounds." in text
    assert ("better than the median" in shown) == (len(kept) > 1)


def test_what_matters_most_is_named_only_where_a_check_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "run", 30)
    named = section(page_of(folder))
    assert re.search(r"What matters most : \w+ \(±", named)
    monkeypatch.setattr(drivers, "doubt", lambda _: "rank correlation -0.12")
    assert "What matters most" not in section(page_of(folder))
    # Without a check, too.
    monkeypatch.setattr(content, "cross_validated", lambda run: None)
    page = write_report(folder, SECTIONS[:1]).read_text()
    assert "What matters most" not in section(page)
