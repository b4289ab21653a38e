"""What a person sees of a search on a terminal."""

from __future__ import annotations

import html
import importlib
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from analysis import RunFolder
from analysis.run.events import Ended, Started
from search_spaces import load_space
from support.run_book import RunBook
from workflows.search.budget import Budget, NodeHours
from workflows.search.driver import Driver
from workflows.search.panel import Panel, colour, node_ranges, remaining_s
from workflows.search.progress import Progress, summary
from workflows.search.session import Search, open_driver
from workflows.simulation.workload import simulated_launcher

DOCS = Path(__file__).parents[3] / "docs"
LABELS = ("$", "space", "best", "headroom", "constant", "trials", "spent", "trial")
SPACE = """
version: 1
name: paper
model: gpt_22b
cluster:
  {name: paper, gpus_per_node: 4, num_nodes: 40, memory_gib: 64, memory_gb_per_s: 1600,
   peak_bf16_tflops: 200, links: [{level: node, gpus: 4, gb_per_s: 100}],
   nic: {count: 4, gb_per_s: 25}}
trainer: {builtin: {data: no/such/tokens, precision: bf16}}
parameters: {num_nodes: [4], tp: [1, 2, 4], pp: [2], mbs: [1, 2, 4], gas: [8, 16], zero_stage: [1]}
objective: {maximize: tflops_per_gpu}
budget: {trials: 12}
finalists: {max_repeats: 3, confidence: 0.99}
"""


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["n001", "n002", "n003"], "n[001-003]"),
        (["n001", "n003", "n004", "gpu7"], "n[001,003-004],gpu7"),
        (["n9", "n10"], "n9,n10"),
        (["login", "n1"], "login,n1"),
        ([], ""),
    ],
)
def test_nodes_are_shown_as_slurm_writes_them(names: list[str], shown: str) -> None:
    assert node_ranges(names) == shown


def test_outcomes_have_colours() -> None:
    assert [colour(kind) for kind in ("ok", "oom", "node_failure", None)] == [
        "green", "red", "yellow", "cyan",
    ]  # fmt: skip


def test_a_search_fits_a_terminal_and_says_what_runs_and_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text(SPACE)
    space = load_space(tmp_path / "paper.yaml")
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    panel, seen = Panel(screen), []

    def listen(event: object, driver: Driver) -> None:
        if isinstance(event, Started | Ended):
            lines = screen.render_lines(panel.draw(driver), pad=False)
            seen.append(["".join(part.text for part in line).rstrip() for line in lines])

    launcher = simulated_launcher(space, "nodes=16,seed=1")
    folder = RunFolder(tmp_path / "run")
    with open_driver(Search(space, folder, launcher, 0), listen) as driver:
        driver.run()
    assert all(len(lines) < 24 and max(map(len, lines)) <= 80 for lines in seen)
    first, middle = "\n".join(seen[0]), "\n".join(seen[len(seen) // 2])
    assert "paper (simulated): maximize tflops_per_gpu" in first
    assert "no success yet" in first
    assert "constant   num_nodes=4 pp=2" in middle and "pp=2" in middle and "nodes busy" in middle
    assert middle.count("pp=2") == 1
    assert "ends in about" in middle and "[" in middle
    assert any("measured again to settle the winner" in line for lines in seen for line in lines)


@pytest.mark.heavy
def test_the_picture_of_the_guide_is_what_a_terminal_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    script = importlib.import_module("terminal_picture")

    def rows(svg: str) -> list[str]:
        """Its lines, from left to right."""
        cells: dict[str, list[tuple[float, str]]] = {}
        for x, y, text in re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
            cells.setdefault(y, []).append((float(x), html.unescape(text)))
        return [" ".join(t for _, t in sorted(row)) for row in cells.values()]

    drawn, shown = rows(script.picture()), rows(script.PICTURE.read_text())
    for lines in (drawn, shown):
        assert len(lines) <= script.LINES and "http" not in "".join(lines)
        found = [line.split()[0] for line in lines if line.split()]
        labels = [label for label in found if label in LABELS]
        assert labels == list(LABELS), lines


def test_without_a_terminal_there_are_plain_lines(tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text(SPACE)
    space = load_space(tmp_path / "paper.yaml")
    file = io.StringIO()
    progress = Progress(Console(file=file, width=80))
    launcher = simulated_launcher(space, "nodes=16,seed=1")
    folder = RunFolder(tmp_path / "run")
    with (
        open_driver(
            Search(space, folder, launcher, 0, budget=Budget(trials=2)), progress
        ) as driver,
        progress,
    ):
        driver.run()
    said = file.getvalue()
    assert "\x1b" not in said and "trial    1 started" in said
    assert " on n[01-04]\n" in said or " on n[1-4]\n" in said


def test_expected_times_of_all_that_runs_are_asked_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paper.yaml").write_text(SPACE)
    space = load_space(tmp_path / "paper.yaml")
    asked: list[int] = []

    def expected_s(_: NodeHours, __: object, configs: list[object]) -> list[float]:
        asked.append(len(configs))
        return [60.0] * len(configs)

    monkeypatch.setattr(NodeHours, "expected_s", expected_s)

    def listen(event: object, driver: Driver) -> None:
        if len(driver.running) == 2 and not asked:
            panel = Panel(Console(file=io.StringIO(), width=80, height=24))
            panel.draw(driver)
            panel.draw(driver)

    launcher = simulated_launcher(space, "nodes=16,seed=1")
    budget, folder = Budget(trials=2), RunFolder(tmp_path / "run")
    with open_driver(Search(space, folder, launcher, 0, budget=budget), listen) as driver:
        driver.run()
    assert asked == [2]


def test_a_view_that_fails_does_not_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paper.yaml").write_text(SPACE)
    space = load_space(tmp_path / "paper.yaml")
    file = io.StringIO()
    progress = Progress(Console(file=file, force_terminal=True, width=80))

    def draw(*_: object) -> None:
        raise ArithmeticError("no such price")

    monkeypatch.setattr(Panel, "draw", draw)
    launcher = simulated_launcher(space, "nodes=16,seed=1")
    budget, folder = Budget(trials=2), RunFolder(tmp_path / "run")
    search = Search(space, folder, launcher, 0, budget=budget)
    with open_driver(search, progress) as driver, progress:
        driver.run()
    said = file.getvalue()
    assert said.count("the live view failed: no such price") == 1
    assert "trial    1 started" in said and "trial    2 ok" in said


def test_the_first_limit_at_the_pace_so_far_is_the_end(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run")
    for number in (1, 2):
        book.propose(number, {"tp": number})
        book.start(number)
        book.t += 50
        book.end(number, "ok", 1.0, elapsed_s=50.0)
    book.close()
    run = book.read()
    assert remaining_s(run, Budget(trials=6), book.t) == pytest.approx(200)
    assert remaining_s(run, Budget(trials=6, wall_time_s=160), book.t) == pytest.approx(60)
    assert remaining_s(run, Budget(trials=6, node_hours=150 / 3600), book.t) == pytest.approx(50)
    assert remaining_s(run, Budget(), book.t) is None


def test_a_status_without_a_success_says_why_the_last_trial_failed(tmp_path: Path) -> None:
    book = RunBook(tmp_path / "run")
    for number, why in ((1, "exit code 1; no such file"), (2, "KeyError: 'a'")):
        book.propose(number, {"mbs": number})
        book.start(number)
        book.end(number, "crash", message=why)
    rows = dict(summary(book.read(), Budget(trials=4), book.t))
    assert (rows["best"], rows["because"]) == ("no success yet", "trial 2: KeyError: 'a'")
