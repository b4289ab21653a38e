"""Searches of drawn worlds, about which they have to learn nearly everything (see ``drawn.py``).

Rules are tuned on the worlds with even seeds; results are quoted on those with odd seeds.

``python -m benchmarks.search.worlds`` plays real searches until the stop rule ends them and one
trial is within 5 % of the best, for 16 trials at least. ``--near`` ends each with the first trial
within 5 %, for a fraction of the CPU time: figures at the stop are then at that trial. ``--json``
keeps the rows, and ``--against`` compares two versions or settings of the search world by world.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from analysis.cost.hypotheses import MEMORY, TIMING
from analysis.prediction.columns import unpriced_parameters
from analysis.prediction.pricing import Pricing
from benchmarks.search.drawn import VARIED, World, world
from benchmarks.search.judge import BINS, FIRST, ToTheEnd
from workflows.optimizer.registry import make_policy
from workflows.replay.play import NEAR, NEARER, play
from workflows.search.probing import ProbeError, plan

WORLDS = 240
MOST_TRIALS = 30  # after which a search counts as not ended
UNPRICED = ("attention_kernel", "data_workers")


@dataclass(frozen=True)
class Variant:
    """A search with some of its parts exchanged.

    Attributes:
        probes: number of trials of a shallower model beforehand.
        habits: of the framework: doubted, recorded ones taken as certain, or the true ones stated.
        changes: constants of the package analysis to change, as MODULE.NAME=NUMBER.
    """

    probes: int = 0
    habits: str = "doubted"
    changes: tuple[str, ...] = ()


ABLATION = {
    "doubted": Variant(),
    "certain": Variant(habits="certain"),
    "stated": Variant(habits="stated"),
    "4 probes": Variant(probes=4),
    "bound, no expected improvement": Variant(changes=("prediction.acquisition.FIRST_GAINS=1000",)),
}
"""First the search as it is, then with one part exchanged."""


def search(
    drawn: World,
    seed: int,
    probes: int = 0,
    habits: str = "doubted",
    near_only: bool = False,
    most: int = MOST_TRIALS,
) -> dict[str, Any]:
    """Play one search of a world to its end, after the given number of probes; its figures."""
    pricing, for_probes_s = Pricing(drawn.space), 0.0
    model = pricing.model
    if habits != "doubted":  # stated habits are not doubted
        known = drawn.truth.framework if habits == "stated" else model.framework
        known = known.with_habits(name=model.framework.name, stated=frozenset(MEMORY | TIMING))
        pricing.model = replace(model, framework=known)
    if probes:
        with suppress(ProbeError):
            found = plan(drawn.space, probes, int(drawn.num_nodes.max()), seed)
            told, for_probes_s = drawn.probed(found, np.random.default_rng((seed, 29)))
            pricing.probes = Pricing(found.space), tuple(told)
    only = drawn.configs if drawn.listed else None
    policy = make_policy(drawn.space, seed, pricing=pricing, only=only)
    chosen = ToTheEnd(policy, drawn, FIRST, near_only)
    played = play(drawn, chosen, seed, until=None, max_trials=most)
    trials = [*played.run.trials.values()]
    exhausted = len(trials) == len(drawn.indices)
    stop = chosen.ended_after or len(trials)
    failed = np.array([not t.ok for t in trials])
    spent = drawn.node_seconds([t.config for t in trials])
    near = played.trials_to(NEAR)
    stated = pricing.supposing().calibrated([])
    some = np.random.default_rng(seed).permutation(len(drawn.indices))[:1000]
    chances = stated.predict(pricing.jobs_of([drawn.configs[i] for i in some])).may_fit
    fits = drawn.kinds[some] != "oom"
    told = [(t.expected["fits"], t.ok) for t in trials[:stop] if "fits" in t.expected]
    return {
        "seed": seed,
        "kind": drawn.kind,
        "unpriced": len(unpriced_parameters(drawn.space)),
        "configs": len(drawn.indices),
        "runnable": int(drawn.ran.sum()),
        "trials": near or most + 1,
        "near": near is not None,
        "node_hours": (for_probes_s + float(spent[: near or None].sum())) / 3600,
        "for_probes": for_probes_s / 3600,
        "ended": chosen.ended_after is not None or exhausted or (near_only and near is not None),
        "stop": stop,
        "failed": int(failed[:stop].sum()),
        "failed_time": [float(spent[:stop][failed[:stop]].sum()), float(spent[:stop].sum())],
        "failed_16": int(failed[:FIRST].sum()),
        "first": len(trials[:FIRST]),
        "failed_time_16": [float(spent[:FIRST][failed[:FIRST]].sum()), float(spent[:FIRST].sum())],
        "regret": 1 - played.best_of(stop),
        "pruned": [int((chances[fits] < 0.5).sum()), int(fits.sum())],
        "stated": [float(p) for p, _ in told],
        "ran": [bool(ok) for _, ok in told],
        "shares": [round(s, 3) for s in played.shares],
    }


# ---- printing ----

HEAD = (
    "| worlds | to 5 %: geometric mean, mean, worst, never | node-hours: geometric mean "
    "| did not end | trials at the stop | failed trials, time there | of the first 16 "
    "| regret: above 1 %, mean | wrongly pruned |\n" + "|---" * 9 + "|"
)


def row(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A line of figures over searches."""
    trials = np.array([r["trials"] for r in rows])
    regrets = np.array([r["regret"] for r in rows])

    def share(key: str) -> str:
        """Mean over worlds of their shares: pooled times would follow the longest steps."""
        return f"{100 * np.mean([r[key][0] / max(r[key][1], 1e-9) for r in rows]):.1f} %"

    def total(key: str) -> int:
        return int(np.sum([r[key] for r in rows]))

    return (
        f"| {name}, {len(rows)} | {_geometric(trials):.2f}, {trials.mean():.2f}, {trials.max()}, "
        f"{sum(not r['near'] for r in rows)} | {_geometric([r['node_hours'] for r in rows]):.2f} "
        f"| {sum(not r['ended'] for r in rows)} | {total('stop') / len(rows):.1f} "
        f"| {100 * total('failed') / total('stop'):.1f} %, {share('failed_time')} "
        f"| {100 * total('failed_16') / total('first'):.1f} %, {share('failed_time_16')} "
        f"| {(regrets > NEARER).sum()}, {100 * regrets.mean():.2f} % | {share('pruned')} |"
    )


