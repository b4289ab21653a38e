"""Throughput of a user's own trainer in one convention, and whether it is possible.

Step time, tokens, sequences and FLOPs per second follow from one another if the space has the model
and the batch. Frameworks count FLOPs differently, some with the recomputed ones, so that
recomputing looks faster; here a step's FLOPs are ``trainer.plan.flops.model_flops``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import truediv
from typing import Any

from analysis import Metrics
from foundation.quantities import number
from search_spaces import SearchSpace
from trainer.plan.flops import model_flops
from trainer.plan.model import ModelConfig

_APART = 1.6  # factor between two metrics of one speed: other steps, other clocks
_CONVENTIONS = 3.0  # the same for FLOPs: with recomputation, causal attention counted half
_RATES = (
    *("tokens_per_second", "samples_per_second", "tokens_per_second_per_gpu"),
    "micro_batches_per_second",
)
_LATE = 1.1  # factor by which a logged step time may exceed the trial's own time


@dataclass(frozen=True)
class Job:
    model: ModelConfig | None  # None if the space names none
    sequences: float  # per step, over all replicas
    num_gpus: int
    micro_batches: float = 1  # per step and replica
    uneven: str = ""  # why tokens do not follow from sequences
    trained: float = 1.0  # share of the weights; adapters count as none

    def rates(self, step_time_s: float) -> dict[str, float]:
        """Every metric that follows from the time of a step."""
        rates = {
            "step_time_s.median": step_time_s,
            "samples_per_second": self.sequences / step_time_s,
            "micro_batches_per_second": self.micro_batches / step_time_s,
        }
        if self.model is not None and not self.uneven:
            tokens = self.sequences * self.model.seq_length
            tflop = float(model_flops(self.model, self.sequences, self.trained)) / 1e12
            rates |= {
                "tokens_per_second": tokens / step_time_s,
                "tokens_per_second_per_gpu": tokens / step_time_s / self.num_gpus,
                "tflops_per_gpu": tflop / self.num_gpus / step_time_s,
            }
        return rates

    def counted(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Metrics that follow from the tokens per second that a trainer has counted."""
        rate, per_gpu = (Metrics(result).get(f"tokens_per_second{of}") for of in ("", "_per_gpu"))
        if rate is None and per_gpu is not None:
            rate = per_gpu * self.num_gpus
        if rate is None:
            return {}
        found = {"tokens_per_second": rate, "tokens_per_second_per_gpu": rate / self.num_gpus}
        if self.model is not None:
            flops = float(model_flops(self.model, 1, self.trained)) / self.model.seq_length
            found["tflops_per_gpu"] = flops / 1e12 * found["tokens_per_second_per_gpu"]
        return found


def job_of(space: SearchSpace, config: Mapping[str, Any]) -> Job | None:
    """The job of a user's own trainer; None for the built-in one, or without a batch size."""
    if space.trainer.builtin is not None:
        return None
    facts = space.facts(config)
    sequences = facts.get("global_batch_size")
    if not isinstance(sequences, (int, float)):
        return None
    gpus, gas = int(facts["world_size"]), float(facts["gas"])
    trained = 1.0 if facts.get("tuning", "full") == "full" else 0.0
    return Job(space.model, sequences, gpus, gas, space.uneven_lengths, trained)


def named_by_meaning(
    space: SearchSpace, config: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, Any]:
    """A result whose tokens are named padded ones if the trainer counts padding."""
    by = space.program.log.padded_by
    if by not in space.parameters or not space.facts(config)[by]:
        return dict(result)
    padded = {key: f"padded_{key}" if key.startswith("tokens") else key for key in result}
    return {name: result[key] for key, name in padded.items()}


def step_time_s(job: Job, result: Mapping[str, Any]) -> tuple[float, str] | None:
    """Seconds of a step, and the key that they follow from; None if there is none."""
    one = job.rates(1.0)
    follows: dict[str, Callable[[float], float]] = {
        "step_time_s.median": lambda seconds: seconds,
        "step_time_s": lambda seconds: seconds,
        "steps_per_second": lambda rate: 1 / rate,
        "micro_batch_time_s": lambda seconds: seconds * job.micro_batches,
        **{key: partial(truediv, one[key]) for key in _RATES if key in one},
    }
    for key, seconds_of in follows.items():
        value = Metrics(result).get(key)
        if value is not None and 0 < value < math.inf:
            return seconds_of(value), key
    return None


