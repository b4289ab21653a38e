"""``--launcher simulate``: a simulated cluster whose trials take the cost model's times."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, SupportsFloat, get_args, get_type_hints

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from analysis import MissingMetricError, StartUp
from foundation.documents import plain_scalar
from foundation.messages import nearest
from foundation.records import wrong_value
from search_spaces import SearchSpace, ValidConfigs
from slurm import Price, SimulatedCluster, SimulatedLauncher
from trainer.plan.fields import Recompute
from trainer.plan.flops import executed_flops, speed
from workflows.search.objectives import values_of

if TYPE_CHECKING:
    from analysis import Pricing

# Per configuration: seconds of one step (nan: the trainer refuses it), bytes that the fullest rank
# needs, and bytes that it would report. Raises ValueError if it cannot price one.
Answers = Callable[[Sequence[Mapping[str, Any]]], tuple[Sequence[SupportsFloat], ...]]

Rate = Annotated[float, Field(ge=0)]

TRIED = 500  # configurations drawn to check that the model can price the space
DEFAULT_TRIALS = 8  # widest trials at once: with more, none would learn from another


class SimulationError(ValueError):
    """Unusable simulation settings; the message names the remedy."""


@dataclass(frozen=True)
class Settings(SimulatedCluster):
    """A simulated cluster, and its distance from the cost model."""

    model_error: Rate = 0.0  # of the model's constants, relative to the spread of their priors
    misfit: Rate = 0.0  # see :class:`SpaceWorkload`


def settings_of(space: SearchSpace, text: str) -> Settings:
    """The settings in ``text``, with defaults for a space.

    Raises SimulationError for an unknown key or a value that does not fit it.
    """
    known = None if space.cluster is None else space.cluster.num_nodes
    most = DEFAULT_TRIALS * space.widths[-1]
    nodes = min(known or most, most)
    fields: dict[str, Any] = {"nodes": nodes, "start_up_s": StartUp.expected(space).base_s}
    types = get_type_hints(Settings, include_extras=True)
    names = {name.removesuffix("_s"): name for name in types}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in names:
            raise SimulationError(
                f"--simulate {item}: accepted KEY=VALUE,... with {', '.join(names)}"
                f"{nearest(key, names)}"
            )
        try:
            kind = TypeAdapter[Any](types[names[key]], config=ConfigDict(allow_inf_nan=False))
            fields[names[key]] = kind.validate_python(plain_scalar(value), strict=True)
        except ValidationError as error:
            raise SimulationError(f"--simulate {item}: {wrong_value(error.errors()[0])}") from None
    return Settings(**fields)


class SpaceWorkload:
    """Simulated results of a space: the cost model's predictions times an optional misfit.

    The misfit is a factor per value of every parameter, for time and for memory: an effect that no
    constants of the model explain. The factors are drawn once, so that the logarithm of their
    product has the spread ``misfit`` over all configurations; 0: the cost model's ``answers`` are
    true.

    Raises SimulationError if the space has no model, mbs or gas.
    """

    def __init__(
        self, space: SearchSpace, answers: Answers, misfit: float = 0.0, seed: int = 0
    ) -> None:
        known = space.facts(_any_config(space)).keys()
        if space.model is None or space.cluster is None or not {"mbs", "gas"} <= known:
            raise SimulationError(f"{space.file}: simulation needs a model, a cluster, mbs and gas")
        self._space = space
        self._model, self._cluster = space.model, space.cluster
        self._answers = answers
        self.warmup_steps = space.trial.warmup_steps
        self.measured_steps = space.trial.measured_steps
        limit = space.trainer.builtin and space.trainer.builtin.device_memory_bytes
        self.memory_bytes = limit or space.cluster.memory_bytes
        self._time = _Misfit(space, misfit, f"{seed}/time")
        self._memory = _Misfit(space, misfit, f"{seed}/memory")

    def price(self, config: Mapping[str, Any]) -> Price:
        (step_time_s,), (needed_bytes,), (peak_bytes,) = self._answers([config])
        slower, larger = self._time.factor(config), self._memory.factor(config)
        return Price(
            float(step_time_s) * slower,
            float(needed_bytes) * larger,
            float(peak_bytes) * larger,
            refused=math.isnan(float(step_time_s)),
        )

    def figures(
        self, config: Mapping[str, Any], step_times_s: Sequence[float], peak_bytes: float
    ) -> dict[str, Any]:
        """The built-in trainer's metrics (``trainer.result``), and energy if the power is known."""
        told = self._speed(config, step_times_s)
        gpus, power_watts = told["world_size"], self._cluster.power_watts
        energy = {"energy_joules": power_watts * gpus * sum(step_times_s)} if power_watts else {}
        memory = {"peak_memory_bytes": int(peak_bytes)}
        return {"status": "ok", **told, **memory, **energy}

    def step(self, config: Mapping[str, Any], number: int, step_time_s: float) -> dict[str, Any]:
        told = self._speed(config, [step_time_s])
        return {"step": number, **told, "step_time_s": step_time_s}

    def _speed(self, config: Mapping[str, Any], step_times_s: Sequence[float]) -> dict[str, Any]:
        facts = self._space.facts(config)
        gpus, dp = int(facts["world_size"]), int(facts["dp"])
        batch = int(facts["mbs"]) * int(facts["gas"]) * dp
        recompute: Any = facts.get("recompute", "none")
        if recompute not in get_args(Recompute):  # a value of a user's own trainer
            recompute = "none"
        builtin = self._space.trainer.builtin is not None
        split = any(int(facts.get(axis, 1)) > 1 for axis in ("cp", "gx", "gy", "gz"))
        every = int(facts.get("recompute_every", 1)) if builtin else 1
        executed = executed_flops(self._model, batch, recompute, builtin and not split, every)
        told = speed(self._model, gpus, dp, batch, step_times_s, executed)
        return {**told, "world_size": gpus}


