"""What a sweep concludes from what hosts answer, without hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from slurm.launcher import LauncherError
from slurm.mpiexec.dialects import MPICH, OPEN_MPI_4, Dialect
from slurm.mpiexec.hosts import Host
from slurm.mpiexec.launcher import MpiexecLauncher
from slurm.sweep.sweeper import Swept


@dataclass
class _Mpi:
    """Answers for its hosts; as the real one, only if all that are asked are up."""

    dialect: Dialect
    down: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)  # host -> processes that do not die
    asked: list[list[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        hosts = argv[argv.index(self.dialect.host_flag) + 1].split(",")
        self.asked.append(hosts)
        if set(hosts) & set(self.down):
            return "No route to host\n"
        answers = enumerate(hosts)
        return "".join(f"MESHTUNE_SWEPT {i} {self.left.get(host, '')}\n" for i, host in answers)


HOSTS = ("n1", "n2", "n3")


def launcher(mpi: _Mpi) -> MpiexecLauncher:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slurm.mpiexec.launcher._dialect", lambda *_: mpi.dialect)
        return MpiexecLauncher(map(Host, HOSTS), environ={}, run=mpi)


def swept(mpi: _Mpi) -> Swept:
    return launcher(mpi).sweep(HOSTS, ["t"])


@pytest.mark.parametrize("dialect", [OPEN_MPI_4, MPICH], ids=lambda dialect: dialect.name)
def test_hosts_that_all_answer_are_asked_once(dialect: Dialect) -> None:
    mpi = _Mpi(dialect)
    assert swept(mpi) == Swept()
    assert mpi.asked == [["n1", "n2", "n3"]]


def test_one_host_that_is_down_does_not_make_the_others_silent() -> None:
    mpi = _Mpi(OPEN_MPI_4, down=("n2",))
    result = swept(mpi)
    assert result.silent == ("n2",)
    assert "No route" in result.said
    assert sorted(mpi.asked[1:]) == [["n1"], ["n2"], ["n3"]]


def test_processes_that_do_not_die_are_told_with_their_host() -> None:
    assert swept(_Mpi(OPEN_MPI_4, left={"n3": "17,4"})).left == {"n3": (17, 4)}


def test_an_earlier_drivers_process_that_does_not_die_is_an_error_that_names_it() -> None:
    with pytest.raises(LauncherError, match=r"n2 \(17\)"):
        launcher(_Mpi(OPEN_MPI_4, left={"n2": "17"})).settle(["t"])


def test_a_machine_without_mpiexec_is_told_so() -> None:
    with pytest.raises(LauncherError, match=r"is not on PATH.*module load"):
        MpiexecLauncher([Host("n1")], environ={"PATH": "/nowhere"})
