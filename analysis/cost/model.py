"""The cost model: predicts jobs with intervals, and learns from measured trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from analysis.cost.constants import fit, integrated, log_odds, log_sds, names
from analysis.cost.groups import LinkConstants
from analysis.cost.hypotheses import TIMING, Doubts
from analysis.cost.memory import MemoryParts, host_bytes
from analysis.cost.memory_fit import Measurements, MemoryModel
from analysis.cost.network import UNKNOWN, Network, expected_state, likelier, quantile
from analysis.cost.stages import refused
from analysis.cost.state_memory import fits_host
from analysis.cost.step import StepParts, crowded_s, step
from analysis.cost.time_constants import TimeConstants, without_effect
from analysis.cost.tuning import trained_share
from search_spaces import Cluster, Framework
from trainer.plan.flops import model_flops
from trainer.plan.jobs import Array, Jobs, Mask

Columns = dict[str, Any]  # by name; of shape (n,)
C = TypeVar("C", Array, Mask)

PRIOR_LOG_SD = 0.15  # of step times on machines and frameworks that nothing was fitted to
# The same beyond the constants' spread; rows of one machine scatter by 0.12 (15 tables).
UNSEEN_LOG_SD = 0.1
FIT_LOG_SD = 0.05  # scatter of step times around a model whose constants fit
LIKELY = 0.5  # probability to fit from which a configuration counts as fitting
# Factor on the spreads of links' priors on an unseen machine: fits to single published tables
# scatter that far. Calibration keeps the narrower priors, which disturbed trials do not override.
NETWORKS = 2.0


@dataclass(frozen=True)
class Prediction:
    """Expected memory and time of jobs; columns of shape (n,)."""

    model: CostModel
    jobs: Jobs
    memory: MemoryParts  # bytes on the fullest rank, in parts
    time: StepParts  # seconds of a step, in parts
    fits: Array  # probability that a job runs within the memory of its GPUs, and of their host
    fits_host: Array  # of it the host's
    full: Array  # probability that a job that fits has no memory to spare, which may slow it down

    @cached_property
    def step_time_s(self) -> Array:
        return self.time.total

    @cached_property
    def peak_bytes(self) -> Array:
        return self.memory.total

    @cached_property
    def host_bytes(self) -> Array:
        """Offloaded activations and states, of the rank with most of them."""
        return self.model.host_bytes(self.jobs)

    @cached_property
    def time_log_sds(self) -> tuple[Array, Array]:
        """Deviations of the logarithm in the network's expected state, downwards and upwards."""
        return self.model.time_log_sds(self.jobs)

    @cached_property
    def crowded(self) -> Array:
        """Probability that a run meets a congested network."""
        return self.model.column(self.jobs, lambda m, j: m.network.crowded(j, m.cluster))

    @cached_property
    def states_s(self) -> tuple[Array, Array]:
        """Step times on a calm network, and on a congested one."""
        calm_s = self.step_time_s - self.time.crowded
        late_s = self.model.column(self.jobs, lambda m, j: crowded_s(j, m.constants))
        return calm_s, calm_s + late_s

    @cached_property
    def promised_s(self) -> Array:
        """Step time at the expected throughput over both states; jobs are ranked by it."""
        calm_s, crowded_s = self.states_s
        return 1 / ((1 - self.crowded) / calm_s + self.crowded / crowded_s)

    def interval_s(self) -> tuple[Array, Array]:
        """95 % interval of step times, over both states of the network."""
        calm, late = np.log(self.states_s)
        low, high = (
            np.exp(quantile(share, calm, late, self.crowded, self.time_log_sds))
            for share in (0.025, 0.975)
        )
        return low, high

    @cached_property
    def may_fit(self) -> Array:
        """Probability to fit by those plausible habits that need the least memory.

        It rules jobs out; to order them, a search uses ``fits``, which expects what most programs
        do.
        """
        limit, of = self.model.memory_limit_bytes, self.model.column
        own = of(self.jobs, lambda m, j: m.memory.cautious.fits(j, m.framework, limit))
        return own * self.fits_host

    @property
    def tokens_per_second(self) -> Array:
        return self.jobs.global_batch * self.jobs.model.seq_length / self.step_time_s

    @property
    def tflops_per_gpu(self) -> Array:
        """Model TFLOP/s: repeated operations do not count (see ``trainer.plan.flops``)."""
        trained = trained_share(self.jobs)
        needed = model_flops(self.jobs.model, self.jobs.global_batch, trained)
        return np.asarray(needed / self.step_time_s / self.jobs.layout.world_size / 1e12)

    @property
    def num_nodes(self) -> Array:
        return np.ceil(self.jobs.layout.world_size / self.model.cluster.gpus_per_node)

    @property
    def tokens_per_node_hour(self) -> Array:
        return self.tokens_per_second * 3600 / self.num_nodes

    @property
    def joules_per_token(self) -> Array:
        """At the GPUs' stated power; nan where the cluster states none."""
        watts = self.model.cluster.power_watts or np.nan
        return self.jobs.layout.world_size * watts / self.tokens_per_second

    def columns(self) -> dict[str, Array]:
        """Parts as users see them, by name."""
        low_s, high_s = self.interval_s()
        return {
            "step_time_s": self.step_time_s,
            "step_time_low_s": low_s,
            "step_time_high_s": high_s,
            "tokens_per_second": self.tokens_per_second,
            "tflops_per_gpu": self.tflops_per_gpu,
            "memory_bytes": self.memory.total,
            "reserved_bytes": self.memory.reserved,
            "fits": self.fits,
        }

    def days_to_train(self, tokens: float) -> Array:
        return tokens / self.tokens_per_second / 86400


