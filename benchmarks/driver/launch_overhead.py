"""Time to start and end a trial: local launcher, srun on a minicluster, bare processes.

    python -m benchmarks.driver.launch_overhead [--repeats 10] [--ranks 4]

The trial does nothing but the least that every trainer does: import torch, make the process group
(gloo), one all-reduce, end. Next to it a trial of `true`, which shows what the launcher alone
costs. Start-ups of bare processes are measured in the same run, for comparison.

With --kept, only trials in a kept step, in seconds of CPU: of its agents, fork servers and ranks,
of srun and of the driver. A machine with other work says nearly as much by them as a quiet one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from foundation.python import module_argv
from slurm import processes
from slurm.launcher import Launcher
from slurm.local.launcher import LocalLauncher
from slurm.minicluster import cluster as minicluster
from slurm.srun.allocation import Allocation
from slurm.srun.launcher import SrunLauncher
from slurm.srun.site import Site
from slurm.trial import TRIAL_VARIABLE, Kept, Lease, TrialSpec

MODULE = "meshtune_nothing"
MARK = "meshtune-bench-ranks"
IMPORTED = "import torch.distributed\n"
EXECUTED = """\
import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
"""
NOTHING = module_argv(MODULE)
Trial = Callable[[], None]


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kept", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meshtune-bench-") as folder:
        write_module(Path(folder))
        os.environ["PYTHONPATH"] = folder
        print(machine(), "\n")
        if args.kept:
            with minicluster_launcher(Path(folder)) as srun:
                kept = Kept(MARK, (MODULE, f"{MODULE}.__main__"))
                print_cpu(args.repeats, trial(srun, NOTHING, args, folder, kept))
                srun.close()
            return
        print(f"| {args.ranks} ranks | first (s) | median (s) | min..max (s) |")
        print("|---|---|---|---|")
        measure("import torch, one bare process", args.repeats, import_torch)
        measure("nothing, bare processes", args.repeats, lambda: bare(args.ranks))
        local = LocalLauncher(preload=MODULE)
        measure("`true`, local launcher", args.repeats, trial(local, ("true",), args, folder))
        measure("nothing, local launcher", args.repeats, trial(local, NOTHING, args, folder))
        local.close()
        if reason := minicluster.missing():
            print(f"\nNo figures for srun: {reason}")
            return
        with minicluster_launcher(Path(folder)) as srun:
            measure("`true`, srun launcher", args.repeats, trial(srun, ("true",), args, folder))
            measure("nothing, srun launcher", args.repeats, trial(srun, NOTHING, args, folder))
            kept = Kept(MARK, (MODULE, f"{MODULE}.__main__"))
            measure(
                "nothing, srun launcher, in a kept step",
                args.repeats,
                trial(srun, NOTHING, args, folder, kept),
            )
            srun.close()


def write_module(folder: Path) -> None:
    """The trial that does nothing, as a package that can be preloaded."""
    package = folder / MODULE
    package.mkdir()
    (package / "__init__.py").write_text(IMPORTED)
    (package / "__main__.py").write_text(EXECUTED)


def machine() -> str:
    """Machine and versions, one line."""
    torch = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    slurm = "no Slurm"
    with contextlib.suppress(OSError):
        program = shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") or "slurmctld"
        slurm = subprocess.run([program, "-V"], capture_output=True, text=True).stdout.strip()
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} cores, load {load:.1f} at the start; "
        f"Linux {platform.release()}, Python {platform.python_version()}, torch {torch}, {slurm}"
    )


def measure(what: str, repeats: int, run: Trial) -> None:
    """Time ``run`` once for the first time and ``repeats`` times after that; print a row."""
    times_s = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - started)
    first_s, *later_s = times_s
    print(
        f"| {what} | {first_s:.2f} | {statistics.median(later_s):.2f} "
        f"| {min(later_s):.2f}..{max(later_s):.2f} |",
        flush=True,
    )


def print_cpu(repeats: int, run: Trial) -> None:
    """CPU seconds of trials after the first, whose processes stay."""
    run()
    spent_s = []
    for _ in range(repeats):
        before = _cpu_s()
        run()
        spent_s.append(_cpu_s() - before)
    print(
        f"a kept launch: {statistics.median(spent_s):.2f} s of CPU in the median "
        f"({min(spent_s):.2f}..{max(spent_s):.2f}, {repeats} launches)"
    )


def _cpu_s() -> float:
    """CPU time of this process, of all processes of the kept step, and of their ended children."""
    marks = (MARK, "srun-")  # the step's, of its ranks' trials
    own = processes.with_environ(lambda env: env.get(TRIAL_VARIABLE, "").startswith(marks))
    pids = {os.getpid(), *own}
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def import_torch() -> None:
    subprocess.run([sys.executable, "-c", "import torch"], check=True)


def bare(ranks: int) -> None:
    """The same ranks, started by hand."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
              "OMP_NUM_THREADS": "1"}  # fmt: skip
    children = [
        subprocess.Popen(NOTHING, env=os.environ | common | {"RANK": str(rank)})
        for rank in range(ranks)
    ]
    if any(child.wait() for child in children):
        raise SystemExit("a bare rank failed")


def trial(
    launcher: Launcher,
    argv: tuple[str, ...],
    args: argparse.Namespace,
    folder: str,
    kept: Kept | None = None,
) -> Trial:
    """A trial of ``argv`` on the launcher's first node."""
    directory = Path(folder) / f"{launcher.name}-{Path(argv[0]).name}{'-kept' if kept else ''}"
    directory.mkdir()
    lease = Lease(directory.name, (launcher.nodes()[0],))
    spec = TrialSpec(directory.name, directory, argv, 1, args.ranks, timeout_s=300.0, kept=kept)

    def run() -> None:
        outcome = launcher.run(spec, lease, threading.Event())
        if outcome.exit_code != 0:
            raise SystemExit(f"{directory.name}: {outcome}")

    return run


@contextlib.contextmanager
def minicluster_launcher(folder: Path) -> Iterator[Launcher]:
    """An srun launcher in a job on a minicluster of its own."""
    cluster = minicluster.up(folder / "slurm", num_nodes=2)
    os.environ["SLURM_CONF"] = str(cluster.conf)
    try:
        job = cluster.run(
            "sbatch", "--parsable", "--exclusive", "-N2", "-o/dev/null", "--wrap=sleep 3600"
        ).strip()
        while not cluster.run("squeue", "-h", "-j", job, "-t", "RUNNING"):
            time.sleep(0.1)
        yield SrunLauncher(Site.load("generic"), Allocation(job))
    finally:
        minicluster.down(folder / "slurm")


if __name__ == "__main__":
    main()