class _Misfit:
    """A factor per value of every varied parameter that has a list of values."""

    def __init__(self, space: SearchSpace, spread: float, seed: str) -> None:
        # Factors for the values of an interval would be noise: neighbours train alike.
        varied = [p for p in space.parameters.values() if p.varies and p.span is None]
        self._logs = {}
        for parameter in varied:
            chance = random.Random(f"{seed}/{parameter.name}")
            each = spread / math.sqrt(len(varied))
            for value in parameter.values:
                self._logs[parameter.name, value] = chance.gauss(0.0, each)

    def factor(self, config: Mapping[str, Any]) -> float:
        return math.exp(sum(self._logs.get(item, 0.0) for item in config.items()))


def simulated_launcher(
    space: SearchSpace, text: str, start: float = 0.0, answers: Answers | None = None
) -> SimulatedLauncher:
    """The launcher of ``--simulate TEXT``; docs/guide/simulate.md lists the keys.

    ``start`` is the virtual time in seconds since the epoch; ``answers`` default to the cost
    model's.

    Raises SimulationError for wrong keys and values, and for a search that cannot be simulated.
    """
    cluster = settings_of(space, text)
    budget = space.budget
    if not (budget.trials or budget.wall_time_s or budget.node_hours or cluster.time_s):
        raise SimulationError(
            "virtual time has no end: give --trials, a budget, or --simulate time=6h"
        )
    answers = answers or _cost_model(space, cluster.model_error, cluster.seed)
    workload = SpaceWorkload(space, answers, cluster.misfit, cluster.seed)
    _try_prices(space, answers)
    measured = workload.figures(_any_config(space), [1.0], 1.0)
    try:
        for wanted in (space.objectives, space.subject_to):
            values_of(wanted, space, _any_config(space), measured)
    except MissingMetricError as missing:
        energy = missing.key == "energy_joules"
        raise SimulationError(
            f"{space.file}: a simulated trial does not measure {missing.key!r}, only "
            f"{', '.join(name for name in measured if name != 'status')}"
            f"{'; it does where the cluster states power_watts' if energy else ''}"
        ) from missing
    return SimulatedLauncher(cluster, workload, start)


def _try_prices(space: SearchSpace, answers: Answers) -> None:
    """Raise before the search if some configurations need a fact that is missing."""
    drawn = ValidConfigs(space).sample(TRIED, np.random.default_rng(0))
    columns = {name: column.tolist() for name, column in space.raw_columns(drawn).items()}
    rows = zip(*columns.values(), strict=True)
    try:
        answers([dict(zip(columns, row, strict=True)) for row in rows])
    except ValueError as problem:
        raise SimulationError(f"{space.file}: cannot be simulated: {problem}") from problem


def _any_config(space: SearchSpace) -> dict[str, Any]:
    return {name: parameter.values[0] for name, parameter in space.parameters.items()}


def _cost_model(space: SearchSpace, error: float, seed: int) -> Answers:
    """The space's prices, with constants off by ``error`` times their priors' spread."""
    from analysis import NotPricedError

    try:
        pricing = true_pricing(space, error, seed)
    except NotPricedError as problem:
        raise SimulationError(f"{space.file}: cannot be simulated: {problem}") from problem

    def answers(configs: Sequence[Mapping[str, Any]]) -> tuple[Any, Any, Any]:
        prediction, model = pricing.predict(configs), pricing.model
        reported = model.reported_peak_bytes(prediction.jobs)
        impossible = model.refuses(prediction.jobs)
        step_time_s = np.where(impossible, np.nan, prediction.step_time_s)
        return step_time_s, prediction.peak_bytes, reported

    return answers


def true_pricing(space: SearchSpace, error: float, seed: int) -> Pricing:
    """The prices of a simulated cluster; see ``model_error``.

    Raises NotPricedError if the cost model cannot price the space.
    """
    from analysis import Pricing

    pricing = Pricing(space)
    if error:
        pricing.model = pricing.model.misjudged(error, np.random.default_rng((seed, 1)))
    return pricing
