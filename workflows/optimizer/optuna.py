"""Optuna's TPE with its defaults, as its users would run it.

Its sampler draws from one stream of random numbers, so a proposal depends on all earlier asks.
After a restart, the policy therefore asks and tells the whole run again. Suggestions that may not
be tried are told as failed, which TPE ignores; trials that it did not suggest are not told.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import Run, Trial
from foundation.bounds import Bound
from search_spaces import Parameter
from workflows.optimizer.policy import Policy, Problem, Proposal
from workflows.optimizer.registry import PolicyError

if TYPE_CHECKING:
    import optuna

FRUITLESS = 30  # unusable suggestions, after which any other configuration is taken
CONSTRAINTS = "constraints"  # Optuna's: values above 0 are violations
Key = tuple[tuple[str, Any], ...]


class OptunaPolicy(Policy):
    """TPE over the parameters of a space; raises PolicyError if Optuna is not installed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._optuna = imported()
        parameters = problem.space.parameters.values()
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            p.name: distribution(p) for p in parameters if p.varies
        }
        self._fixed = {p.name: p.values[0] for p in parameters if not p.varies}
        self._continuous = [p for p in parameters if p.span is not None]
        self._objectives = problem.space.objectives
        self._begin()

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        left = self.problem.new(run, max_nodes, self.problem.rng(run), size=1)
        if not left:
            return None
        trials = list(run.trials.values())
        if [_key(trial.config) for trial in trials] != self._proposed:
            self._begin()
            for number, trial in enumerate(trials):
                known_t = trial.proposed_t  # what had ended when this one was proposed
                self._tell(t for t in trials[:number] if t.ended and (t.ended_t or 0.0) <= known_t)
                self._repeat(_key(trial.config))
        self._tell(trials)
        key, why = self._ask(lambda key: self._may_come(key, max_nodes)), "TPE"
        if key is None:
            key, why = self._any(), "any: TPE suggested none that is new"
            if key is None or self.problem.space.num_nodes(dict(key)) > max_nodes:
                key = _key(self.problem.space.canonical(left[0]))
        self._proposed.append(key)
        return Proposal(dict(key), "optuna", why)

    def _begin(self) -> None:
        self._study = self._optuna.create_study(
            directions=["maximize" if o.maximize else "minimize" for o in self._objectives],
            sampler=_sampler(self._optuna, self.problem),
        )
        self._rng = np.random.default_rng(self.problem.seed)
        self._proposed: list[Key] = []
        self._asked: dict[Key, optuna.trial.Trial] = {}  # suggested, and not told yet

    def _repeat(self, key: Key) -> None:
        """Repeat the asks with which this configuration was proposed."""
        if self._ask(lambda other: other == key) is None:
            self._any()
        self._proposed.append(key)

    def _ask(self, accepts: Callable[[Key], bool]) -> Key | None:
        """The next suggestion that is accepted; None after too many in vain."""
        for _ in range(FRUITLESS):
            asked = self._study.ask(self._distributions)
            # Rounded as for all policies; TPE learns from its own value, within a step of it.
            short = {p.name: p.values[p.place(asked.params[p.name])] for p in self._continuous}
            key = _key(self.problem.space.canonical({**self._fixed, **asked.params, **short}))
            if accepts(key):
                self._asked[key] = asked
                return key
            self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        return None

    def _may_come(self, key: Key, max_nodes: int) -> bool:
        new = key not in self._proposed and self.problem.allows(dict(key))
        return new and self.problem.space.num_nodes(dict(key)) <= max_nodes

    def _any(self) -> Key | None:
        """A random configuration that was not proposed, if the problem lists them."""
        if self.problem.only is None:
            return None
        free = sorted(self.problem.listed - {*self._proposed}, key=repr)
        return free[int(self._rng.integers(len(free)))]

    def _tell(self, trials: Iterable[Trial]) -> None:
        """Tell the results of suggested trials that have ended, each once."""
        for trial in trials:
            asked = self._asked.pop(_key(trial.config), None) if trial.ended else None
            if asked is None:
                continue
            if trial.ok:
                only = trial.objective or 0.0
                asked.set_user_attr(CONSTRAINTS, excesses(trial, self.problem.space.subject_to))
                values = [trial.objectives.get(o.key, only) for o in self._objectives]
                self._study.tell(asked, values)
            else:
                self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)


def excesses(trial: Trial, bounds: Iterable[Bound]) -> list[float]:
    """How far a success is beyond each bound."""
    return [b.excess(trial.bounded[b.key]) for b in bounds if b.key in trial.bounded]


def _sampler(module: Any, problem: Problem) -> Any:
    """TPE, with the space's bounds, if any, as constraints."""
    bounded = {"constraints_func": lambda t: t.user_attrs[CONSTRAINTS]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constraints are called experimental
        options = bounded if problem.space.subject_to else {}
        return module.samplers.TPESampler(seed=problem.seed, **options)


def imported() -> Any:
    """Optuna, silent; raises PolicyError if it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise PolicyError(
            "optuna is not installed; `pip install 'meshtune[peers]'` brings it"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    """A parameter's values as Optuna's distribution."""
    from optuna import distributions

    span = parameter.span
    if span is None:
        return distributions.CategoricalDistribution(parameter.values)
    if span.whole:
        return distributions.IntDistribution(int(span.low), int(span.high), log=span.log)
    return distributions.FloatDistribution(span.low, span.high, log=span.log)


def _key(config: Mapping[str, Any]) -> Key:
    return tuple(config.items())