def completed(job: Job | None, result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the metrics that follow from its own.

    FLOPs per second are replaced by those of this convention, and kept as
    ``reported_tflops_per_gpu``; missing metrics are added. If lengths vary, tokens are those that
    the trainer has counted.
    """
    whole = _counted(result)
    if job is None:
        return whole
    job = _counting(job, result)
    found = step_time_s(job, result)
    rates = job.rates(found[0]) if found else {}
    rates |= job.counted(whole) if job.uneven else {}
    if "tflops_per_gpu" in rates:
        if (reported := Metrics(result).get("tflops_per_gpu")) is not None:
            whole["reported_tflops_per_gpu"] = reported
        whole["tflops_per_gpu"] = rates["tflops_per_gpu"]
    for key in _RATES[:-1]:
        if key in rates:
            whole.setdefault(key, rates[key])
    if found and ("step_time_s" not in whole or Metrics(whole).get("step_time_s") is not None):
        whole["step_time_s"] = {"median": rates["step_time_s.median"]}
    return whole


def _counted(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the mean token rate, if the trainer gives only the total at its end."""
    tokens, time_s = (Metrics(result).get(key) for key in ("tokens", "run_time_s"))
    rate = {"tokens_per_second": tokens / time_s} if tokens is not None and time_s else {}
    return {**rate, **result}


def _counting(job: Job, result: Mapping[str, Any]) -> Job:
    """The job; if its trainer counts tokens, their rates are not derived."""
    counts = "tokens" in result and not job.uneven
    return replace(job, uneven="the trainer counts tokens") if counts else job


def contradiction(
    space: SearchSpace, job: Job, result: Mapping[str, Any], elapsed_s: float
) -> str | None:
    """A message about two metrics that cannot both be true; None if all can.

    ``result`` is the trainer's own, ``elapsed_s`` the trial's time from start to end, 0 if
    unknown.
    """
    job = _counting(job, result)
    found = step_time_s(job, result)
    if found is None:
        tflops = Metrics(result).get("tflops_per_gpu")
        return _beyond_peak(space, tflops, _said("tflops_per_gpu", tflops))
    seconds, key = found
    said = _said(key, Metrics(result).get(key))
    if 0 < _LATE * elapsed_s < seconds:
        return (
            f"{said} would be {number(seconds)} s a step, but the trial took {number(elapsed_s)} s"
        )
    rates = job.rates(seconds) | (job.counted(result) if job.uneven else {})
    for other, rate in rates.items():
        value = Metrics(result).get(other)
        if other == key or value is None or not 0 < value < math.inf:
            continue
        apart = _CONVENTIONS if other == "tflops_per_gpu" else _APART
        if not 1 / apart < value / rate < apart:
            return (
                f"{said} means {other} {number(rate)} for {number(job.sequences)} sequences"
                f"{f' of {job.model.seq_length} tokens' if job.model else ''} on {job.num_gpus} "
                f"GPUs, but its own is {number(value)}: check the units, and whether a metric is "
                "per GPU"
            )
    return _beyond_peak(space, rates.get("tflops_per_gpu"), said)


def _beyond_peak(space: SearchSpace, tflops: float | None, said: str) -> str | None:
    cluster = space.cluster
    if cluster is None:
        return None
    peaks = (cluster.peak_bf16_tflops, cluster.peak_fp32_tflops)
    peak = 2 * max(peak or 0.0 for peak in peaks)  # of 8-bit products
    peak *= cluster.shared_by  # a rank that is busy alone has the others' share
    if tflops is None or not math.isfinite(tflops) or tflops <= peak:
        return None
    return (
        f"{said} means {number(tflops)} model TFLOP/s per GPU, but a GPU of {cluster.name} "
        f"has at most {number(peak)}: check the unit, and whether it is per GPU"
    )


def _said(key: str, value: float | None) -> str:
    return f"{key} {number(value)}" if value is not None else key
