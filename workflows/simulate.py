"""``--launcher simulate``: a space's own cluster on paper, whose trials the cost model answers."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat, get_args

from slurm.simulate import EPOCH, Cluster, SimulatedLauncher
from trainer.config import Recompute
from trainer.flops import hardware_flops, model_flops
from workflows.commands import UsageError
from workflows.space import SearchSpace
from workflows.space.schema import seconds

# Seconds of one step, and bytes of the fullest rank, of every configuration.
Answers = Callable[
    [Sequence[Mapping[str, Any]]], tuple[Sequence[SupportsFloat], Sequence[SupportsFloat]]
]

DEFAULT_TRIALS = 8  # widest ones that fit at once, on a cluster that does not state its size


@dataclass(frozen=True)
class ModelError:
    """How far the simulated truth is from the model that gives the answers.

    Attributes:
        time: standard deviation of the logarithm of true over predicted step time.
        memory: of the peak memory.
    """

    time: float = 0.0
    memory: float = 0.0


class SpaceWorkload:
    """The trials of a space as the model sees them, or as a truth unlike the model would.

    The truth differs from the model by a factor per value of every parameter: the model has the
    parameters' effects wrong, consistently, as one with wrong constants has. The factors are drawn
    once, so that over all configurations the logarithm of their product has the asked spread.

    Args:
        space: names the model, the cluster and the steps of a trial.
        answers: the model.
        error: 0 is a perfect model.
        seed: of the error.

    Raises:
        UsageError: if the space has no model, or seeks what a simulated trial does not measure.
    """

    def __init__(
        self, space: SearchSpace, answers: Answers, error: ModelError | None = None, seed: int = 0
    ) -> None:
        if space.model is None or not {"mbs", "gas"} <= space.facts(_any_config(space)).keys():
            raise UsageError(f"{space.file}: simulation needs a model, mbs and gas")
        self._space = space
        self._model = space.model
        self._answers = answers
        self.warmup_steps = space.trial.warmup_steps
        self.measured_steps = space.trial.measured_steps
        limit = space.trainer.builtin and space.trainer.builtin.device_memory_bytes
        self.memory_bytes = limit or space.cluster.memory_bytes
        error = error or ModelError()
        self._time_error = _Error(space, error.time, f"{seed}/time")
        self._memory_error = _Error(space, error.memory, f"{seed}/memory")

    def price(self, config: Mapping[str, Any]) -> tuple[float, float]:
        step_times_s, peaks_bytes = self._answers([config])
        return (
            float(step_times_s[0]) * self._time_error.factor(config),
            float(peaks_bytes[0]) * self._memory_error.factor(config),
        )

    def figures(
        self, config: Mapping[str, Any], step_times_s: Sequence[float], peak_bytes: float
    ) -> dict[str, Any]:
        """What the built-in trainer measures (``trainer.result``), and energy where it is known."""
        facts = self._space.facts(config)
        gpus, dp = int(facts["world_size"]), int(facts["dp"])
        batch = int(facts["mbs"]) * int(facts["gas"]) * dp
        median_s = statistics.median(step_times_s)
        recompute: Any = facts.get("recompute", "none")
        if recompute not in get_args(Recompute):  # a word of the user's own trainer
            recompute = "none"
        tera_per_gpu = 1e12 * median_s * gpus
        tokens_per_second = batch * self._model.seq_length / median_s
        power_watts = self._space.cluster.power_watts
        energy = {"energy_joules": power_watts * gpus * sum(step_times_s)} if power_watts else {}
        return {
            "status": "ok",
            "tflops_per_gpu": model_flops(self._model, batch) / tera_per_gpu,
            "hardware_tflops_per_gpu": hardware_flops(self._model, batch, recompute) / tera_per_gpu,
            "tokens_per_second": tokens_per_second,
            "tokens_per_second_per_gpu": tokens_per_second / gpus,
            "samples_per_second": batch / median_s,
            "step_time_s": {"median": median_s, "all": list(step_times_s)},
            "dp": dp,
            "global_batch_size": batch,
            "parameters": self._model.num_parameters,
            "peak_memory_bytes": int(peak_bytes),
            "world_size": gpus,
            **energy,
        }


class _Error:
    """A factor per value of every varied parameter."""

    def __init__(self, space: SearchSpace, spread: float, seed: str) -> None:
        varied = [p for p in space.parameters.values() if len(p.values) > 1]
        self._logs = {}
        for parameter in varied:
            chance = random.Random(f"{seed}/{parameter.name}")
            for value in parameter.values:
                log = chance.gauss(0.0, spread / math.sqrt(len(varied)))
                self._logs[parameter.name, value] = log

    def factor(self, config: Mapping[str, Any]) -> float:
        return math.exp(sum(self._logs.get(item, 0.0) for item in config.items()))


def simulated_launcher(
    space: SearchSpace, text: str, start: float = EPOCH, answers: Answers | None = None
) -> SimulatedLauncher:
    """The launcher of ``--simulate TEXT``.

    Args:
        space: what is searched.
        text: ``KEY=VALUE,...``; docs/simulate.md lists the keys.
        start: virtual time at which the session begins, seconds since the epoch.
        answers: default: the cost model.

    Raises:
        UsageError: for an unknown key or a value that does not fit it; or if nothing would ever
            end the search.
    """
    cluster, error = _parse(space, text)
    budget = space.budget
    if not (budget.trials or budget.wall_time_s or budget.node_hours or cluster.time_s):
        raise UsageError("virtual time has no end: give --trials, a budget, or --simulate time=6h")
    workload = SpaceWorkload(space, answers or _cost_model(space), error, cluster.seed)
    launcher = SimulatedLauncher(cluster, workload, start)
    key = space.objective.key
    measured = workload.figures(_any_config(space), [1.0], 0.0)
    if key.split(".")[0] not in measured:
        raise UsageError(
            f"{space.file}: objective: a simulated trial does not measure {key!r}, only "
            f"{', '.join(name for name in measured if name != 'status')}"
        )
    return launcher


def _any_config(space: SearchSpace) -> dict[str, Any]:
    return {name: parameter.values[0] for name, parameter in space.parameters.items()}


def _cost_model(space: SearchSpace) -> Answers:
    from workflows.pricing import price

    predict = price(space)

    def answers(configs: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
        prediction = predict(configs)
        return prediction.step_time_s, prediction.peak_bytes

    return answers


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError("accepted a share from 0 to 1")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError("accepted a number of 0 or more")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("accepted a whole number above 0")
    return value


def _duration(text: str) -> float:
    return seconds(float(text) if text.isdecimal() else text)


# Key: the record's field, and how its value is read.
_CLUSTER: dict[str, tuple[str, Callable[[str], Any]]] = {
    "nodes": ("nodes", _count),
    "seed": ("seed", int),
    "start_up": ("start_up_s", _duration),
    "noise": ("noise", _rate),
    "node_noise": ("node_noise", _rate),
    "crash": ("crash", _share),
    "hang": ("hang", _share),
    "launch_failure": ("launch_failure", _share),
    "node_failures_per_day": ("node_failures_per_day", _rate),
    "repair": ("repair_s", _duration),
    "time": ("time_s", _duration),
    "max_concurrent": ("max_concurrent", _count),
}
_ERROR: dict[str, tuple[str, Callable[[str], Any]]] = {
    "model_error": ("time", _rate),
    "memory_error": ("memory", _rate),
}


def _parse(space: SearchSpace, text: str) -> tuple[Cluster, ModelError]:
    widest = max((int(v) for v in _values(space, "num_nodes")), default=1)
    fields: dict[str, Any] = {"nodes": space.cluster.num_nodes or DEFAULT_TRIALS * widest}
    error: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        known = _ERROR if key in _ERROR else _CLUSTER
        if key not in known:
            keys = ", ".join([*_CLUSTER, *_ERROR])
            raise UsageError(f"--simulate {item}: accepted KEY=VALUE,... with {keys}")
        field, read = known[key]
        try:
            (error if known is _ERROR else fields)[field] = read(value)
        except ValueError as mistake:
            raise UsageError(f"--simulate {item}: {mistake}") from mistake
    return Cluster(**fields), ModelError(**error)


def _values(space: SearchSpace, name: str) -> tuple[Any, ...]:
    parameter = space.parameters.get(name)
    return tuple(parameter.values) if parameter else ()
