"""Cost-model predictions for the configurations of a space."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.cost.fitted import cost_model, suspected
from analysis.cost.memory import MemoryConstants
from analysis.cost.memory_fit import Measurements, MemoryModel
from analysis.cost.model import CostModel, Prediction
from analysis.cost.warm_start import discounted, likeliest, shared, taken_over
from analysis.metrics import Metrics
from analysis.prediction.columns import NEEDED, jobs_from, unpriced_axes, unpriced_parameters
from analysis.prediction.goodput import PRICES, Failures, bill
from analysis.prediction.start_up import StartUp
from analysis.run.fold import Run, read_run
from analysis.run.folder import RunFolder
from analysis.run.trial import Trial
from search_spaces import Cluster, Framework, SearchSpace, framework_named, load_space
from slurm import Kind
from trainer.plan.axes.mesh import FURTHER_AXES, ordered
from trainer.plan.fields import FP8
from trainer.plan.jobs import Array, Jobs, joined
from trainer.plan.model import ModelConfig
from trainer.plan.states import BUCKET_ELEMENTS

# On CPU a limit applies to the memory that training adds to the process.
CPU_MEMORY = MemoryModel(
    MemoryConstants(context_bytes=4e6, communicator_bytes=1e6, workspace_bytes=4e6), log_sd=0.15
)
_NOTHING = 1.0  # bytes; constants are positive
FAILURES = 100  # for lack of memory, that calibrate a model at most
SUCCESSES = 2_000  # that calibrate a model at most: each costs 0.3 ms
# Result keys that the model predicts; each by its own convention in trainer.result.
_OBJECTIVES: dict[str, Callable[[Prediction], Array]] = {
    "tokens_per_second": lambda p: p.tokens_per_second,
    "tokens_per_second_per_gpu": lambda p: p.tokens_per_second / p.jobs.layout.world_size,
    "samples_per_second": lambda p: p.tokens_per_second / p.jobs.model.seq_length,
    "tflops_per_gpu": lambda p: p.tflops_per_gpu,
    "step_time_s.median": lambda p: p.step_time_s,
    "peak_memory_bytes": lambda p: p.peak_bytes,
    "num_nodes": lambda p: p.num_nodes,
    "node_seconds_per_token": lambda p: p.num_nodes / p.tokens_per_second,
    "joules_per_token": lambda p: p.joules_per_token,
    "cost": lambda p: bill(p, 1e9)["cost"],
    "co2": lambda p: bill(p, 1e9)["co2"],
}
# Objectives that determine a step's time: a job fixes its product with a rate, its ratio to a time.
RATES = ("tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second", "tflops_per_gpu")
_ENERGY = ("energy_joules", "joules_per_token")
TIMES = ("step_time_s.median", "node_seconds_per_token", *_ENERGY, *PRICES)


class NotPricedError(ValueError):
    """The cost model cannot price this space; the message says what is missing."""


class Pricing:
    """Prices the configurations of one space.

    Attributes:
        model: before any trial of the space; may be replaced by a calibrated one.
        memory_failures: kinds of trials that needed more memory than there is.
        failures: of the cluster's nodes, and what they cost.
        probes: trials of a shallower model, with the prices of their own space.
        offered: other models to start from, by name, if they make the trials more probable.
        start: name of the model that the calibration started from; empty for ``model``.

    Raises NotPricedError if the space has no model, or lacks a parameter that a price needs.
    """

    def __init__(self, space: SearchSpace) -> None:
        if space.model is None:
            raise NotPricedError("the space has no model")
        if space.cluster is None:
            raise NotPricedError("the space has no cluster")
        if space.starts_its_own:
            raise NotPricedError("trial.ranks_per_node: the trainer starts its own processes")
        if unknown := unpriced_axes(space):
            raise NotPricedError(
                f"the cost model cannot price the parallel axis {', '.join(unknown)}: it knows "
                f"{', '.join(ordered([*FURTHER_AXES]))}; the search is Bayesian optimization "
                "without it"
            )
        formats = space.parameters.get("precision")
        in_8_bits = formats is not None and not {*FP8}.isdisjoint(formats.values)
        if in_8_bits and not space.cluster.peak_fp8_tflops:
            raise NotPricedError(
                f"cluster {space.cluster.name} states no peak_fp8_tflops, which precision fp8 needs"
            )
        self.space, self._shape = space, space.model
        some = {name: np.array(p.values[:1]) for name, p in space.parameters.items()}
        missing = [name for name in NEEDED if name not in space.columns(some).columns]
        if missing:
            raise NotPricedError(f"the space says nothing of {', '.join(missing)}")
        builtin, cluster = space.trainer.builtin, space.cluster
        on_cpu = cluster.is_cpu if builtin is None else builtin.device == "cpu"
        self._engines = _engines(space)
        limit = builtin.device_memory_bytes if builtin else None
        self.model = CostModel.of_engines(
            _limited(_model(cluster, framework, on_cpu, space.model), limit, on_cpu)
            for framework in self._engines.values()
        )
        # The model predicts the host's memory only where that is the device's.
        limits = ("device memory", "host memory") if on_cpu else ("device memory",)
        self.memory_failures = frozenset(kind for kind in Kind if kind.row.out_of in limits)
        self.failures = Failures.expected(space)
        self.probes: tuple[Pricing, tuple[Trial, ...]] | None = None
        self.offered: dict[str, CostModel] = {}
        self.start = ""
        self._latest: tuple[Any, Any, CostModel] = (None, None, self.model)

    @classmethod
    def of(cls, space: SearchSpace) -> Pricing | None:
        """The space's prices; None if the cost model cannot price it."""
        try:
            return cls(space)
        except NotPricedError:
            return None

    @classmethod
    def of_run(cls, folder: RunFolder) -> Pricing | None:
        """Prices of a run's space, with its probes; None if the space cannot be read or priced."""
        space = folder.readable_space()
        pricing = cls.of(space) if space else None
        return pricing and pricing.probed(folder)

    @property
    def unpriced(self) -> list[str]:
        """Parameters in which the model sees no difference; see ``unpriced_parameters``."""
        return unpriced_parameters(self.space)

    def jobs(self, raw: Mapping[str, Any]) -> Jobs:
        """The jobs of raw configurations given as one column per parameter."""
        return jobs_from(self.space, self._shape, self._engines, raw)

    def predict(self, configs: Sequence[Mapping[str, Any]]) -> Prediction:
        """Predictions for configurations of the space, raw or canonical."""
        return self.model.predict(self.jobs_of(configs))

    def objective(self, prediction: Prediction) -> Array | None:
        """Predicted objective; None if the model does not predict it."""
        return self.figure(self.space.objective.key, prediction)

    def figure(self, key: str, prediction: Prediction) -> Array | None:
        """Predicted metric of the result; None if the model does not predict it.

        Energy is that of the measured steps, at the power that the cluster states for a GPU.
        """
        if not self.prices(key):
            return None
        if key == "energy_joules":
            per_step = prediction.jobs.global_batch * prediction.jobs.model.seq_length
            return prediction.joules_per_token * per_step * self.space.trial.measured_steps
        return _OBJECTIVES[key](prediction)

    def prices(self, key: str) -> bool:
        """Whether ``figure`` predicts it; energy and bills need the cluster's power and prices."""
        cluster = self.model.cluster
        if key in PRICES:
            return key in cluster.bill(0.0, cluster.power_watts)
        return bool(cluster.power_watts) if key in _ENERGY else key in _OBJECTIVES

    def promise(self, prediction: Prediction) -> Array:
        """A positive figure, the greater the better, by which configurations are ranked.

        Speeds are expected values over both states of the network, calm and crowded. An objective
        that the model does not predict counts as a rate if it is maximized, else as a time.
        """
        figure, sought = self.objective(prediction), self.space.objective
        key, maximize = sought.key, sought.maximize
        timed = figure is None or key in (*RATES, *TIMES)
        if figure is None:
            figure = prediction.tokens_per_second if maximize else prediction.step_time_s
        faster = prediction.step_time_s / prediction.promised_s if timed else 1.0
        return np.asarray((figure if maximize else 1 / figure) * faster)

    def in_time(self, prediction: Prediction, trials: Iterable[Trial] = ()) -> Array:
        """Probability that trials end before the time limits of the space.

        Start-ups are log-normal around the learned or expected time, step times around the
        prediction in either state of the network, with the model's own spread. Their sum is treated
        as log-normal with its mean and variance, to first order (Fenton 1960).

        Start-up times by the number of nodes are learned from ``trials``, which have ended.
        """
        from scipy.special import ndtr  # slow to import, and a space is checked without it

        trial, log_sd = self.space.trial, prediction.model.log_sd
        learned = StartUp.learned(self.space, [*(self.probes[1] if self.probes else ()), *trials])
        start_s = learned.seconds(prediction.num_nodes)
        start_sd_s = learned.log_sd(prediction.num_nodes) * start_s

        def chance(step_s: Array) -> Array:
            for_steps_s = trial.steps * step_s
            total_s = start_s + for_steps_s
            spread = np.hypot(start_sd_s, log_sd * for_steps_s) / total_s
            whole = ndtr(np.log(trial.timeout_s / total_s) / spread)
            if trial.no_progress_timeout_s is None:
                return np.asarray(whole)
            each = ndtr(np.log(trial.no_progress_timeout_s / step_s) / log_sd)
            # Not independent: a step too long for one limit is too long for the other as well.
            return np.asarray(np.minimum(whole, each))

        calm, crowded = (chance(state_s) for state_s in prediction.states_s)
        return np.asarray(calm + prediction.crowded * (crowded - calm))

    def learn(self, run: Run, of: Pricing | None = None) -> None:
        """Calibrate the model with a run, of this space or of another model, size or machine.

        Args:
            run: its trials that ran or ran out of memory count.
            of: fresh prices of the run's own space, which take over this model; default: self.

        Raises NotPricedError if that run has nothing in common with this space.
        """
        trials = run.trials.values()
        self.failures = self.failures.learned((of or self).space, trials)
        if of is None or of.space.fingerprint == self.space.fingerprint:
            self.model = self.calibrated(trials)
            return
        if not shared(self.model, of.model):
            raise NotPricedError("the run is of another framework, GPU and cluster")
        of.model = taken_over(of.model, self.model)
        learnt = discounted(of.calibrated(trials), of.model)
        self.model = taken_over(self.model, learnt)

    def offer(self, name: str, run: Run, of: Pricing) -> None:
        """Learn from a run, to be used if it makes later trials more probable; see ``learn``."""
        other = copy(self)
        other.offered = {}
        other.learn(run, of)
        self.offered |= {name: other.model}

    def supposing(self) -> Pricing:
        """The same, with the doubts about a framework's habits that a search should have."""
        other = copy(self)
        if self.space.trainer.builtin is None:  # the built-in one is known

            def unsure(model: CostModel) -> CostModel:
                each = (one.supposing(suspected(one.constants)) for one in model.engines)
                return CostModel.of_engines(each)

            other.model = unsure(self.model)
            other.offered = {name: unsure(model) for name, model in self.offered.items()}
        return other

    def teaching(self, trials: Iterable[Trial]) -> list[Trial]:
        """Trials that inform the model about time or memory."""
        return [t for t in trials if t.ok or t.kind in self.memory_failures]

    def telling(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials that calibrate the cost model: successes, and failures near the memory limit.

        An out-of-memory failure says that its need exceeds the limit; the FAILURES that need least
        by the model imply the others. At most SUCCESSES successes, evenly over the run.
        """
        done = [t for t in trials if t.ok]
        failed = [t for t in self.teaching(trials) if not t.ok]
        if len(done) > SUCCESSES:
            done = [done[row] for row in np.linspace(0, len(done) - 1, SUCCESSES).astype(int)]
        if len(failed) > FAILURES:
            need = self.model.reported_peak_bytes(self.jobs_of([t.config for t in failed]))
            failed = [failed[row] for row in np.argsort(need, kind="stable")[:FAILURES]]
        chosen = {t.number for t in (*done, *failed)}
        return [t for t in trials if t.number in chosen]

    def probed(self, folder: RunFolder) -> Pricing:
        """The same prices, which also learn from a run's probes if it has any."""
        probes = folder.probes
        if not probes.started:
            return self
        other, run = copy(self), read_run(probes.path)
        shallower = Pricing(load_space(probes.space_file, frozen=True))
        other.probes = shallower, tuple(trial for trial in run.trials.values() if trial.ended)
        return other

    def calibrated(self, trials: Iterable[Trial]) -> CostModel:
        """The space's model after its probes and these trials; the latest result is cached."""
        every = [self.probes, (self, trials)] if self.probes else [(self, trials)]
        sources = [(own, seen) for own, of in every if (seen := own.teaching(of))]
        if not sources:
            return self.model
        seen = [trial for _, trials in sources for trial in trials]
        times_s = np.concatenate([own.step_times_s(trials) for own, trials in sources])
        peaks = np.array([reported(t, "peak_memory_bytes") for t in seen])
        failed = np.array([not t.ok for t in seen])
        of = [t.config for t in seen], times_s.tobytes(), peaks.tobytes(), failed.tobytes()
        before, learnt_from, found = self._latest
        if before is not self.model or learnt_from != of:
            jobs = joined([own.jobs_of([t.config for t in trials]) for own, trials in sources])
            measured = Measurements(jobs, times_s, peaks, failed)
            starts = {"": self.model, **self.offered}
            self.start = likeliest(starts, measured)
            found = starts[self.start].calibrated(measured)
            self._latest = self.model, of, found
        return found

    def step_times_s(self, trials: Sequence[Trial]) -> Array:
        """Step times of trials: as reported, or derived from the objective.

        nan if a trial failed, or its objective does not determine a step's time.
        """
        times_s = np.array([reported(t, "step_time_s.median") for t in trials])
        key = self.space.objective.key
        objectives = np.array([(t.ok and t.objective) or 0.0 for t in trials])
        rows = np.flatnonzero(np.isnan(times_s) & (objectives > 0)).tolist()
        if not rows or key not in (*RATES, *TIMES):
            return times_s
        predicted = self.predict([trials[row].config for row in rows])
        if (figure := self.objective(predicted)) is not None:
            factor = figure / objectives[rows]
            times_s[rows] = predicted.step_time_s * (factor if key in RATES else 1 / factor)
        return times_s

    def jobs_of(self, configs: Sequence[Mapping[str, Any]]) -> Jobs:
        """The jobs of configurations, raw or canonical."""
        return self.jobs(self.raw(configs))

    def raw(self, configs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """The raw values of configurations, as a column for each parameter."""
        rows = [self.space.raw(config) for config in configs]
        return {name: np.array([row[name] for row in rows]) for name in self.space.parameters}


def _engines(space: SearchSpace) -> dict[str, Framework]:
    """The engines that a space searches, numbered from 0 in this order, and their habits."""
    own = space.program.habits
    if space.trainer.builtin is None or "engine" not in space.parameters:
        return {"meshtune": own}
    known = {"meshtune": own, "deepspeed": framework_named("megatron-deepspeed")}
    searched = set(space.parameters["engine"].values)
    if "engine" in space.conditions:
        searched.add("meshtune")  # where it is inactive
    return {name: framework for name, framework in known.items() if name in searched}


def _model(cluster: Cluster, framework: Framework, on_cpu: bool, shape: ModelConfig) -> CostModel:
    """Cost model of one engine; on CPU with buckets of the model's size and the host's memory."""
    if not on_cpu:
        return cost_model(cluster, framework)
    # Two buckets of 16-bit elements.
    buckets = 2 * 2 * min(BUCKET_ELEMENTS, shape.num_parameters)
    framework = framework.with_habits(
        name=f"{framework.name} on CPU",
        flash_attention=False,
        fixed_buffer_bytes=min(framework.fixed_buffer_bytes, buckets),
    )
    return replace(cost_model(cluster, framework), memory=CPU_MEMORY)


def _limited(model: CostModel, limit_bytes: int | None, on_cpu: bool) -> CostModel:
    """The model with the trainer's own limit on memory.

    On a GPU it limits what torch's allocator reserves, so the context and communicators, which lie
    outside it, no longer count. A limit that leaves no room for the context has no effect.
    """
    if limit_bytes is None:
        return model
    constants = model.memory.constants
    if not on_cpu:
        if limit_bytes > model.memory_limit_bytes - constants.context_bytes:
            return model
        constants = replace(constants, context_bytes=_NOTHING, communicator_bytes=_NOTHING)
    cluster = model.cluster.model_copy(update={"memory_gib": limit_bytes / 2**30})
    return replace(model, cluster=cluster, memory=replace(model.memory, constants=constants))


def reported(trial: Trial, key: str) -> float:
    """A positive time or amount in a result, else nan (torch reports 0 for an unused device)."""
    value = Metrics(trial.result).get(key) if trial.ok else None
    return float("nan") if value is None or not 0 < value <= sys.float_info.max else float(value)
