"""Share of a long run that trains: failures of nodes, checkpoints and restarts take the rest.

Failures are assumed memoryless. A job with M seconds between failures on average saves after every
T seconds of training, in C seconds, and needs R seconds to train again after a failure. The share

    T / (M exp(R / M) (exp((T + C) / M) - 1))

of its time is training that is kept (Daly 2006). The best T is ``sqrt(2 C M)`` to first order
(Young 1974). A lost node is assumed to be replaced at once.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from analysis.cost.model import Prediction
from analysis.cost.tuning import trained_share
from analysis.metrics import Metrics
from analysis.prediction.start_up import StartUp
from analysis.run.trial import Trial
from search_spaces import SearchSpace
from slurm import BLAMELESS
from trainer.plan.jobs import Array, Jobs
from trainer.plan.sizes import model_weights, table_weights

DAY_S = 86400.0
# Llama 3: 466 interruptions in 54 days on 16,384 GPUs, 2,048 nodes (Meta 2024, section 3.3.4). The
# trace of InfiniteHBD (SIGCOMM 2025): 584 faults of 400 servers in 348 days.
PER_NODE_DAY = 0.0042
# One node's part of the 2 TB/s that Llama 3's storage sustained (Meta 2024, section 3.3.1).
STORAGE_GB_PER_S = 1.0
DETECTION_S = 300.0  # until a dead node is known: Slurm's default SlurmdTimeout
# 16-bit weights; float32 weights and two moments (Rajbhandari et al. 2020, section 3.1).
STATE_BYTES = 14


def useful_share(mtbf_s: Any, interval_s: Any, save_s: Any, restart_s: Any) -> Array:
    """Share of a job's time that trains and is kept; M, T, C and R of the module, in seconds."""
    with np.errstate(over="ignore"):  # of jobs that make no progress
        lost = np.exp(restart_s / mtbf_s) * np.expm1((interval_s + save_s) / mtbf_s)
    return np.asarray(interval_s / (mtbf_s * lost))


def best_interval_s(mtbf_s: Any, save_s: Any) -> Array:
    """Best seconds of training between checkpoints (Daly 2006, equation 37)."""
    x = np.sqrt(save_s / (2 * mtbf_s))
    near = np.sqrt(2 * save_s * mtbf_s) * (1 + x / 3 + x**2 / 9) - save_s
    return np.asarray(np.where(save_s < 2 * mtbf_s, near, mtbf_s))


@dataclass(frozen=True)
class Goodput:
    """Jobs that train for long: one entry of each column per job."""

    prediction: Prediction  # of the jobs
    share: Array  # of their time that trains and is kept
    interval_s: Array  # of training between checkpoints
    save_s: Array  # for which a checkpoint stops training
    restart_s: Array  # from a failure to the next step

    def days(self, tokens: float) -> Array:
        return np.asarray(self.prediction.days_to_train(tokens) / self.share)

    def node_hours(self, tokens: float) -> Array:
        return self.days(tokens) * 24 * self.prediction.num_nodes

    def columns(self, tokens: float) -> dict[str, Array]:
        spent = bill(self.prediction, tokens, self.share)
        return {
            "useful_share": self.share,
            "checkpoint_interval_s": self.interval_s,
            "checkpoint_s": self.save_s,
            "restart_s": self.restart_s,
            "days_to_train": self.days(tokens),
            "node_hours_to_train": self.node_hours(tokens),
            **{f"{PRICES[key]}_to_train": column for key, column in spent.items()},
        }


