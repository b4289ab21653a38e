"""``meshtune predict``: what the cost model expects of a space, ranked, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from analysis.cost.groups import MissingFactError
from analysis.cost.model import LIKELY, Prediction
from analysis.prediction.columns import unpriced_axes, unpriced_parameters
from analysis.prediction.goodput import PRICES, Goodput, bill, state_bytes
from analysis.prediction.pricing import NotPricedError, Pricing
from analysis.prediction.satisfaction import satisfaction
from analysis.prediction.start_up import StartUp
from analysis.units import GIB, aligned
from foundation.quantities import config_text, counted, duration, number, tokens_text
from search_spaces import Candidates, CheckReport, SearchSpace, check, notes
from trainer.plan.jobs import Indices

SAMPLED = 1_000_000  # configurations priced of a space too large to list
COUNTED = 50_000  # likewise, where only the share that fits is asked for
SHOWN_SHARE = 0.005  # parts below it are left out of an explanation
TOLERATED_SHARE = 0.03  # of trials that a time limit may end without a warning


@dataclass(frozen=True)
class Ranking:
    """Configurations of a space, the most promising first."""

    pricing: Pricing
    configs: list[dict[str, Any]]  # canonical
    prediction: Prediction  # theirs, in the same order
    num_priced: int  # configurations that were compared
    num_likely: int  # those of them that are expected to fit
    ranked_by: str = ""  # what the order follows; empty for a single configuration
    warnings: tuple[str, ...] = ()  # lines of text on the space's trials

    @classmethod
    def of(cls, pricing: Pricing, top: int, sampled: int = SAMPLED) -> Self:
        """Price a space's valid configurations, at most ``sampled``, and keep the ``top`` best.

        Ranked by ``Pricing.promise`` times the probabilities to fit, to end in time and to satisfy
        the bounds; by memory if none is expected to fit.

        Raises SpaceError if no configuration is valid; it names the rules that remove the most.
        """
        space = pricing.space
        candidates, indices = _sampled(space, sampled)
        prediction = pricing.model.predict(pricing.jobs(candidates.columns(indices)))
        likely = int(np.count_nonzero(prediction.fits >= LIKELY))
        value, ranked_by = -prediction.peak_bytes, "memory"
        if likely:
            value = pricing.promise(prediction) * prediction.fits * pricing.in_time(prediction)
            value = value * satisfaction(pricing, prediction, np.zeros((len(value), 1)))
            first = ", the first objective," if space.more_objectives else ""
            ranked_by = (
                f"{space.objective.key}{first} and the probability to fit and to end in time"
            )
            if space.subject_to:
                ranked_by += f", with {', '.join(bound.text for bound in space.subject_to)}"
        order = np.argsort(-value, kind="stable")[:top]
        configs = [space.canonical(raw) for raw in candidates.configs(indices[order])]
        predicted, warnings = pricing.predict(configs), tuple(_warnings(pricing, prediction))
        return cls(pricing, configs, predicted, len(indices), likely, ranked_by, warnings)

    @classmethod
    def of_one(cls, pricing: Pricing, config: dict[str, Any]) -> Self:
        prediction = pricing.predict([config])
        return cls(pricing, [config], prediction, 1, int(prediction.fits[0] >= LIKELY))

    @cached_property
    def goodput(self) -> Goodput:
        return self.pricing.failures.goodput(self.prediction)

    def table(self, tokens: float | None = None) -> str:
        """The ranking as text, one line per configuration; with the days for training tokens."""
        prediction, pricing = self.prediction, self.pricing
        space = pricing.space
        predicted = pricing.objective(prediction)
        low, high = prediction.interval_s()
        columns = {"#": [str(i + 1) for i in range(len(self.configs))]}
        shown = ("tokens_per_second", "tflops_per_gpu")  # have a column in any case
        if predicted is not None and space.objective.key not in shown:
            columns[space.objective.key] = [f"{value:.5g}" for value in predicted]
        columns |= {
            "step s": [f"{seconds:.4g}" for seconds in prediction.step_time_s],
            "95 % interval": [f"{a:.3g} to {b:.3g}" for a, b in zip(low, high, strict=True)],
            "tokens/s": [f"{rate:,.0f}" for rate in prediction.tokens_per_second],
            "TFLOP/s/GPU": [f"{rate:.3g}" for rate in prediction.tflops_per_gpu],
            "GiB": [f"{size / GIB:.3g}" for size in prediction.memory.total],
            "fits": [f"{100 * fits:.0f} %" for fits in prediction.fits],
        }
        if tokens:
            days, hours = self.goodput.days(tokens), self.goodput.node_hours(tokens)
            columns[f"days for {tokens_text(tokens)}"] = [number(each) for each in days]
            columns["node-hours"] = [f"{each:,.0f}" for each in hours]
        texts = ["", *map(config_text, self.configs)]
        rows = zip(aligned(columns), texts, strict=True)
        lines = [f"{row}  {text}".rstrip() for row, text in rows]
        share = 100 * self.num_likely / max(self.num_priced, 1)
        lines.append(
            f"{space.name}: {self.num_likely:,} of {self.num_priced:,} configurations are "
            f"expected to fit ({share:.3g} %)"
        )
        if self.ranked_by:
            lines.append(f"ranked by {self.ranked_by}")
        return "\n".join([*lines, *self.warnings])

    def explanation(self, tokens: float) -> str:
        """Breakdown of the first configuration's memory and time, and what follows from them."""
        prediction, pricing = self.prediction, self.pricing
        lines = [config_text(self.configs[0])]
        limit = pricing.model.memory_limit_bytes
        total = float(prediction.memory.total[0])
        lines.append(
            f"memory: {total / GIB:.4g} of {limit / GIB:.4g} GiB, "
            f"fits with {100 * prediction.fits[0]:.0f} %; of it torch's allocator reserves "
            f"{prediction.memory.reserved[0] / GIB:.4g} GiB"
        )
        lines += _bars(prediction.memory.as_dict(), total, GIB, "GiB")
        if host := prediction.host_bytes[0] / GIB:
            whole = pricing.model.cluster.host_memory_gib
            of = f" of a node's {whole:.4g} GiB" if whole else ""
            lines.append(
                f"host: {host:.4g} GiB per GPU{of}, fits with {100 * prediction.fits_host[0]:.0f} %"
            )
        step_s = float(prediction.step_time_s[0])
        low, high = prediction.interval_s()
        lines.append(f"step: {step_s:.4g} s, 95 % between {low[0]:.4g} and {high[0]:.4g}")
        lines += _bars(prediction.time.as_dict(), step_s, 1.0, "s")
        each, days = prediction.tokens_per_node_hour[0], prediction.days_to_train(tokens)[0]
        lines.append(f"{tokens_text(each)} per node-hour")
        lines.append(f"{number(days)} days for {tokens_text(tokens)}")
        lines += self._after_failures(tokens)
        joules = float(prediction.joules_per_token[0])
        if np.isfinite(joules):
            lines.append(f"{joules:.4g} J per token at the GPUs' stated power")
        for key, column in bill(prediction, tokens, self.goodput.share).items():
            said = f"{PRICES[key]} for {tokens_text(tokens)} after failures"
            lines.append(f"{said}: {number(column[0])}")
        return "\n".join(lines)

    def _after_failures(self, tokens: float) -> list[str]:
        """Lines on days, node-hours and checkpoints."""
        goodput = self.goodput
        saved = number(state_bytes(self.prediction.jobs)[0] / 1e9)
        return [
            f"after failures: {number(goodput.days(tokens)[0])} days, "
            f"{goodput.node_hours(tokens)[0]:,.0f} node-hours: "
            f"{100 * goodput.share[0]:.3g} % of the time is useful",
            f"  with a checkpoint of {saved} GB every {duration(goodput.interval_s[0])} "
            f"of training, which takes {duration(goodput.save_s[0])}; a restart takes "
            f"{duration(goodput.restart_s[0])}",
            f"  {self.pricing.failures.basis()}",
        ]

    @staticmethod
    def likely_to_fit(report: CheckReport) -> str:
        """One line about how many of a space's valid configurations are expected to fit."""
        try:
            pricing = Pricing(report.space)
        except NotPricedError as error:
            return f"memory is not predicted: {error}"
        candidates, indices = _sampled(report.space, COUNTED)
        model = pricing.model
        jobs = pricing.jobs(candidates.columns(indices))
        fits = model.fits(jobs)
        likely = round(np.count_nonzero(fits >= LIKELY) / len(indices) * report.valid)
        about = "about " if len(indices) < report.valid else ""
        lines = [
            f"{about}{likely:,} of {report.valid:,} valid configurations are "
            f"predicted to fit in {model.memory_limit_bytes / GIB:.4g} GiB "
            "(cost model, uncalibrated)",
            *_notes(pricing),
        ]
        with suppress(MissingFactError):  # memory is predicted without the network, times are not
            lines += _warnings(pricing, model.predict(jobs))
        return "\n".join(lines)