@dataclass(frozen=True)
class CostModel:
    """Predicts memory and time of jobs on one machine, for one framework."""

    cluster: Cluster
    framework: Framework
    constants: TimeConstants = field(default_factory=TimeConstants)  # of time
    memory: MemoryModel = field(default_factory=MemoryModel)  # of memory
    # of the logarithms of time's constants; None before any evidence: then ``between_machines``
    # holds
    covariance: Array | None = None
    # of step times around the prediction, beyond what the covariance explains
    log_sd: float = PRIOR_LOG_SD
    tail_log_sd: float = 0.0  # the same so that intervals hold 95 %; used if it is larger
    foreign: bool = False  # whether its measurements are of other models than it predicts
    network: Network = UNKNOWN  # how often runs are expected to meet a congested network
    # constants of time if the framework is like another record, by that record's name
    suspected: Mapping[str, TimeConstants] = field(default_factory=dict)
    # models of jobs whose ``engine`` is 1, 2, ...: each by its own framework
    others: tuple[CostModel, ...] = ()

    @property
    def memory_limit_bytes(self) -> float:
        return float(self.cluster.memory_bytes)

    def predict(self, jobs: Jobs) -> Prediction:
        """Memory and time of every job; about a million rows take seconds."""
        limit = self.memory_limit_bytes

        def times(model: CostModel, own: Jobs) -> Columns:
            calm = step(own, model.cluster, model.framework, model.constants)
            late_s = crowded_s(own, model.constants)
            state = expected_state(model.network.crowded(own, model.cluster), calm.total, late_s)
            return calm.as_dict() | {"crowded": late_s * state}

        def memory(model: CostModel, own: Jobs) -> Columns:
            return model.memory.parts(own, model.framework).as_dict()

        host = self.fits_host(jobs)
        chances = self.each(jobs, lambda m, j: m.memory.chances(j, m.framework, limit))
        return Prediction(
            model=self,
            jobs=jobs,
            memory=MemoryParts(**self.each(jobs, memory)),
            time=StepParts(**self.each(jobs, times)),
            **chances | {"fits": chances["fits"] * host, "fits_host": host},
        )

    @classmethod
    def of_engines(cls, models: Iterable[CostModel]) -> CostModel:
        """One model of several engines' jobs: the first one's with the others beside it."""
        first, *others = models
        return replace(first, others=tuple(others))

    @property
    def engines(self) -> tuple[CostModel, ...]:
        """The models of jobs by their ``engine``, each for one framework."""
        return (replace(self, others=()), *self.others) if self.others else (self,)

    def each(self, jobs: Jobs, of: Callable[[CostModel, Jobs], Columns]) -> Columns:
        """Columns over all jobs, each job's row computed by the model of its engine."""
        if not self.others or not len(jobs):
            return of(self, jobs)
        whole: Columns = {}
        for number, model in enumerate(self.engines):
            rows = jobs.options.engine == number
            if rows.any():
                for name, column in of(model, jobs[rows]).items():
                    whole.setdefault(name, np.empty(len(jobs), column.dtype))[rows] = column
        return whole

    def column(self, jobs: Jobs, of: Callable[[CostModel, Jobs], C]) -> C:
        """One such column."""
        found: C = self.each(jobs, lambda m, j: {"": of(m, j)})[""]
        return found

    def fits(self, jobs: Jobs) -> Array:
        """Probability that jobs run within the memory of their GPUs, and of their host."""
        limit = self.memory_limit_bytes
        own = self.column(jobs, lambda m, j: m.memory.fits(j, m.framework, limit))
        return own * self.fits_host(jobs)

    def fits_host(self, jobs: Jobs) -> Array:
        """Probability that what jobs offload fits into a node's memory."""
        return fits_host(self.host_bytes(jobs), jobs, self.cluster)

    def host_bytes(self, jobs: Jobs) -> Array:
        """Offloaded activations and states of the rank with most of them."""
        return self.column(jobs, lambda m, j: host_bytes(j, m.framework, m.memory.constants))

    def reported_peak_bytes(self, jobs: Jobs) -> Array:
        return self.column(jobs, lambda m, j: m.memory.peak_bytes(j, m.framework))

    def refuses(self, jobs: Jobs) -> Mask:
        """Jobs that their framework rejects at start-up, regardless of memory."""
        return self.column(jobs, lambda m, j: refused(j, m.framework))

    def calibrated(self, measurements: Measurements) -> CostModel:
        """The model with the posterior of its constants after measured trials.

        Step times and peaks give residuals, failures for lack of memory give bounds. The prior is
        the posterior of earlier runs, widened (``transferred``). Each engine has its own.
        """
        if self.others:
            return CostModel.of_engines(
                model.calibrated(measurements.of_engine(number))
                for number, model in enumerate(self.engines)
            )
        limit = self.memory_limit_bytes
        memory = self.memory.calibrated(measurements, self.framework, limit)
        learnt = replace(self, memory=memory)
        jobs, measured = measurements.timed
        return learnt._likeliest(measurements)._timed(jobs, measured) if len(jobs) else learnt

    def _timed(self, jobs: Jobs, measured: Array) -> CostModel:
        """The model with constants fitted to logarithms of step times."""
        known = self.constants.transferred(self.covariance)
        residuals = partial(self._residuals, jobs, measured)
        found = fit(self.constants, residuals, FIT_LOG_SD, covariance=known)

        # Few rows hardly determine the spread: the prior's counts as four of them.
        def shrunk(measured: float, prior: float) -> float:
            rows = found.num_rows
            return float(np.sqrt((rows * measured**2 + 4 * prior**2) / (rows + 4)))

        calm, late = self._states(jobs, measured, found.constants)
        log_factors = log_odds(calm, late, max(FIT_LOG_SD, found.spread))
        return replace(
            self,
            network=self.network.after(jobs, self.cluster, log_factors),
            constants=found.constants,
            covariance=found.covariance,
            log_sd=shrunk(found.spread, self.log_sd),
            tail_log_sd=shrunk(found.tail, max(self.log_sd, self.tail_log_sd)),
            foreign=False,
        )

    def _likeliest(self, measurements: Measurements) -> CostModel:
        """The model with the habits that make step times most probable, and their constants."""
        if not self.suspected:
            return self

        def evidence(habits: Framework) -> tuple[float, CostModel]:
            own = habits.name == self.framework.name
            others = self.suspected.get(habits.name, self.constants)
            model = replace(
                self,
                framework=habits.with_habits(name=self.framework.name),
                constants=self.constants if own else others,
                covariance=self.covariance if own else None,
            )
            return model.evidence(measurements), model

        return Doubts(self.memory.likely(self.framework), TIMING).weighed(evidence)[0].rest

    def evidence(self, measurements: Measurements) -> float:
        """Log-probability of step times' logarithms, over all engines; see :func:`integrated`."""
        if self.others:
            engines = enumerate(self.engines)
            return sum(one.evidence(measurements.of_engine(number)) for number, one in engines)
        jobs, measured = measurements.timed
        if not len(jobs):
            return 0.0
        known = self.constants.transferred(self.covariance)
        residuals = partial(self._residuals, jobs, measured)
        return integrated(self.constants, known, residuals, FIT_LOG_SD)[0]

    def _states(self, jobs: Jobs, measured: Array, constants: TimeConstants) -> tuple[Array, Array]:
        """Logarithms of predicted over measured times, in either state of the network."""
        calm_s = step(jobs, self.cluster, self.framework, constants).total
        late_s = calm_s + crowded_s(jobs, constants)
        return np.log(calm_s) - measured, np.log(late_s) - measured

    def _residuals(self, jobs: Jobs, measured: Array, constants: TimeConstants) -> Array:
        """Logarithms of predicted over measured times, in each run's more probable state."""
        chance = self.network.crowded(jobs, self.cluster)
        return likelier(*self._states(jobs, measured, constants), chance, FIT_LOG_SD)

    def supposing(self, suspected: Mapping[str, TimeConstants]) -> CostModel:
        """The model of a framework whose habits may differ from its record.

        ``suspected``: constants of time if it is like another record, by that record's name.
        """
        memory = self.memory.supposing(Doubts(self.framework))
        return replace(self, memory=memory, suspected=suspected)

    def time_log_sds(self, jobs: Jobs) -> tuple[Array, Array]:
        """Deviations of step times' logarithms downwards and upwards; see :func:`log_sds`."""
        if self.others:
            sides = ("down", "up")
            each = self.each(jobs, lambda m, j: dict(zip(sides, m.time_log_sds(j), strict=True)))
            return each["down"], each["up"]
        constants, known = self.constants, self.covariance
        known = constants.transferred(known) if self.foreign else known
        used = ~without_effect(jobs)
        covariance = (between_machines() if known is None else known) * np.outer(used, used)

        calm_s = step(jobs, self.cluster, self.framework, self.constants).total
        late_s = crowded_s(jobs, self.constants)
        state = expected_state(self.network.crowded(jobs, self.cluster), calm_s, late_s)

        def logarithm(constants: TimeConstants) -> Array:
            return np.log(step(jobs, self.cluster, self.framework, constants, state).total)

        down, up = log_sds(constants, covariance, logarithm)
        scatter = max(self.log_sd, self.tail_log_sd)
        scatter = min(UNSEEN_LOG_SD, scatter) if known is None else scatter
        return np.hypot(scatter, down), np.hypot(scatter, up)

    def drawn(self, rng: np.random.Generator) -> CostModel:
        """A draw from the posterior: time constants and one network; each engine's by itself."""
        if self.others:
            return CostModel.of_engines(one.drawn(rng) for one in self.engines)
        covariance = self.covariance
        if covariance is None:
            # Before any evidence the whole prior would draw machines that do not exist.
            covariance = np.diag((0.5 * TimeConstants.spreads()) ** 2)
        logs = rng.multivariate_normal(self.constants.logs(), covariance, method="eigh")
        # How often a network congests is one property of it: one hypothesis holds for all runs.
        one = rng.choice(len(self.network.nodes), 1, p=self.network.weights)
        network = Network(self.network.nodes[one], np.ones(1))
        return replace(self, constants=TimeConstants.from_logs(logs), network=network)

    def misjudged(self, error: float, rng: np.random.Generator) -> CostModel:
        """The model with all constants off by ``error`` times their priors' spread."""
        if self.others:
            return CostModel.of_engines(one.misjudged(error, rng) for one in self.engines)
        return replace(
            self,
            constants=self.constants.misjudged(error, rng),
            memory=replace(self.memory, constants=self.memory.constants.misjudged(error, rng)),
        )


def between_machines() -> Array:
    """Prior covariance of the time constants' logarithms on a machine without measurements."""
    factors = [NETWORKS if n in names(LinkConstants) else 1.0 for n in names(TimeConstants)]
    return np.diag((TimeConstants.spreads() * factors) ** 2)