@dataclass(frozen=True)
class Failures:
    """How often nodes fail, and what that costs a job."""

    per_node_day: float  # failures of one node
    storage_gb_per_s: float  # of each node of a job, to write and read checkpoints
    start_up: StartUp  # from launch to first step
    # names of those above that the cluster states; the others are priors
    stated: frozenset[str] = frozenset()
    # measured by number of nodes: a node's part of a checkpoint over the time for which saving it
    # stops training; more than ``storage_gb_per_s`` if checkpoints are asynchronous
    saved_gb_per_s: Mapping[int, float] = field(default_factory=dict)
    # measured mean from a failure to the next step, start-up apart; None before any failure
    lost_s: float | None = None
    # share of the time from a start's first step to its last that is neither a step nor a
    # checkpoint: logs and validation
    between_share: float = 0.0
    seen: int | None = None  # failures that the run itself has had; None before it

    @classmethod
    def expected(cls, space: SearchSpace) -> Self:
        """The facts of a space's cluster, or priors, before any trial."""
        own = cls(PER_NODE_DAY, STORAGE_GB_PER_S, StartUp.expected(space))
        facts = {
            "per_node_day": space.cluster and space.cluster.node_failures_per_day,
            "storage_gb_per_s": space.cluster and space.cluster.storage_gb_per_s,
        }
        stated: dict[str, Any] = {name: value for name, value in facts.items() if value}
        return replace(own, **stated, stated=frozenset(stated))

    def learned(self, space: SearchSpace, trials: Iterable[Trial]) -> Self:
        """The same after trials of a space: their start-ups and checkpoints."""
        trials = list(trials)
        saved = {**self.saved_gb_per_s, **_saved_gb_per_s(space, trials)}
        return replace(self, start_up=StartUp.learned(space, trials), saved_gb_per_s=saved)

    def observed(self, starts: Iterable[Trial]) -> Self:
        """The same after the starts of a training run, by the times in their results.

        The rate known before counts as one failure in its mean time between failures.
        """
        ended = [start for start in starts if start.attempts]
        if not ended:
            return self
        node_s = sum(len(s.attempts[-1].nodes) * s.result.get("elapsed_s", 0.0) for s in ended)
        # A configuration that cannot run says nothing about nodes.
        hit = [s for s in ended if s.kind in BLAMELESS or (s.failed and "step_time_s" in s.result)]
        tails_s = [start.result["tail_s"] for start in hit if "tail_s" in start.result]
        idle_s = [start.result["idle_s"] for start in ended[1:] if "idle_s" in start.result]
        lost_s = statistics.fmean(tails_s) + statistics.fmean(idle_s or [0.0]) if tails_s else None
        rate = (1 + len(hit)) / (1 / self.per_node_day + node_s / DAY_S)
        stepped = [s.result for s in ended if "between_share" in s.result]
        shares = [result["between_share"] for result in stepped]
        between = statistics.fmean(shares, [r["elapsed_s"] for r in stepped]) if shares else 0.0
        return replace(self, per_node_day=rate, seen=len(hit), lost_s=lost_s, between_share=between)

    def goodput(self, prediction: Prediction) -> Goodput:
        """Goodput of predicted jobs, each with its best checkpoint interval."""
        nodes = prediction.num_nodes
        node_gb = state_bytes(prediction.jobs) / 1e9 / nodes
        rates = self.saved_gb_per_s or {1: self.storage_gb_per_s}
        widths, nearest = np.array([*rates]), np.log(nodes)[:, None]
        rate = np.array([*rates.values()])[np.abs(np.log(widths) - nearest).argmin(axis=1)]
        save_s, read_s = node_gb / rate, node_gb / self.storage_gb_per_s
        restart_s = self.start_up.seconds(nodes)
        restart_s = restart_s + (DETECTION_S + read_s if self.lost_s is None else self.lost_s)
        mtbf_s = DAY_S / (nodes * self.per_node_day)
        interval_s = np.maximum(best_interval_s(mtbf_s, save_s), prediction.step_time_s)
        return Goodput(
            prediction=prediction,
            share=useful_share(mtbf_s, interval_s, save_s, restart_s) * (1 - self.between_share),
            interval_s=interval_s,
            save_s=save_s,
            restart_s=restart_s,
        )

    def basis(self) -> str:
        """A line of text on what the figures rest on."""
        source = {True: "stated", False: "prior"}
        rate, stored = (source[n in self.stated] for n in ("per_node_day", "storage_gb_per_s"))
        if rates := self.saved_gb_per_s.values():
            ends = dict.fromkeys(f"{rate:.3g}" for rate in (min(rates), max(rates)))
            written = f"{' to '.join(ends)} GB/s (measured)"
        else:
            written = f"{self.storage_gb_per_s:.3g} GB/s ({stored})"
        if self.seen is not None:
            rate = f"{rate} and {self.seen} of this run"
        starts = "measured" if self.start_up.widths or self.lost_s is not None else "prior"
        return (
            f"{self.per_node_day:.3g} failures per node and day ({rate}), checkpoints at {written} "
            f"per node, start-up {starts}"
        )


PRICES = {"cost": "cost", "co2": "co2_kg"}  # entries of a bill, and their names with units


def bill(prediction: Prediction, tokens: float, share: Array | float = 1.0) -> dict[str, Array]:
    """``Cluster.bill`` of training ``tokens`` at the GPUs' stated power, by the useful share."""
    cluster = prediction.model.cluster
    joules = tokens * prediction.joules_per_token / share if cluster.power_watts else None
    node_s = tokens / prediction.tokens_per_second / share * prediction.num_nodes
    return cluster.bill(node_s, joules)


def state_bytes(jobs: Jobs) -> Array:
    """Bytes of a checkpoint: the trained weights and the optimizer's states."""
    tables = np.where(jobs.model.tied_embeddings, 1.0, 2.0) * table_weights(jobs.model)
    return np.asarray(STATE_BYTES * trained_share(jobs) * (model_weights(jobs.model) + tables))


def _saved_gb_per_s(space: SearchSpace, trials: Iterable[Trial]) -> dict[int, float]:
    """Median rate at which a node's part of a checkpoint was saved, by number of nodes."""
    rates = defaultdict[int, list[float]](list)
    for trial in trials:
        metrics, whole = Metrics(trial.result), trial.measured
        save_s = metrics.get("checkpoint_s.median")
        weights = metrics.get("parameters") or (space.model and space.model.num_parameters)
        if whole and whole.nodes and save_s and weights:
            rates[len(whole.nodes)].append(STATE_BYTES * weights / 1e9 / len(whole.nodes) / save_s)
    return {nodes: statistics.median(every) for nodes, every in rates.items()}