def search_warnings(space: SearchSpace, pricing: Pricing | None) -> tuple[str, ...]:
    """Notes and warnings before a search, as lines of text.

    Raises SpaceError if no configuration is valid; it names the rules that remove the most.
    """
    candidates, indices = _sampled(space, COUNTED)
    said = [f"note: {note}" for note in notes(space)]
    if pricing is None:
        said += [
            f"note: the cost model cannot price the parallel axis {name}: it neither filters nor "
            "ranks configurations"
            for name in unpriced_axes(space)
        ]
        return tuple(said)
    said += _notes(pricing)
    with suppress(MissingFactError):
        prediction = pricing.model.predict(pricing.jobs(candidates.columns(indices)))
        said += _warnings(pricing, prediction)
    return tuple(said)


def _sampled(space: SearchSpace, count: int) -> tuple[Candidates, Indices]:
    """The candidates, and the indices of at most ``count``; raises SpaceError without any."""
    candidates = Candidates(space)
    indices = candidates.indices(count, np.random.default_rng(0), [], max_nodes=2**31)
    if not len(indices):
        check(space)
    return candidates, indices


def _notes(pricing: Pricing) -> Iterator[str]:
    """Notes on parameters whose effect only trials can tell, and objectives without a price."""
    space = pricing.space
    if unknown := [name for name in unpriced_parameters(space) if name not in space.unused()]:
        yield (
            f"note: the cost model sees no difference between values of {', '.join(unknown)}: the "
            "search learns their effect from trials"
        )
    if unknown := [o.key for o in space.objectives if not pricing.prices(o.key)]:
        yield (
            f"note: the cost model does not predict {', '.join(unknown)}: DeepHyper searches, "
            "among what is likely to fit; it predicts tokens_per_second and step_time_s.median, say"
        )


