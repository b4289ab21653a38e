"""What Slurm says of the job around the search."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm.launcher import AllocationGoneError, AllocationState, LauncherError
from slurm.minicluster.cluster import Minicluster
from slurm.srun.allocation import Allocation, parse_time_left
from slurm.srun.launcher import SrunLauncher
from slurm.srun.shell import NoAnswerError, SlurmError, UnknownJobError
from support.slurm_controller import FakeController
from support.waiting import wait_for


@pytest.mark.slurm
def test_the_allocation_knows_its_nodes_and_its_end(launcher: SrunLauncher) -> None:
    assert len(launcher.nodes()) == 4
    left_s = launcher.time_left_s()
    assert left_s is not None
    assert 0 < left_s < 1201  # two clocks differ by rounding
    assert launcher.down_nodes() == set()


@pytest.mark.slurm
def test_an_allocation_that_is_over_is_an_error_that_says_so(
    minicluster: Minicluster, allocate: Callable[[int], str]
) -> None:
    with pytest.raises(AllocationGoneError, match="no nodes of job 999999"):
        Allocation("999999")
    job = allocate(1)
    allocation = Allocation(job)
    assert allocation.state() is AllocationState.HELD
    minicluster.run("scancel", job)
    wait_for(lambda: allocation.state() is AllocationState.GONE, "it is seen to be over")
    with pytest.raises(AllocationGoneError, match="resume in another allocation"):
        Allocation(job)


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ("RUNNING|n1", AllocationState.HELD),
        ("SUSPENDED|n1", AllocationState.SILENT),  # no step starts, no node answers
        ("COMPLETING|n1", AllocationState.GONE),
        ("PENDING|", AllocationState.GONE),  # requeued: its next nodes are another driver's
        ("", AllocationState.GONE),  # ended lately
        (UnknownJobError("squeue: Invalid job id specified"), AllocationState.GONE),  # long ago
        (NoAnswerError("squeue: Socket timed out"), AllocationState.SILENT),
        (SlurmError("squeue cannot be started: no process"), AllocationState.SILENT),
    ],
)
def test_an_allocation_is_held_gone_or_nobody_knows(
    told: str | SlurmError, state: AllocationState
) -> None:
    def run(argv: list[str]) -> str:
        if argv[-1].endswith("%T|%N") and isinstance(told, SlurmError):
            raise told
        return f"7|7|{told}" if argv[-1].endswith("%T|%N") else "7|7|RUNNING|n1|8|1|30:00"

    assert Allocation("7", run).state() is state


def test_each_question_of_the_start_is_asked_again_where_it_times_out() -> None:
    controller, asked = FakeController([""]), list[str]()

    def run(argv: list[str]) -> str:
        asked.append(argv[0])
        if asked.count(argv[0]) == 1:
            raise NoAnswerError(f"{argv[0]}: Socket timed out on send/recv operation")
        return controller(argv)

    assert Allocation("7", run).nodes == ("n1",)
    assert asked == ["squeue", "squeue", "scontrol", "scontrol"]


@pytest.mark.slurm
def test_a_task_of_a_job_array_is_told_from_the_others(minicluster: Minicluster) -> None:
    options = ["-N1", "--exclusive", "--mem=0", "-t5", "-o/dev/null", "--wrap=sleep 60"]
    array = minicluster.run("sbatch", "--parsable", "--array=1-2", *options).strip()

    def listed(*options: str) -> list[str]:
        return [a for a in minicluster.run("squeue", "-h", "-o%F", *options).split() if a == array]

    try:
        wait_for(lambda: len(listed("-tR")) == 2, "both run")
        last, other = Allocation(array), Allocation(f"{array}_1")
        assert (last.listed_as, other.listed_as) == (f"{array}_2", f"{array}_1")
        assert last.job == array != other.job
        assert len(last.nodes) == len(other.nodes) == 1
        assert last.nodes != other.nodes
        assert last.state() is other.state() is AllocationState.HELD
        assert last.down_nodes() == other.down_nodes() == set()
        assert (last.time_left_s() or 0.0) > 0
        assert last.job_start()[:2] == "20" and "\n" not in last.job_start()
    finally:
        minicluster.run("scancel", array)
        wait_for(lambda: not listed(), "the array is gone")


def test_a_line_of_another_task_or_of_a_sites_wrapper_is_not_of_the_job() -> None:
    def run(argv: list[str]) -> str:
        tasks = "7_4|7|RUNNING|n4|8|1|30:00\n7_1|8|PENDING||8|1|20:00"
        return argv[-1] if argv[0] == "scontrol" else f"| Maintenance on Friday |\n{tasks}"

    assert Allocation("7", run).nodes == ("n4",)
    with pytest.raises(AllocationGoneError):
        Allocation("8", run)


def test_a_search_in_a_heterogeneous_job_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str]) -> str:
        components = "7+0|7|RUNNING|n1|8|1|9\n7+1|8|RUNNING|n2|8|1|9"
        return "n1" if argv[0] == "scontrol" else components

    monkeypatch.setattr(Allocation.__init__, "__defaults__", (run, ()))
    with pytest.raises(LauncherError, match="job 7 is heterogeneous"):
        Allocation.current({"SLURM_JOB_ID": "7"})


def test_nodes_that_the_batch_script_leaves_out_are_not_used() -> None:
    def run(argv: list[str]) -> str:
        return "n1\nn2\nn3" if argv[0] == "scontrol" else "7|7|RUNNING|n[1-3]|24|3|30:00"

    found = Allocation("7", run, left_out=["n2"])
    assert (found.nodes, found.cpus_per_node) == (("n1", "n3"), 8)


def test_outside_an_allocation_the_remedy_is_named() -> None:
    with pytest.raises(LauncherError, match="meshtune submit"):
        Allocation.current({})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30:00", 1800), ("59", 59), ("2:03:04", 7384), ("1-02:03:04", 93784), ("UNLIMITED", None)],
)
def test_slurms_time_left_is_read(text: str, seconds: float | None) -> None:
    assert parse_time_left(text) == seconds


def test_a_job_without_time_left_is_an_error() -> None:
    with pytest.raises(SlurmError, match="INVALID"):
        parse_time_left("INVALID")


MIXED = "gpu:a100:4(S:0-1)|64|n[1-2]\ngpu:a100:4(S:0-3)|64|n5\ngpu:h100:8|96|n[3-4]"


@pytest.mark.parametrize(
    ("shown", "refused"),
    [
        (MIXED, r"n\[1-2\],n5 \(gpu:a100:4 64 cores\); n\[3-4\] \(gpu:h100:8 96 cores\)"),
        (MIXED, r"--exclude n\[3-4\] or --exclude n\[1-2\],n5$"),
        ("(null)|64|n[1-2]\n(null)|128|n[3-5]", r"n\[1-2\] \(64 cores\)"),
        ("gpu:2,shard:4|64|n[1-4]\ngpu:2|64|n5", ""),  # two partitions list it, as it were
    ],
)
def test_nodes_that_differ_are_not_searched_together(shown: str, refused: str) -> None:
    def run(argv: list[str]) -> str:
        return (
            shown
            if argv[0] == "sinfo"
            else "n1 n2 n3 n4 n5"
            if argv[1] == "show"
            else "7|7|RUNNING|n|8|1|9"
        )

    allocation = Allocation("7", run)
    if not refused:
        allocation.refuse_mixed_nodes()
        return
    with pytest.raises(LauncherError, match=refused):
        allocation.refuse_mixed_nodes()


def test_nodes_with_different_numbers_of_cores_alone_differ_too() -> None:
    def run(argv: list[str]) -> str:
        if argv[0] == "sinfo":  # as Slurm 22.05 groups them
            return "gpu:1|64|n[1-3]\ngpu:1|32|n4" if "-e" in argv else "gpu:1|32+|n[1-4]"
        return "n1 n2 n3 n4" if argv[0] == "scontrol" else "7|7|RUNNING|n[1-4]|224|4|9"

    with pytest.raises(LauncherError, match=r"n\[1-3\] \(gpu:1 64 cores\); n4 \(gpu:1 32 cores\)"):
        Allocation("7", run).refuse_mixed_nodes()


@pytest.mark.parametrize(("exclude", "cpus"), [("n[1-3]", 32), ("n4", 63)])
def test_ranks_share_the_cores_of_the_nodes_that_are_left(
    monkeypatch: pytest.MonkeyPatch, exclude: str, cpus: int
) -> None:
    job = "NumNodes=4 TRES=cpu=221 Nodes=n[1-3] CPU_IDs=0-61,63 Mem=0 Nodes=n4 CPU_IDs=0-31 Mem=0"
    names = {"n[1-4]": "n1 n2 n3 n4", "n[1-3]": "n1 n2 n3"}

    def run(argv: list[str]) -> str:
        if argv[0] == "squeue":
            return "7_1|8|RUNNING|n[1-4]|221|4|9"
        return job if argv[-1] == "7_1" else names.get(argv[-1], argv[-1])

    monkeypatch.setattr(Allocation.__init__, "__defaults__", (run, ()))
    found = Allocation.current({"SLURM_JOB_ID": "8"}, exclude=exclude)
    assert found.cpus_per_node == cpus


@pytest.mark.slurm
def test_excluded_nodes_are_not_leased(launcher: SrunLauncher) -> None:
    environ = {"SLURM_JOB_ID": launcher.allocation.job}
    first, *others = launcher.nodes()
    found = Allocation.current(environ, exclude=first)
    assert found.nodes == tuple(others)
    assert found.cpus_per_node == found._cpus_of(others[0]) == launcher.allocation.cpus_per_node
    with pytest.raises(LauncherError, match="nosuchnode is no node of job"):
        Allocation.current(environ, exclude=f"{first},nosuchnode")
    with pytest.raises(LauncherError, match="has no other nodes"):
        Allocation.current(environ, exclude=",".join(launcher.nodes()))
