"""``meshtune replay``: plays a search against a recorded sweep.

Each landscape of the sweep (rows that differ in nothing but the configuration) becomes a space of
its own, and a trial's answer is the recorded row. The proposer is that of ``meshtune search``; it
sees shapes, the cluster's facts and what it was told, never the table.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml

from analysis.cost.jobs import RECOMPUTE
from analysis.cost.model import CostModel
from analysis.run import Run, Trial
from analysis.sweeps.machines import resized
from analysis.sweeps.table import Table
from workflows.pricing import Pricing
from workflows.proposer import Policy, Proposer
from workflows.space import SearchSpace, load_space

NEAR, NEARER = 0.05, 0.01  # of the best
_VARIED = ("tp", "pp", "vpp", "mbs", "gas", "zero_stage", "sequence_parallel", "recompute")
_WORDS = {code: word for word, code in RECOMPUTE.items()}


@dataclass(frozen=True)
class Answer:
    """One recorded row."""

    step_time_s: float  # nan: it failed
    peak_bytes: float


@dataclass(frozen=True)
class Landscape:
    """Recorded configurations of one model on one machine.

    Attributes:
        key: of the table's landscape.
        space: as a person would write it for this model and machine.
        answers: by canonical configuration's key, every recorded repeat.
        configs: canonical, in the table's order.
        tokens: per step, by configuration's key.
    """

    key: str
    space: SearchSpace
    configs: list[dict[str, Any]]
    answers: Mapping[tuple[Any, ...], list[Answer]]
    tokens: Mapping[tuple[Any, ...], float]
    model: str = ""

    @property
    def best(self) -> float:
        """Tokens per second of the best configuration, by the median of its repeats."""
        rates = [
            self.tokens[key] / float(np.median(times))
            for key, answers in self.answers.items()
            if (times := [a.step_time_s for a in answers if np.isfinite(a.step_time_s)])
        ]
        return max(rates)


class Chooser(Protocol):
    """What is replayed: the next configuration, given what was told."""

    def propose(self, run: Run, max_nodes: int) -> Any: ...


@dataclass
class Played:
    """One replay of one landscape with one seed.

    Attributes:
        rates: tokens per second of each trial in order, over the landscape's best; 0 failed.
        seconds: that the proposer took in all.
    """

    rates: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def trials_to(self, share: float) -> int | None:
        """Trials up to the first within a share of the best; None if none was."""
        near = [n for n, rate in enumerate(self.rates, start=1) if rate >= 1 - share]
        return near[0] if near else None

    def best_of(self, count: int) -> float:
        return max(self.rates[:count], default=0.0)

    def failed_share(self, count: int = 16) -> float:
        first = self.rates[:count]
        return sum(rate == 0 for rate in first) / max(len(first), 1)


def landscapes(table: Table) -> Iterator[Landscape]:
    """Every landscape of a sweep in which something ran and there is something to choose."""
    for key in np.unique(table.landscape):
        part = table[table.landscape == key]
        if np.isfinite(part.step_time_s).any() and len(part) > 1:
            yield _landscape(str(key), part)


def _landscape(key: str, table: Table) -> Landscape:
    jobs = table.jobs
    machine = table.machines[str(table.machine[0])]
    world = int(jobs.world_size.max())
    if world < machine.gpus_per_node:
        machine = resized(machine, world)
    nodes = np.maximum(np.round(jobs.world_size / machine.gpus_per_node), 1)
    columns = {name: getattr(jobs, name) for name in _VARIED} | {"num_nodes": nodes}
    columns["zero_stage"] = np.maximum(columns["zero_stage"], 0)
    rows = [
        {name: _plain(name, column[row]) for name, column in columns.items()}
        for row in range(len(jobs))
    ]
    space = _space(key, table, machine.model_dump(exclude_defaults=True), rows)
    answers: dict[tuple[Any, ...], list[Answer]] = {}
    tokens: dict[tuple[Any, ...], float] = {}
    configs = {}
    for row, raw in enumerate(rows):
        config = space.canonical(raw)
        name = tuple(config.items())
        configs[name] = dict(config)
        answers.setdefault(name, []).append(
            Answer(float(table.step_time_s[row]), float(table.peak_bytes[row]))
        )
        tokens[name] = float(jobs.global_batch[row] * jobs.seq_length[row])
    return Landscape(key, space, [*configs.values()], answers, tokens, str(table.model[0]))


def _plain(name: str, value: float) -> Any:
    if name == "sequence_parallel":
        return bool(value)
    return _WORDS[int(value)] if name == "recompute" else int(value)


def _space(
    key: str, table: Table, machine: dict[str, Any], rows: Sequence[Mapping[str, Any]]
) -> SearchSpace:
    """The space of a landscape, through the same reader as everybody's."""
    jobs = table.jobs
    model = {
        "num_layers": int(jobs.num_layers[0]),
        "hidden_size": int(jobs.hidden_size[0]),
        "num_heads": int(jobs.num_heads[0]),
        "num_kv_heads": int(jobs.kv_heads[0]),
        "ffn_hidden_size": int(jobs.ffn_size[0]),
        "vocab_size": int(jobs.vocab_size[0]),
        "seq_length": int(jobs.seq_length[0]),
        "activation": "swiglu" if jobs.gated[0] else "gelu",
        "tied_embeddings": bool(jobs.tied_embeddings[0]),
    }
    machine.pop("source", None)
    content = {
        "version": 1,
        "name": "replay",
        "description": key,
        "model": model,
        "cluster": machine,
        "trainer": {"command": ["recorded"], "framework": str(table.profile[0])},
        "parameters": {name: sorted({row[name] for row in rows}) for name in rows[0]},
        "objective": {"maximize": "tokens_per_second"},
        "allow": ["tp_across_nodes"],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return load_space(str(path))


def chooser(
    landscape: Landscape, policy: Policy, seed: int, model: CostModel | None = None
) -> Chooser:
    """The proposer of ``meshtune search`` on a landscape.

    Args:
        landscape: what it may propose.
        policy: see ``Proposer``.
        seed: of the proposer.
        model: in place of the cost model's own constants, such as one that was fitted without
            the landscape's model; its machine and framework are replaced.
    """
    pricing = Pricing(landscape.space)
    if model is not None:
        pricing.learn_from(model)
    return Proposer(landscape.space, seed, policy, pricing=pricing, only=landscape.configs)


def play(
    landscape: Landscape,
    proposer: Chooser,
    seed: int,
    parallel: int = 1,
    max_trials: int | None = None,
    until: float | None = NEARER,
) -> Played:
    """Search a landscape until it is exhausted, or long enough.

    Args:
        landscape: that answers.
        proposer: that asks.
        seed: of which repeat of a configuration answers.
        parallel: trials that run at once; all of them are told before more are asked for.
        max_trials: end after so many.
        until: end once a trial is within this share of the best, and 16 were tried.
    """
    rng = np.random.default_rng(seed)
    run, played, best = Run(Path()), Played(), landscape.best
    size = len(landscape.configs)
    while len(run.trials) < min(size, max_trials or size):
        batch = []
        for _ in range(min(parallel, size - len(run.trials))):
            began = time.perf_counter()
            proposal = proposer.propose(run, 2**31)
            played.seconds += time.perf_counter() - began
            if proposal is None:
                break
            number = len(run.trials) + 1
            run.trials[number] = Trial(
                number, proposal.config, 0.0, proposal.by, proposal.why, proposal.expected
            )
            batch.append(run.trials[number])
        if not batch:
            break
        for trial in batch:
            played.rates.append(_answer(landscape, trial, rng) / best)
        found = played.trials_to(until) if until is not None else None
        if found is not None and len(run.trials) >= 16:
            break
    return played


def _answer(landscape: Landscape, trial: Trial, rng: np.random.Generator) -> float:
    """Tell a trial what was recorded; returns its tokens per second, 0 for a failure."""
    key = tuple(trial.config.items())
    # A repeat that ran shows that the others failed for a reason of their own.
    every = landscape.answers[key]
    recorded = [a for a in every if np.isfinite(a.step_time_s)] or every
    answer = recorded[int(rng.integers(len(recorded)))]
    trial.ended_t = 0.0
    if not np.isfinite(answer.step_time_s):
        trial.kind = "oom"  # sweeps do not tell it from other crashes
        return 0.0
    rate = landscape.tokens[key] / answer.step_time_s
    trial.kind, trial.objective = "ok", rate
    trial.result = {"step_time_s": {"median": answer.step_time_s}}
    if np.isfinite(answer.peak_bytes):
        trial.result["peak_memory_bytes"] = answer.peak_bytes
    return rate


def summary(played: Mapping[str, Sequence[Played]], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Figures per landscape and overall, as the command prints and writes them.

    A replay that never came near counts as one trial more than there are configurations.
    """
    rows = []
    for key, games in played.items():
        size = sizes[key]

        def trials(share: float, games: Sequence[Played] = games, size: int = size) -> float:
            return float(np.mean([g.trials_to(share) or size + 1 for g in games]))

        rows.append(
            {
                "key": key,
                "configs": size,
                "trials_to_5pct": trials(NEAR),
                "trials_to_1pct": trials(NEARER),
                "best_of_8": float(np.mean([g.best_of(8) for g in games])),
                "best_of_16": float(np.mean([g.best_of(16) for g in games])),
                "worst_best_of_8": min(g.best_of(8) for g in games),
                "failed_share": float(np.mean([g.failed_share() for g in games])),
                "proposer_s": float(np.mean([g.seconds / max(len(g.rates), 1) for g in games])),
            }
        )
    overall: dict[str, Any] = {"landscapes": len(rows)}
    for name in ("trials_to_5pct", "trials_to_1pct"):
        values = np.array([row[name] for row in rows])
        overall[name] = {
            "geometric_mean": float(np.exp(np.log(values).mean())),
            "median": float(np.median(values)),
            "worst": float(values.max()),
        }
    for name in ("best_of_8", "best_of_16", "failed_share", "proposer_s"):
        overall[name] = float(np.mean([row[name] for row in rows]))
    overall["landscapes_with_5pct_in_first_8"] = sum(r["worst_best_of_8"] >= 0.95 for r in rows)
    return {"overall": overall, "landscapes": rows}


def text(figures: Mapping[str, Any]) -> str:
    """The figures as a table for people."""
    lines = [
        f"{'landscape':<44} {'configs':>7} {'to 5 %':>7} {'to 1 %':>7} {'best of 8':>9} "
        f"{'of 16':>6} {'failed':>7}"
    ]
    for row in figures["landscapes"]:
        lines.append(
            f"{row['key']:<44} {row['configs']:>7} {row['trials_to_5pct']:>7.1f} "
            f"{row['trials_to_1pct']:>7.1f} {row['best_of_8']:>9.3f} {row['best_of_16']:>6.3f} "
            f"{100 * row['failed_share']:>5.1f} %"
        )
    overall = figures["overall"]
    for name, what in (("trials_to_5pct", "5 %"), ("trials_to_1pct", "1 %")):
        f = overall[name]
        lines.append(
            f"trials to within {what}: geometric mean {f['geometric_mean']:.2f}, "
            f"median {f['median']:.1f}, worst {f['worst']:.1f}"
        )
    lines.append(
        f"failed of the first 16: {100 * overall['failed_share']:.1f} %; "
        f"within 5 % among the first 8: {overall['landscapes_with_5pct_in_first_8']} of "
        f"{overall['landscapes']} landscapes; {overall['proposer_s']:.3f} s a proposal"
    )
    return "\n".join(lines)


def replay(
    table: Table,
    make: Callable[[Landscape, int], Chooser],
    seeds: int,
    parallel: int = 1,
    max_trials: int | None = None,
) -> dict[str, Any]:
    """Play every landscape with every seed; see :func:`summary`."""
    played, sizes = {}, {}
    for landscape in landscapes(table):
        sizes[landscape.key] = len(landscape.configs)
        played[landscape.key] = [
            play(landscape, make(landscape, seed), seed, parallel, max_trials)
            for seed in range(seeds)
        ]
    return summary(played, sizes)