def _warnings(pricing: Pricing, prediction: Prediction) -> Iterator[str]:
    """Warnings if nothing is expected to fit, or many trials to exceed the time limits."""
    trial = pricing.space.trial
    fits = prediction.fits >= LIKELY
    if not fits.any():
        least, limit = prediction.peak_bytes.min() / GIB, pricing.model.memory_limit_bytes / GIB
        if not (prediction.fits_host >= LIKELY).any():
            least = prediction.host_bytes.min() / GIB
            yield (
                f"warning: none is expected to fit: the least that one offloads is {least:,.4g} "
                f"GiB per GPU, of a node's {pricing.model.cluster.host_memory_gib:.4g} GiB "
                "(host_memory_gib); offload less, or use more nodes"
            )
            return
        yield (
            f"warning: none is expected to fit: the least that one needs is {least:,.4g} GiB on "
            f"its fullest GPU, of {limit:.4g} GiB; split the model more (tp, pp, zero_stage, "
            "num_nodes), or recompute"
        )
        return
    step_s, steps = prediction.step_time_s[fits], trial.steps
    start_s = StartUp.expected(pricing.space).base_s
    limits = {
        "timeout": (start_s + steps * step_s, trial.timeout_s),
        "no_progress_timeout": (step_s, trial.no_progress_timeout_s or np.inf),
    }
    for name, (needed_s, limit_s) in limits.items():
        share = float(np.mean(needed_s > limit_s))
        if share > TOLERATED_SHARE:
            yield (
                f"warning: {100 * share:.3g} % of those that fit need longer than "
                f"trial.{name} ({duration(limit_s)}): up to {duration(needed_s.max())}, with "
                f"{counted(steps, 'step')} of {duration(step_s.max())} and "
                f"{duration(start_s)} to start"
            )


def _bars(parts: Mapping[str, np.ndarray], total: float, unit: float, name: str) -> list[str]:
    shown = sorted(((float(v[0]), k) for k, v in parts.items()), reverse=True)
    return [
        f"  {key.replace('_', ' '):<18} {value / unit:>9.4g} {name:<4} "
        f"{100 * value / total:>5.1f} %  {'#' * round(40 * value / total)}".rstrip()
        for value, key in shown
        if value > SHOWN_SHARE * total
    ]
