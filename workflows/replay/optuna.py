"""Optuna's TPE, as another policy to replay: what its users would see with its defaults."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from analysis.run.fold import Run
from workflows.replay.landscapes import Landscape

FREE = 30  # suggestions that were not recorded, until any recorded one is taken


class OptunaMissingError(RuntimeError):
    """Optuna is not installed."""


class OptunaPeer:
    """TPE over a landscape's parameters; see ``workflows.replay.play.Chooser``.

    What it suggests and was not recorded costs it nothing, nor does what it suggests again.

    Args:
        landscape: what is searched.
        seed: of the sampler.

    Raises:
        OptunaMissingError: that names the remedy.
    """

    def __init__(self, landscape: Landscape, seed: int) -> None:
        try:
            import optuna
        except ImportError as error:
            raise OptunaMissingError(
                "optuna is not installed; `pip install 'meshtune[peers]'` brings it"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = landscape.space
        self._free = {tuple(config.items()) for config in landscape.configs}
        self._rng = np.random.default_rng(seed)
        self._failed = optuna.trial.TrialState.FAIL
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(parameter.values)
            for name, parameter in self._space.parameters.items()
            if len(parameter.values) > 1
        }
        self._fixed = {
            name: parameter.values[0]
            for name, parameter in self._space.parameters.items()
            if name not in self._distributions
        }
        self._study = optuna.create_study(
            direction="maximize" if self._space.objective.maximize else "minimize",
            sampler=optuna.samplers.TPESampler(seed=seed),
        )
        self._asked: dict[tuple[Any, ...], Any] = {}

    def propose(self, run: Run, max_nodes: int) -> SimpleNamespace | None:
        """Its next suggestion that was recorded."""
        for trial in run.trials.values():
            asked = self._asked.get(tuple(trial.config.items())) if trial.ended else None
            if asked is not None:
                told = (trial.objective,) if trial.ok else (None, self._failed)
                self._study.tell(asked, *told)
                self._asked[tuple(trial.config.items())] = None
        if not self._free:
            return None
        for _ in range(FREE):
            asked = self._study.ask(self._distributions)
            key = self._key(asked.params)
            if key in self._free:
                self._asked[key] = asked
                break
            self._study.tell(asked, state=self._failed)
        else:
            every = sorted(self._free, key=repr)
            key = every[int(self._rng.integers(len(every)))]
        self._free.remove(key)
        return SimpleNamespace(config=dict(key), by="optuna", why="TPE", expected={})

    def _key(self, params: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(self._space.canonical({**self._fixed, **params}).items())