def calibration(rows: Sequence[Mapping[str, Any]]) -> str:
    """Proposals' stated probabilities to run, in bins: mean, share that ran, and count."""
    stated = np.concatenate([r["stated"] for r in rows])
    ran = np.concatenate([r["ran"] for r in rows])
    at = np.digitize(stated, BINS[1:-1])
    parts = [
        f"{a:g} to {b:g}: {100 * stated[at == i].mean():.0f} stated, "
        f"{100 * ran[at == i].mean():.0f} ran, of {(at == i).sum()}"
        for i, (a, b) in enumerate(pairwise(BINS))
        if (at == i).any()
    ]
    return "; ".join(parts)


def paired(rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> str:
    """These rows relative to others of the same worlds, with 95 % intervals over worlds."""
    before = {r["seed"]: r for r in others}
    both = [(r, before[r["seed"]]) for r in rows if r["seed"] in before]
    parts = [f"{len(both)} worlds"]
    for key in ("trials", "node_hours", "stop"):
        logs = np.log([new[key] / old[key] for new, old in both])
        edge = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs))
        low, middle, high = np.exp([logs.mean() - edge, logs.mean(), logs.mean() + edge])
        parts.append(f"{key} x {middle:.3f} ({low:.3f} to {high:.3f})")
    for key in ("failed", "failed_16", "regret", "trials"):
        off = np.array([new[key] - old[key] for new, old in both], float)
        edge = 1.96 * off.std(ddof=1) / np.sqrt(len(off))
        parts.append(f"{key} {off.mean():+.3f} (± {edge:.3f})")
    return "; ".join(parts)


