"""The mpiexec lines. After a change that is meant, refresh the golden files, read the difference:

MESHTUNE_REFRESH_GOLDEN=1 .venv/bin/pytest tests/slurm/mpiexec/test_command.py; git diff tests/slurm
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from slurm import agent
from slurm.launcher import LauncherError
from slurm.mpiexec.command import (
    bound,
    exported,
    mpiexec_argv,
    mpiexec_environment,
    scrubbed,
    sweep_argv,
    trial_environment,
)
from slurm.mpiexec.dialects import DIALECTS, MPICH, OPEN_MPI_4, OPEN_MPI_5, Dialect, dialect_of
from slurm.mpiexec.hosts import Host
from slurm.trial import Lease, TrialSpec

GOLDEN = Path(__file__).parent / "golden"
LEASE = Lease("7", ("node002", "node003"))
SPEC = TrialSpec(
    name="meshtune-1a2b3c4d-0007-1",
    directory=Path("/runs/r/trials/0007"),
    argv=("python", "-m", "trainer", "/runs/r/trials/0007/config.json"),
    num_nodes=2,
    ranks_per_node=4,
    timeout_s=1200,
    cpus_per_rank=8,
    memory_bytes_per_rank=2**30,
    env={"MY_SETTING": "1"},
)
DRIVER = {"PATH": "/usr/bin", "HOSTNAME": "login1", "PBS_JOBID": "7", "HF_HOME": "/shared/hf"}


def line_of(
    dialect: Dialect, spec: TrialSpec = SPEC, hosts: Mapping[str, Host] | None = None
) -> list[str]:
    environ = trial_environment(spec, LEASE, "node002", DRIVER)
    return mpiexec_argv(dialect, spec, LEASE, hosts or {}, environ)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_the_lines_of_each_dialect_are_the_recorded_ones(dialect: Dialect) -> None:
    environ = trial_environment(SPEC, LEASE, "node002", DRIVER)
    variables = [f"{key}={value}" for key, value in sorted(environ.items())]
    lines = [line_of(dialect), line_of(dialect, replace(SPEC, argv=()))]
    lines += [sweep_argv(dialect, LEASE.nodes, [SPEC.name], DRIVER)]
    ours = {agent.__file__: "agent.py", sys.executable: "python"}  # a path may need quotes
    lines = [[ours.get(argument, argument) for argument in line] for line in lines]
    text = "\n".join([*variables, *map(shlex.join, lines), ""])
    golden = GOLDEN / f"{dialect.name.lower().replace(' ', '_')}.txt"
    if os.environ.get("MESHTUNE_REFRESH_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize(
    ("said", "dialect"),
    [
        ("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/", OPEN_MPI_4),
        ("mpirun (Open MPI) 4.0.3", OPEN_MPI_4),
        ("mpiexec (Open MPI) 5.0.11\n", OPEN_MPI_5),
        ("mpirun (Open MPI) 10.1.0", OPEN_MPI_5),
        ("HYDRA build details:\n    Version:    4.0.2\n", MPICH),
    ],
)
def test_a_dialect_is_known_by_its_version(said: str, dialect: Dialect) -> None:
    assert dialect_of(said) is dialect


def test_an_unknown_mpiexec_is_an_error_with_its_words() -> None:
    with pytest.raises(LauncherError, match="the mpiexec launcher knows Open MPI"):
        dialect_of("mpiexec v9")


def test_a_trial_has_no_more_ranks_on_a_host_than_its_host_file_gives_it_slots() -> None:
    hosts = {"node002": Host("node002", 4), "node003": Host("node003", 3)}
    with pytest.raises(LauncherError, match="4 ranks a node, and the host file gives node003"):
        line_of(OPEN_MPI_4, hosts=hosts)
    assert line_of(OPEN_MPI_4, replace(SPEC, ranks_per_node=3), hosts)


def test_a_trial_is_as_wide_as_its_lease_or_there_is_no_line() -> None:
    with pytest.raises(LauncherError, match="needs 3 nodes, its lease has 2"):
        line_of(OPEN_MPI_4, replace(SPEC, num_nodes=3))


def test_the_trials_settings_win_but_not_over_where_its_ranks_meet() -> None:
    env = {"PATH": "/mine", "OMP_NUM_THREADS": "2", "MASTER_ADDR": "elsewhere"}
    spec = replace(SPEC, env=env, cpus_per_rank=4)
    environ = trial_environment(spec, LEASE, "node002", DRIVER)
    assert (environ["PATH"], environ["OMP_NUM_THREADS"]) == ("/mine", "2")
    assert environ["MASTER_ADDR"] == "node002"


def test_a_driver_that_is_itself_a_rank_does_not_hand_that_on() -> None:
    around = {"OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0", "PMI_RANK": "0"}
    settings = {"OMPI_MCA_btl": "tcp,self"}
    assert scrubbed(around | settings) == settings


def test_a_lone_colon_does_not_start_open_mpis_next_program() -> None:
    line = line_of(OPEN_MPI_4, replace(SPEC, argv=("train", ":", "a b")))
    assert line[-3:] == ["/bin/sh", "-c", "exec train : 'a b'"]
    assert ":" not in line_of(OPEN_MPI_4, replace(SPEC, argv=()))


def test_mpiexec_itself_knows_its_trial_and_has_no_threads_of_the_driver() -> None:
    environ = mpiexec_environment(SPEC, {"OMP_NUM_THREADS": "9", "TMPDIR": "/x"})
    ours = {"MESHTUNE_TRIAL": SPEC.name, "LOCAL_WORLD_SIZE": "4", "TMPDIR": "/x"}
    assert environ == ours


def test_only_variables_that_mean_something_on_another_host_are_exported() -> None:
    names = ["PATH", "HOSTNAME", "TMPDIR", "SSH_CLIENT", "LSB_HOSTS", "_", "BASH_FUNC_x%%", "A_1"]
    assert exported(names) == ["A_1", "PATH"]


def test_a_program_that_has_vanished_is_named_with_a_remedy_and_no_traceback() -> None:
    done = subprocess.run(bound(["no-such-mpiexec", "-n", "1"]), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("meshtune: no-such-mpiexec cannot be started: No such file")
    assert "is it still on PATH" in done.stderr and "Traceback" not in done.stderr
