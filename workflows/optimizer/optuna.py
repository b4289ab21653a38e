"""Optuna's TPE with its defaults, as what its users would see.

Like the others it is a function of the run's history: a fresh study gets every trial that has
ended and is asked until it suggests something that may be tried. What it suggests in vain costs it
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis import Run, Trial
from workflows.optimizer.policy import Policy, Problem, Proposal
from workflows.optimizer.registry import PolicyError

if TYPE_CHECKING:
    import optuna

FRUITLESS = 30  # suggestions that may not be tried, until any configuration that may is taken


class OptunaPolicy(Policy):
    """TPE over the parameters of a space.

    Args:
        problem: what it chooses from.

    Raises:
        PolicyError: if Optuna is not installed.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        try:
            import optuna
        except ImportError as error:
            raise PolicyError(
                "optuna is not installed; `pip install 'meshtune[peers]'` brings it"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        parameters = problem.space.parameters.values()
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            p.name: optuna.distributions.CategoricalDistribution(p.values)
            for p in parameters
            if len(p.values) > 1
        }
        self._fixed = {p.name: p.values[0] for p in parameters if len(p.values) == 1}

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        space, rng = self.problem.space, self.problem.rng(run)
        left = self.problem.new(run, max_nodes, rng, size=1)
        if not left:
            return None
        study = self._study(run, seed=int(rng.integers(2**31)))
        proposed = {tuple(trial.config.items()) for trial in run.trials.values()}
        for _ in range(FRUITLESS):
            asked = study.ask(self._distributions)
            config = {**self._fixed, **asked.params}
            if self.problem.allows(config):
                config = space.canonical(config)
                if tuple(config.items()) not in proposed and space.num_nodes(config) <= max_nodes:
                    return Proposal(config, "optuna", "TPE")
            study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        return Proposal(space.canonical(left[0]), "optuna", "any: TPE suggested none that is new")

    def _study(self, run: Run, seed: int) -> optuna.Study:
        """A study that has been told every trial."""
        space = self.problem.space
        study = self._optuna.create_study(
            directions=["maximize" if o.maximize else "minimize" for o in space.objectives],
            sampler=self._optuna.samplers.TPESampler(seed=seed),
        )
        study.add_trials([self._told(trial) for trial in run.trials.values() if trial.ended])
        return study

    def _told(self, trial: Trial) -> optuna.trial.FrozenTrial:
        raw = self.problem.space.raw(trial.config)
        values: list[Any] | None = None
        if trial.ok:
            keys = [objective.key for objective in self.problem.space.objectives]
            values = [trial.objectives[key] for key in keys] if trial.objectives else None
            values = values or [trial.objective]
        states = self._optuna.trial.TrialState
        return self._optuna.trial.create_trial(
            state=states.COMPLETE if trial.ok else states.FAIL,
            params={name: raw[name] for name in self._distributions},
            distributions=self._distributions,
            values=values,
        )
