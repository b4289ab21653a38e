"""Random faults against real searches on a real Slurm."""

from __future__ import annotations

import pytest

from benchmarks.chaos.drawing import draw
from benchmarks.chaos.rounds import play
from benchmarks.chaos.shrink import script
from benchmarks.chaos.slurm_machine import Slurm
from slurm.minicluster.cluster import Minicluster

pytestmark = pytest.mark.slurm


def assert_a_round_holds(minicluster: Minicluster, number: int, max_cost_s: float) -> None:
    machine = Slurm(minicluster)
    plan = draw(12, number, "srun", lacks=machine.lacks, max_cost_s=max_cost_s)
    played = play(plan, machine)
    assert not played.violations, "\n".join((*played.violations, script(plan)))


def test_nothing_is_lost_and_nobody_blamed_whatever_is_injected(minicluster: Minicluster) -> None:
    assert_a_round_holds(minicluster, 0, 10.0)


@pytest.mark.heavy
@pytest.mark.parametrize("number", range(1, 200))
def test_nothing_is_lost_and_nobody_blamed_in_longer_rounds(
    minicluster: Minicluster, number: int
) -> None:
    assert_a_round_holds(minicluster, number, 22.0)
