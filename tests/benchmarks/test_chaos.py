"""Random faults against real searches on this machine; see `benchmarks.chaos` for other seeds."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos import studies
from benchmarks.chaos.__main__ import Record, parsed, table
from benchmarks.chaos.drawing import FAULTS, draw
from benchmarks.chaos.machines import Local
from benchmarks.chaos.plan import Plan, Planned
from benchmarks.chaos.rounds import play
from benchmarks.chaos.shrink import script, shrink
from benchmarks.chaos.world import World

QUICK_S = 7.0


def assert_a_round_holds(number: int, max_cost_s: float) -> None:
    machine = Local()
    plan = draw(12, number, "local", lacks=machine.lacks, max_cost_s=max_cost_s)
    played = play(plan, machine)
    assert not played.violations, "\n".join((*played.violations, script(plan)))


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_nothing_is_lost_and_nobody_blamed_whatever_is_injected(number: int) -> None:
    assert_a_round_holds(number, QUICK_S)


@pytest.mark.heavy
@pytest.mark.parametrize("number", range(2, 200))
def test_nothing_is_lost_and_nobody_blamed_in_longer_rounds(number: int) -> None:
    assert_a_round_holds(number, 22.0)


@pytest.mark.heavy
@pytest.mark.parametrize("number", range(40))
def test_a_shared_study_loses_nothing_and_tells_nothing_twice(number: int) -> None:
    violations, injected, _ = studies.play(13, number)
    assert not violations, (injected, violations)


def fault(name: str) -> Planned:
    return Planned(name, 3, 0.1, 1.0, 0.5)


PLAN = Plan(
    "local", 1, "meshtune", ("healthy", "raises", "floods"), (1, 2), (1, 2), 12, 2,
    tuple(map(fault, ("interrupt", "kill_driver", "suspend"))),
)  # fmt: skip


def test_a_plan_follows_from_its_seed_and_survives_its_own_script() -> None:
    plans = [draw(5, number, launcher) for number in range(50) for launcher in ("local", "srun")]
    again = [draw(5, number, launcher) for number in range(50) for launcher in ("local", "srun")]
    assert plans == again
    assert [Plan.from_json(plan.to_json()) for plan in plans] == plans
    assert len(set(plans)) > 90


@pytest.mark.parametrize(
    "fails, least",
    [
        (
            lambda plan: "kill_driver" in [f.fault for f in plan.faults],
            replace(
                PLAN, cases=("healthy",), faults=PLAN.faults[1:2], widths=(1,), xs=(1,), trials=1,
                repeats=0, policy="random",
            ),
        ),
        (lambda plan: plan == PLAN, PLAN),
    ],
)  # fmt: skip
def test_a_failing_plan_is_shrunk_to_what_its_failure_needs(
    fails: Callable[[Plan], bool], least: Plan
) -> None:
    assert shrink(PLAN, fails, within_s=60) == least


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(PLAN, Local(), tmp_path / "round") as made:
        yield made


def test_a_driver_heeds_ctrl_c_where_the_campaign_runs_in_the_background(world: World) -> None:
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        world.start_driver()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert world.driver is not None
    status = Path(f"/proc/{world.driver.pid}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    assert not [number for number in numbers if ignored >> (number - 1) & 1]


def test_the_second_of_two_ctrl_c_is_not_for_the_next_driver(world: World) -> None:
    first, second = (subprocess.Popen(["sleep", "600"]) for _ in range(2))
    try:
        world.driver = first
        course = FAULTS["interrupt_twice"].act(world, fault("interrupt_twice"))
        next(course)
        assert first.wait(250) == -signal.SIGINT
        world.driver = second
        assert not list(course)
        assert second.poll() is None
    finally:
        for driver in (first, second):
            driver.kill()
            driver.wait()


def test_the_table_counts_the_faults_of_rounds_that_failed_as_mishandled() -> None:
    lines = table(
        [
            Record("local", 1, 0, ("suspend", "kill_rank"), (), 10.0, 2, 4, 100 << 20),
            Record("local", 1, 1, ("suspend",), ("a trial is lost",), 30.0, 1, 4, 90 << 20),
            Record("study", 1, 0, ("suspend",), (), 5.0),
        ]
    ).splitlines()
    assert lines[0] == "| fault, tried (mishandled) | local | study | survived |"
    assert "| suspend | 2 (**1**) | 1 | 2 of 3 |" in lines
    assert "| kill_rank | 1 | - | 1 of 1 |" in lines
    assert "| *rounds that failed* | 1 | 0 |  |" in lines
    assert "| *seconds of a round, median (most)* | 20 (30) | 5 (5) |  |" in lines


def test_the_page_has_the_figures_of_the_recorded_rounds() -> None:
    root = Path(__file__).parents[2]
    lines = (root / "benchmarks" / "chaos" / "rounds.jsonl").read_text().splitlines()
    records = [parsed(line) for line in lines]
    page = (root / "docs" / "results" / "reliability.md").read_text()
    told = [line for line in table(records).splitlines() if line.startswith("| *")]
    assert len(told) == 6
    for line in told:  # the page has no last column, which has nothing for these
        assert f"\n{line.replace('*', '').removesuffix('  |')}\n" in page
    faults = [fault for record in records for fault in record.faults]
    # A study's faults are told with the like ones of a driver. Every count stands in the list.
    alike = {"kill": "kill_driver", "move_clock": "set_clock", "stop": "suspend"}
    alike |= {"fill_disk": "disk_full"}
    counts = Counter(Counter(alike.get(fault, fault) for fault in faults).values())
    section = page.partition("### What is injected")[2].partition("###")[0]
    missing = counts - Counter(int(number) for number in re.findall(r"\b\d+\b", section))
    assert not missing
    trials = sum(record.trials for record in records)
    assert (
        f"{len(faults):,} faults of {len(set(faults))} kinds in {len(records):,} rounds, "
        f"with {trials:,} trials" in page
    )


def test_every_fault_of_a_plan_comes_before_its_end() -> None:
    plans = [draw(5, number, "srun") for number in range(100)]
    assert all(fault.after <= 3 * plan.trials for plan in plans for fault in plan.faults)


def test_a_violation_is_found_and_named() -> None:
    """A trainer that is said to be healthy and crashes: the campaign sees it."""
    plan = Plan("local", 0, "random", ("healthy", "raises"), (1,), (1,), 2)
    from benchmarks.chaos import rank

    crashing = rank.CASES["raises"]
    rank.CASES["raises"] = replace(crashing, kinds=frozenset({"ok"}))
    try:
        [violation] = play(plan, Local()).violations
    finally:
        rank.CASES["raises"] = crashing
    assert "(raises) ended as crash, not ok" in violation
