"""OPPA's search of parallel configurations, as a policy for comparison.

Written from its published abstract and reviews ("Configuring Parallel Training of Neural Networks
using Bayesian Optimization", 2025; "Bayesian Optimization with Early Trial Termination for Speeding
Up Parallel Neural Network Training", 2026). They describe a constrained Bayesian optimization. The
prior mean of a Gaussian process with a Matern kernel is a formula of computation and of the
messages of data, tensor and pipeline parallelism, with different links inside and between hosts. A
second process models memory. The next configuration maximizes an upper confidence bound that
penalizes a lack of memory.

They leave the rest open, chosen here as follows: the formulas and their constants
(``parallelism_prior``), fitted to the trials before each proposal; logarithms of speed and memory;
Matern 5/2 with one length for all parameters, amplitude and length by maximum likelihood; a bound
of ``KAPPA`` standard deviations; as penalty the log probability to fit; no random initial trials,
since the prior is worth more. Early termination is left out: it saves a slow trial's time, but
these games count trials.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from analysis import Run, Trial
from analysis.prediction.pricing import Pricing
from benchmarks.search.parallelism_prior import Prior, memory_prior, time_prior
from trainer.plan.jobs import Array
from workflows.optimizer.policy import Policy, Problem, Proposal
from workflows.optimizer.registry import PolicyError

KAPPA = 2.0  # standard deviations of the upper confidence bound
BEYOND = 1.1  # memory that a trial out of memory is assumed to need, over the device's
INTERVAL = 1.96  # standard deviations to each end of a 95 % interval


@dataclass(frozen=True)
class Posterior:
    """Normal posteriors of logarithms; shape (n,) each."""

    mean: Array
    sd: Array


class OppaPolicy(Policy):
    """Proposes the candidate with the best penalized upper bound of its speed.

    Raises:
        PolicyError: if the formulas do not apply to the space or to its objective.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        cluster, keys = problem.space.cluster, [o.key for o in problem.space.objectives]
        if cluster is None or problem.space.model is None or keys != ["tokens_per_second"]:
            raise PolicyError("OPPA maximizes tokens_per_second of a model on a cluster")
        self._jobs_of = Pricing(problem.space).jobs_of  # encodes configurations, without prices
        self._limit = math.log(cluster.memory_bytes)
        self._time, self._memory = time_prior(cluster), memory_prior()

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        candidates = self.problem.new(run, max_nodes, self.problem.rng(run))
        if not candidates:
            return None
        trials = [trial for trial in run.trials.values() if trial.ended]
        time = self._posterior(self._time, trials, *self._times(trials), candidates)
        memory = self._posterior(self._memory, trials, *self._bytes(trials), candidates)
        fits = norm.logcdf((self._limit - memory.mean) / memory.sd)
        best = int(np.argmax(KAPPA * time.sd - time.mean + fits))
        tokens = float(self._tokens(candidates[best : best + 1])[0])
        mean, off = time.mean[best], INTERVAL * time.sd[best]
        return Proposal(
            self.problem.space.canonical(candidates[best]),
            "oppa",
            "best upper bound of its speed, penalized for memory",
            {
                "objective": tokens / math.exp(mean),
                "low": tokens / math.exp(mean + off),
                "high": tokens / math.exp(mean - off),
            },
        )

    def _posterior(
        self,
        prior: Prior,
        trials: Sequence[Trial],
        measured: Array,
        at_least: Array,
        candidates: Sequence[dict[str, Any]],
    ) -> Posterior:
        """Posterior of the fitted formula plus a Gaussian process of its residual."""
        jobs = self._jobs_of(candidates)
        tried = self._jobs_of([t.config for t in trials]) if trials else jobs[:0]
        constants = prior.fitted(tried, measured, at_least)
        formula = prior.log(tried, constants)
        told = np.where(np.isnan(measured), np.maximum(formula, at_least), measured)
        known = np.isfinite(told)
        kernel = ConstantKernel(0.2**2, (0.02**2, 1.0)) * Matern(1.0, (0.2, 5.0), nu=2.5)
        process = GaussianProcessRegressor(kernel + WhiteKernel(0.03**2, (0.01**2, 0.1**2)))
        if known.any():
            places = self._places([t.config for t in trials])
            with warnings.catch_warnings():  # few trials say little of amplitude and length
                warnings.simplefilter("ignore", ConvergenceWarning)
                process.fit(places[known], (told - formula)[known])
        missed, sd = process.predict(self._places(candidates), return_std=True)
        return Posterior(prior.log(jobs, constants) + missed, sd)

    def _places(self, configs: Sequence[dict[str, Any]]) -> Array:
        """Configurations in the unit cube of the varied parameters; shape (n, d)."""
        varied = [p for p in self.problem.space.parameters.values() if p.varies]
        raw = [self.problem.space.raw(config) for config in configs]
        places = [[p.unit(row[p.name]) for p in varied] for row in raw]
        return np.array(places, dtype=float).reshape(len(configs), len(varied))

    def _bytes(self, trials: Sequence[Trial]) -> tuple[Array, Array]:
        """Logarithms of peaks, and lower bounds for trials out of memory; nan for others."""
        peaks = [t.result.get("peak_memory_bytes", np.nan) if t.ok else np.nan for t in trials]
        lacked = [self._limit + math.log(BEYOND) if t.kind == "oom" else np.nan for t in trials]
        return np.log(np.array(peaks, dtype=float)), np.array(lacked, dtype=float)

    def _times(self, trials: Sequence[Trial]) -> tuple[Array, Array]:
        """Logarithms of step times, without bounds: a failure has no evidence on time."""
        speeds = np.array([t.objective if t.ok else np.nan for t in trials], dtype=float)
        tokens = self._tokens([t.config for t in trials])
        return np.log(tokens / speeds), np.full(len(trials), np.nan)

    def _tokens(self, configs: Sequence[dict[str, Any]]) -> Array:
        """Tokens of a step; shape (n,)."""
        if not configs:
            return np.zeros(0)
        jobs = self._jobs_of(configs)
        return np.asarray(jobs.global_batch * jobs.model.seq_length)
