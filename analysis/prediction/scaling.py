"""``meshtune predict --scaling``: one configuration over more and more nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from analysis.cost.constants import EDGE, log_sds
from analysis.cost.model import LIKELY, CostModel, Prediction
from analysis.cost.step import step
from analysis.cost.time_constants import TimeConstants
from analysis.prediction.goodput import PRICES, Goodput, bill
from analysis.prediction.pricing import Pricing
from analysis.units import GIB, aligned
from foundation.quantities import config_text, duration, tokens_text
from search_spaces import Parameter, SearchSpace
from trainer.plan.jobs import Array

Scaling = Literal["weak", "strong"]
DOUBLINGS = 6  # of a configuration's nodes, if the cluster does not state how many it has


@dataclass(frozen=True)
class Scaled:
    """A configuration on several numbers of nodes."""

    mode: Scaling  # ``weak``: the batch grows with the nodes; ``strong``: it stays
    config: Mapping[str, Any]
    prediction: Prediction  # for each possible number of nodes, ascending
    efficiency: Array  # tokens/s of a node over those on the fewest nodes
    efficiency_log_sds: tuple[Array, Array]  # of its logarithm, down and up; see ``_log_sds``
    goodput: Goodput  # of the predicted jobs
    basis: str  # of the goodput, as a line of text
    left_out: tuple[str, ...]  # why other numbers of nodes are missing, as lines of text

    @property
    def tokens_per_second_interval(self) -> tuple[Array, Array]:
        """95 % interval, low and high."""
        low_s, high_s = self.prediction.interval_s()
        tokens = self.prediction.tokens_per_second * self.prediction.step_time_s
        return tokens / high_s, tokens / low_s

    @property
    def efficiency_interval(self) -> tuple[Array, Array]:
        """95 % interval, low and high."""
        less, more = self._efficiency_factors
        return self.efficiency / less, self.efficiency * more

    @property
    def _efficiency_factors(self) -> tuple[Array, Array]:
        down, up = self.efficiency_log_sds
        return np.exp(EDGE * down), np.exp(EDGE * up)

    @classmethod
    def of(
        cls, pricing: Pricing, config: Mapping[str, Any], mode: Scaling, nodes: Sequence[int] = ()
    ) -> Self:
        """Predict a configuration on other numbers of nodes.

        Its degrees stay, except for those of data parallelism, which follow from the nodes. Rules
        of the space itself, such as a limit on the batch, do not apply. ``nodes`` default to its
        own, repeatedly halved and doubled.

        Raises ValueError, with the reasons, if no number of nodes is possible.
        """
        space = pricing.space
        counts = sorted(set(nodes)) or _doubled(
            space.num_nodes(config), pricing.model.cluster.num_nodes
        )
        wished, kept, left_out = [], [], defaultdict[str, list[int]](list)
        for count in counts:
            resized = _resized(space, config, mode, count)
            if isinstance(resized, str):
                left_out[resized].append(count)
            else:
                wished.append(resized)
        prices = Pricing(_widened(space, wished))
        prices.model = pricing.model
        for other in wished:
            if why := _hindrance(prices, other):
                left_out[why].append(int(other["num_nodes"]))
            else:
                kept.append(other)
        reasons = tuple(f"{_listed(counts)}: {why}" for why, counts in left_out.items())
        if not kept:
            raise ValueError("\n  ".join(["it can be scaled to no number of nodes", *reasons]))
        prediction = prices.predict(kept)
        rate = prediction.tokens_per_node_hour
        return cls(
            mode=mode,
            config=space.canonical(config),
            prediction=prediction,
            efficiency=rate / rate[0],
            efficiency_log_sds=_log_sds(prediction),
            goodput=pricing.failures.goodput(prediction),
            basis=pricing.failures.basis(),
            left_out=reasons,
        )

    def table(self, tokens: float) -> str:
        """A table, a line for each number of nodes; 95 % intervals in parentheses."""
        prediction, goodput = self.prediction, self.goodput
        low_s, high_s = prediction.interval_s()
        less, more = prediction.step_time_s / low_s, high_s / prediction.step_time_s
        columns: dict[str, list[str]] = {
            "nodes": [f"{n:,.0f}" for n in prediction.num_nodes],
            "gas": [f"{n:.0f}" for n in prediction.jobs.layout.gas],
            "batch": [f"{n:,.0f}" for n in prediction.jobs.global_batch],
            "step s": _ranges(prediction.step_time_s, less, more),
            "tokens/s": _ranges(prediction.tokens_per_second, more, less),
            "efficiency %": _ranges(100 * self.efficiency, *self._efficiency_factors),
            "useful %": [f"{100 * share:.3g}" for share in goodput.share],
            "save every": [duration(each) for each in goodput.interval_s],
            f"days for {tokens_text(tokens)}": _ranges(goodput.days(tokens), less, more),
            "node-hours": [_digits(hours) for hours in goodput.node_hours(tokens)],
        }
        if np.all(np.isfinite(prediction.joules_per_token)):
            columns["J/token"] = _ranges(prediction.joules_per_token, less, more)
        for key, column in bill(prediction, tokens, goodput.share).items():
            columns[PRICES[key]] = [_digits(value) for value in column]
        columns["fits"] = [f"{100 * fits:.0f} %" for fits in prediction.fits]
        lines = [f"{self.mode} scaling of {config_text(self.config)}", *aligned(columns)]
        lines += [f"after failures: {self.basis}", *(f"left out: {why}" for why in self.left_out)]
        return "\n".join(lines)


def _resized(
    space: SearchSpace, config: Mapping[str, Any], mode: Scaling, count: int
) -> dict[str, Any] | str:
    """The configuration on a number of nodes; why there is none, if its batch is not divisible."""
    facts: dict[str, Any] = space.facts(config)
    ranks = int(facts["world_size"] // facts["dp"])  # of one replica
    replicas = count * int(facts["gpus_per_node"]) // ranks
    gas = int(facts["gas"])
    if mode == "strong" and replicas:
        gas, rest = divmod(int(facts["global_batch_size"]), int(facts["mbs"]) * replicas)
        if rest or not gas:
            return (
                f"{facts['global_batch_size']} sequences are not a whole number of micro-batches "
                f"of {facts['mbs']} on each replica"
            )
    dp = {"dp": replicas} if "dp" in space.parameters else {}
    return {**space.raw(config), "num_nodes": count, "gas": gas, **dp}


def _ranges(values: Array, below: Array, above: Array) -> list[str]:
    """Values with their intervals, from value / below to value * above."""
    columns = (values.tolist(), (values / below).tolist(), (values * above).tolist())
    return [
        f"{_digits(value)} ({_digits(low)}-{_digits(high)})"
        for value, low, high in zip(*columns, strict=True)
    ]


def _digits(value: float) -> str:
    """Three digits, or all of a large number."""
    return f"{value:,.0f}" if 999.5 <= value < 1e12 else f"{value:.3g}"


def _doubled(count: int, most: int | None) -> list[int]:
    most = most or count * 2**DOUBLINGS
    while count % 2 == 0:
        count //= 2
    return [count << k for k in range(most.bit_length()) if count << k <= most]


def _widened(space: SearchSpace, configs: Sequence[Mapping[str, Any]]) -> SearchSpace:
    """The space with the nodes and micro-batches of ``configs``, and its required rules alone."""
    values = {
        name: tuple(dict.fromkeys(config[name] for config in configs))
        for name in ("num_nodes", "gas", "dp")
        if configs and name in configs[0]
    }
    others = {name: p for name, p in space.parameters.items() if name not in values}
    return replace(
        space,
        parameters=others | {name: Parameter(name, found) for name, found in values.items()},
        rules=tuple(rule for rule in space.rules if rule.required),
    )


def _hindrance(prices: Pricing, config: Mapping[str, Any]) -> str:
    """Why a configuration is not expected to run; empty if it is."""
    if broken := prices.space.first_violation(config):
        return broken.rpartition(" (")[0]
    prediction, model = prices.predict([config]), prices.model
    if prediction.fits[0] >= LIKELY:
        return ""
    if model.refuses(prediction.jobs)[0]:
        return f"{_own_model(prediction).framework.name} refuses it"
    return f"expected to need more than {model.memory_limit_bytes / GIB:.4g} GiB"


def _log_sds(prediction: Prediction) -> tuple[Array, Array]:
    """Standard deviations of the log efficiency by the uncertainty of constants, down and up.

    An error that all sizes share, such as in the rate of products, cancels. Before a calibration
    the constants' priors apply alone: the spread of links between machines, which widens a step's
    interval, is not known to widen that of a ratio.
    """
    model = _own_model(prediction)
    covariance = model.constants.covariance(model.covariance)

    def logarithm(constants: TimeConstants) -> Array:
        logs = np.log(step(prediction.jobs, model.cluster, model.framework, constants).total)
        return np.asarray(logs[..., :1] - logs)

    return log_sds(model.constants, covariance, logarithm)


def _own_model(prediction: Prediction) -> CostModel:
    """The model of the engine that the configuration uses."""
    return prediction.model.engines[int(prediction.jobs.options.engine[0])]


def _listed(counts: Sequence[int]) -> str:
    return f"{', '.join(f'{count:,}' for count in counts)} node{'s' if counts[-1] > 1 else ''}"
