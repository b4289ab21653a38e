"""Which rank a process is, by the variables of its launcher."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainer.plan.limits import ConfigError
from trainer.runtime.peers import RankEnvironment, rank_environment

TORCH = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_the_place_comes_from_torchs_variables() -> None:
    assert rank_environment(TORCH) == RankEnvironment(5, 8, 1, 4, "node0", 29500)


def test_torchs_variables_go_before_slurms() -> None:
    assert rank_environment(SLURM | TORCH).world_size == 8


def test_the_place_comes_from_a_slurm_step() -> None:
    assert rank_environment(SLURM) == RankEnvironment(5, 7, 1, 3, "node0", 29500)
    even = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_NTASKS": "8"}
    assert rank_environment(even) == RankEnvironment(5, 8, 1, 4, "node0", 29500)


def test_no_variables_mean_a_single_process() -> None:
    assert rank_environment({}) == RankEnvironment(0, 1, 0, 1)
    assert rank_environment({"RANK": "0", "WORLD_SIZE": "1"}) == RankEnvironment(0, 1, 0, 1)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (TORCH | {"RANK": "eight"}, "RANK is 'eight', not a number"),
        (TORCH | {"RANK": "8"}, "rank 8 of 8"),
        (TORCH | {"MASTER_PORT": ""}, "MASTER_PORT is not set"),
        ({k: v for k, v in TORCH.items() if k != "MASTER_ADDR"}, "MASTER_ADDR is not set"),
        ({k: v for k, v in TORCH.items() if k != "WORLD_SIZE"}, "WORLD_SIZE is not set"),
        ({k: v for k, v in TORCH.items() if k != "LOCAL_RANK"}, "LOCAL_RANK is not set"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "many"}, "'many' is not a list of counts"),
        (SLURM | {"SLURM_NODEID": "2"}, "SLURM_NODEID 2 is not in"),
    ],
)
def test_a_wrong_environment_names_the_variable(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        rank_environment(environ)


@pytest.mark.parametrize(
    "then",
    [
        "print('said', flush=True)",
        "print('unsaid'); os.close(1)",  # what is buffered cannot be written
        "sys.stdout.close()",
        "sys.stdout = None",  # as where a process begins without it
    ],
)
def test_a_process_ends_with_its_code_whatever_became_of_its_output(then: str) -> None:
    program = "import os, sys; from trainer.runtime.peers import end_process"
    done = subprocess.run(
        [sys.executable, "-E", "-c", f"{program}\n{then}\nend_process(9)"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (9, "")
