"""A campaign of random faults against real searches; see the package's own words.

python -m benchmarks.chaos --rounds 200 --seed 1          # of each kind
python -m benchmarks.chaos --rounds 200 --seed 1 --kinds local kept --record rounds.jsonl
python -m benchmarks.chaos --table rounds.jsonl ...       # of recorded rounds
python -m benchmarks.chaos --plan '{...}'                 # one round again, as a failure printed it
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.chaos import studies
from benchmarks.chaos.drawing import draw
from benchmarks.chaos.machines import Local, Machine, Mpiexec
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.rounds import Played, play
from benchmarks.chaos.shrink import script, shrink
from benchmarks.chaos.slurm_machine import Slurm

STUDY = "study"
KINDS = {  # -> launcher, and whether trials share launches
    "local": ("local", None),
    "plain": ("srun", False),
    "kept": ("srun", True),
    "mpiexec": ("mpiexec", None),
    STUDY: (STUDY, None),
}


@dataclass(frozen=True)
class Record:
    """A round that was played, as ``--record`` keeps it."""

    kind: str
    seed: int
    number: int
    faults: tuple[str, ...]
    violations: tuple[str, ...]
    seconds: float
    sessions: int = 0
    trials: int = 0
    peak_bytes: int = 0


def parsed(line: str) -> Record:
    """A record's line."""
    return Record(**json.loads(line))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--at-once", type=int, default=1, metavar="N", help="rounds that are played side by side"
    )
    parser.add_argument("--share", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plan", type=Plan.from_json, help="play this one round")
    parser.add_argument("--only", nargs="+", default=[], metavar="FAULT", help="of all faults")
    parser.add_argument(
        "--shrink", type=float, default=600.0, metavar="S", help="seconds for each failure; 0: none"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folders of failed rounds")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append each round as JSON")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print it")
    arguments = parser.parse_args()
    if arguments.table:
        lines = [line for path in arguments.table for line in path.read_text().splitlines()]
        print(table([parsed(line) for line in lines]))
        return 0
    records = []
    several = arguments.at_once > 1
    for record in _side_by_side(arguments) if several else _all(arguments):
        records.append(record)
        how = f"{record.seconds:.0f} s, {record.sessions} sessions: {', '.join(record.faults)}"
        verdict = "FAILED" if record.violations else "ok"
        if not several:
            print(f"{record.kind} {record.seed}/{record.number} {verdict}  [{how}]", flush=True)
        if arguments.record:
            with arguments.record.open("a") as file:
                file.write(json.dumps(asdict(record)) + "\n")
    if not arguments.share:
        print(table(records))
    return int(any(record.violations for record in records))


def _side_by_side(arguments: argparse.Namespace) -> Iterator[Record]:
    """Have several processes play a share of the rounds each: most of a round is waiting."""
    most = -(-arguments.rounds // arguments.at_once)
    end = arguments.first + arguments.rounds
    with tempfile.TemporaryDirectory() as folder:
        players = []
        for first in range(arguments.first, end, most):
            path = Path(folder, str(first))
            share = ["--share", "--record", str(path), "--first", str(first)]
            share += ["--rounds", str(min(most, end - first)), "--at-once", "1"]
            command = [sys.executable, "-m", "benchmarks.chaos", *sys.argv[1:], *share]
            players.append((subprocess.Popen(command), path))
        for player, path in players:
            player.wait()
            yield from map(parsed, path.read_text().splitlines())


def _all(arguments: argparse.Namespace) -> Iterator[Record]:
    numbers = range(arguments.first, arguments.first + arguments.rounds)
    if plan := arguments.plan:
        with machine(plan.launcher) as where:
            yield _played("plan", arguments, 0, plan, where)
        return
    for kind in arguments.kinds:
        launcher, shared = KINDS[kind]
        if kind == STUDY:
            for number in numbers:
                violations, injected, took_s = studies.play(arguments.seed, number)
                print(*(f"  {sentence}" for sentence in violations), sep="\n")
                yield Record(
                    kind, arguments.seed, number, tuple(injected), tuple(violations), took_s,
                    trials=studies.CONFIGURATIONS,
                )  # fmt: skip
            continue
        with machine(launcher) as where:
            if where.lacks:
                print(f"left out, as this machine cannot have it: {', '.join(sorted(where.lacks))}")
            for number in numbers:
                only, lacks = arguments.only, where.lacks
                plan = draw(arguments.seed, number, launcher, only, lacks, shared=shared)
                yield _played(kind, arguments, number, plan, where)


def _played(
    kind: str, arguments: argparse.Namespace, number: int, plan: Plan, where: Machine
) -> Record:
    one = play(plan, where, arguments.keep)
    if one.violations:
        _explain(one, where, arguments.shrink)
    return Record(
        kind, arguments.seed, number, one.injected, one.violations, one.seconds, one.sessions,
        plan.trials, one.peak_bytes,
    )  # fmt: skip


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
        yield Slurm(mini.up(directory / "s", num_nodes=4), own=True)
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


def table(records: Sequence[Record]) -> str:
    """Faults tried and mishandled, and the rounds of each kind, in Markdown.

    All faults of a round that failed count as mishandled.
    """
    kinds = [kind for kind in (*KINDS, "plan") if any(r.kind == kind for r in records)]
    of = {kind: [r for r in records if r.kind == kind] for kind in kinds}
    tried = {kind: Counter(f for r in of[kind] for f in r.faults) for kind in kinds}
    bad = {kind: Counter(f for r in of[kind] if r.violations for f in r.faults) for kind in kinds}
    rows = [["fault, tried (mishandled)", *kinds, "survived"], ["---"] * (len(kinds) + 2)]
    for name in sorted(set().union(*tried.values())):
        cells = [
            f"{tried[k][name]}" + (f" (**{bad[k][name]}**)" if bad[k][name] else "")
            if tried[k][name]
            else "-"
            for k in kinds
        ]
        total, lost = (sum(each[k][name] for k in kinds) for each in (tried, bad))
        rows.append([name, *cells, f"{total - lost} of {total}"])
    ways = {
        "rounds": lambda played: str(len(played)),
        "rounds that failed": lambda played: str(sum(bool(r.violations) for r in played)),
        "trials": lambda played: str(sum(r.trials for r in played)),
        "drivers": lambda played: str(sum(r.sessions for r in played) or "-"),
        "seconds of a round, median (most)": lambda played: (
            f"{statistics.median(r.seconds for r in played):.0f} "
            f"({max(r.seconds for r in played):.0f})"
        ),
        "MiB of a driver, at most": lambda played: str(
            max(r.peak_bytes for r in played) >> 20 or "-"
        ),
    }
    rows += [[f"*{name}*", *(count(of[k]) for k in kinds), ""] for name, count in ways.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
