"""A campaign of random faults against real searches; see the package's own words.

python -m benchmarks.chaos --rounds 200 --seed 1 [--launcher srun|mpiexec]
python -m benchmarks.chaos --plan '{...}'        # one round again, as a failure printed it
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.chaos.drawing import draw
from benchmarks.chaos.faults import ALL
from benchmarks.chaos.machines import Local, Machine, Mpiexec, Slurm
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.rounds import Played, play
from benchmarks.chaos.shrink import script, shrink


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--launcher", choices=ALL, default="local")
    parser.add_argument(
        "--launches", choices=("plain", "kept"), help="of all rounds with srun; default: drawn"
    )
    parser.add_argument("--plan", type=Plan.from_json, help="play this one round")
    parser.add_argument("--only", nargs="+", default=[], metavar="FAULT", help="of all faults")
    parser.add_argument(
        "--shrink", type=float, default=600.0, metavar="S", help="seconds for each failure; 0: none"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folders of failed rounds")
    arguments = parser.parse_args()
    launcher = arguments.plan.launcher if arguments.plan else arguments.launcher
    shared = arguments.launches and arguments.launches == "kept"
    numbers = range(arguments.first, arguments.first + arguments.rounds)
    played = []
    with machine(launcher) as where:
        if where.lacks:
            print(f"left out, as this machine cannot have them: {', '.join(sorted(where.lacks))}")
        for number in [0] if arguments.plan else numbers:
            plan = arguments.plan or draw(
                arguments.seed, number, launcher, arguments.only, where.lacks, shared=shared
            )
            one = play(plan, where, arguments.keep)
            played.append(one)
            how = f"{one.seconds:.0f} s, {one.sessions} sessions: {', '.join(one.injected)}"
            print(f"round {number} {'FAILED' if one.violations else 'ok'}  [{how}]", flush=True)
            if one.violations:
                _explain(one, where, arguments.shrink)
    print(summary(played))
    return int(any(one.violations for one in played))


@contextlib.contextmanager
def machine(launcher: str) -> Iterator[Machine]:
    """The machine on which rounds with this launcher are played."""
    if launcher == "local":
        yield Local()
        return
    if launcher == "mpiexec":
        with tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp") as folder:  # a short path
            yield Mpiexec(Path(folder))
        return
    from slurm.minicluster import cluster as mini

    directory = Path(tempfile.mkdtemp(prefix="chaos-slurm-"))
    try:
        yield Slurm(mini.up(directory / "s", num_nodes=4))
    finally:
        mini.down(directory / "s")
        directory.rmdir()


def _explain(one: Played, where: Machine, within_s: float) -> None:
    print(*(f"  {sentence}" for sentence in one.violations), sep="\n")
    if one.kept:
        print(f"its folder: {one.kept}")
    plan = one.plan
    if within_s:
        plan = shrink(plan, lambda smaller: bool(play(smaller, where).violations), within_s)
    print(f"to see it again:\n{script(plan)}", flush=True)


def summary(played: Sequence[Played]) -> str:
    """The summary of a campaign."""
    failed = [one for one in played if one.violations]
    injected = Counter(name for one in played for name in one.injected)
    seconds = [one.seconds for one in played]
    trials = sum(one.plan.trials for one in played)
    lines = [
        f"{len(played)} rounds, {trials} trials, {sum(one.sessions for one in played)} sessions, "
        f"{sum(injected.values())} faults; {len(failed)} rounds failed",
        f"{statistics.median(seconds):.1f} s a round ({min(seconds):.1f}-{max(seconds):.1f}), "
        f"a driver at most {max(one.peak_bytes for one in played) >> 20} MiB",
        ", ".join(f"{name} {count}" for name, count in injected.most_common()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