def _geometric(values: Any) -> float:
    return float(np.exp(np.mean(np.log(values))))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.search.worlds", description=__doc__)
    made.add_argument("--half", choices=("tune", "quote"), default="quote")
    made.add_argument("--worlds", type=int, default=WORLDS, metavar="N", help="of both halves")
    made.add_argument("--probes", type=int, default=0, metavar="N", help="before each search")
    made.add_argument(
        "--habits",
        choices=("doubted", "stated", "certain"),
        default="doubted",
        help="of the framework: the record's, doubted or certain, or stated as they are",
    )
    made.add_argument(
        "--ablation",
        action="store_true",
        help="search each world with and without each part: " + ", ".join(ABLATION),
    )
    made.add_argument(
        "--unpriced", action="store_true", help="with two parameters without a price in each world"
    )
    made.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help="only worlds with trials as wide, of at most 10,000 configurations of which many fit",
    )
    made.add_argument("--trials", type=int, default=MOST_TRIALS, metavar="N", help="at most")
    made.add_argument("--near", action="store_true", help="end at the first trial within 5 %%")
    made.add_argument("--json", type=Path, metavar="FILE", help="to write, a row per search")
    made.add_argument("--against", type=Path, metavar="FILE", help="rows to compare with")
    made.add_argument("--each", action="store_true", help="print each search")
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="MODULE.NAME=NUMBER",
        help="a number of analysis to try, such as prediction.acquisition.KAPPA=0.5",
    )
    return made


@contextmanager
def setting(changes: Sequence[str]) -> Iterator[None]:
    """Change constants of the package analysis in a context, each as MODULE.NAME=NUMBER."""
    before = []
    for change in changes:
        where, value = change.split("=")
        name, _, attribute = where.rpartition(".")
        module = importlib.import_module(f"analysis.{name}")
        before.append((module, attribute, getattr(module, attribute)))
        setattr(module, attribute, json.loads(value))
    try:
        yield
    finally:
        for module, attribute, value in before:
            setattr(module, attribute, value)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    warnings.simplefilter("ignore")
    if arguments.unpriced:
        VARIED.update({name: (1.0, VARIED[name][1]) for name in UNPRICED})
    plain = Variant(arguments.probes, arguments.habits, tuple(arguments.set))
    variants = ABLATION if arguments.ablation else {"all": plain}
    rows = []
    for seed in range(arguments.half == "quote", arguments.worlds, 2):
        drawn = world(seed)
        large = drawn.kind == "hardly fits" or len(drawn.indices) > 10_000
        if arguments.nodes > 1 and (large or drawn.num_nodes.max() < arguments.nodes):
            continue
        for name, variant in variants.items():
            began = time.process_time()
            with setting(variant.changes):
                how = variant.probes, variant.habits, arguments.near, arguments.trials
                found = search(drawn, seed, *how)
            rows.append(found | {"variant": name, "cpu_s": time.process_time() - began})
            if arguments.each:
                shown = {k: v for k, v in rows[-1].items() if k not in ("stated", "ran")}
                print(shown, flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(rows))
    print(f"\n{HEAD}")
    first, *others = ([r for r in rows if r["variant"] == name] for name in variants)
    for name, own in zip(variants, [first, *others], strict=True):
        print(row(name, own))
    for kind in sorted({r["kind"] for r in first}):
        print(row(kind, [r for r in first if r["kind"] == kind]))
    if unpriced := [r for r in first if r["unpriced"]]:
        print(row("beside parameters without a price", unpriced))
    print(f"\nprobability to run: {calibration(first)}")
    for name, own in zip([*variants][1:], others, strict=True):
        print(f"\n{name}, against {next(iter(variants))}: {paired(own, first)}")
    if arguments.against:
        before = json.loads(arguments.against.read_text())
        print(f"\nagainst {arguments.against}: {paired(first, before)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
