"""DeepHyper's Bayesian optimization, behind one function of the run's history.

A proposal depends on the space, the seed and the journal alone: a fresh optimizer is told every
result and asked once. That costs a tenth of a second (one forest). In return, a resumed run
proposes what an unbroken one would have, no result is told twice, and pending trials are accounted
for (constant liar) although they are asked for one by one. We draw the candidates, valid and never
proposed before: DeepHyper repeats known points after a restart, and some generators ignore
constraints.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis import Run, Scalarization, Trial
from foundation.quantities import counted
from search_spaces import Parameter, SearchSpace
from trainer.plan.jobs import Array

KAPPA, KAPPA_FINAL, KAPPA_PERIOD = 1.96, 0.01, 10
SCARCE = 4  # completed trials per initial success, from which on two successes suffice


class DeepHyperOptimizer:
    """Asks DeepHyper for one of the candidates.

    Args:
        space: what is searched.
        num_initial: successes to see before the surrogate is used; failures do not count, since
            a surrogate of nothing but failures knows nothing. Where nearly all trials fail, two
            successes suffice after a while. Default: one more than there are parameters to
            choose, but at most a quarter of the budgeted trials.
    """

    def __init__(self, space: SearchSpace, num_initial: int | None = None) -> None:
        self.space = space
        varied = sum(p.varies for p in space.parameters.values())
        quarter = max(2, (space.budget.trials or 1_000_000) // 4)
        self.num_initial = num_initial or min(varied + 1, quarter)

    def choose(
        self,
        run: Run,
        candidates: list[dict[str, Any]],
        rng: np.random.Generator,
        weights: Array | None = None,
    ) -> tuple[dict[str, Any], str, str]:
        """One of the candidates, which are valid, new and in random order; who chose it, and why.

        ``weights`` are of several objectives.
        """
        told = [t for t in run.trials.values() if t.completed]
        done = sum(t.objective is not None for t in told)
        scarce = done >= 2 and len(told) >= SCARCE * self.num_initial
        if done < self.num_initial and not scarce:
            why = f"random warm-up: {done} of {self.num_initial} successes"
            return candidates[0], "random", why
        results = [*zip(told, self._values(told, weights), strict=True)]
        successes = [value for _, value in results if not isinstance(value, str)]
        # Pending trials are told as the best so far, as DeepHyper's own cl_max does in a batch.
        pending = [(t, max(successes)) for t in run.trials.values() if not t.ended]
        history = [(self.space.raw(t.config), value) for t, value in [*results, *pending]]
        asked = self._ask(candidates, history, int(rng.integers(2**31)))
        failures = len(results) - len(successes)
        learnt = f"{counted(len(successes), 'success')} and {counted(failures, 'failure')}"
        return asked, "bayesian", f"forest on {learnt}"

    def _values(self, trials: Sequence[Trial], weights: Array | None) -> list[float | str]:
        """Values for DeepHyper, which maximizes; several objectives become one.

        DeepHyper's own scalarization takes only raw values; with this one it aims at the same point
        of the front as the cost model.
        """
        values: list[float | str] = [f"F_{trial.kind}" for trial in trials]
        done = [(i, t) for i, t in enumerate(trials) if t.objective is not None]
        # A violated bound counts as a failure, unless there is nothing else to learn from.
        done = [(i, t) for i, t in done if not t.violated] or done
        if weights is None:
            told = [(t.objective or 0.0) for _, t in done]
            if not self.space.objective.maximize:
                told = [-objective for objective in told]
        else:
            objectives = self.space.objectives
            known = Scalarization.measured(objectives, [t for _, t in done])
            told = Scalarization.from_weights(weights, known).value(known).tolist()
        for (i, _), value in zip(done, told, strict=True):
            values[i] = value
        return values

    def _ask(
        self,
        candidates: list[dict[str, Any]],
        history: list[tuple[dict[str, Any], float | str]],
        seed: int,
    ) -> dict[str, Any]:
        from deephyper.hpo import CBO, HpProblem  # two seconds to import

        problem = HpProblem()
        for name, parameter in self.space.parameters.items():
            problem.add(_hyperparameter(parameter), name)
        words = [p for p in self.space.parameters.values() if p.ordered]
        if words:
            candidates = [_placed(config, words) for config in candidates]
            history = [(_placed(config, words), value) for config, value in history]
        problem.set_sampling_fn(lambda size: candidates[:size])
        # DeepHyper's own schedule counts asks, of which a fresh optimizer has seen none.
        decay = np.log(KAPPA_FINAL / KAPPA) / KAPPA_PERIOD
        kappa = KAPPA * np.exp(decay * (len(history) % KAPPA_PERIOD))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search = CBO(
                problem,
                random_state=seed,
                n_initial_points=1,
                acq_optimizer="sampling",  # over the candidates, so never invalid nor a repeat
                acq_optimizer_kwargs={
                    "n_points": len(candidates),
                    "max_total_failures": -1,
                    "filter_failures": self.space.failure_penalty,
                },
                # With DeepHyper's default a forest that saw few successes among many failures never
                # splits, and all candidates are equal. DeepHyper lowers it while its best does not
                # improve, which a fresh optimizer has not seen.
                surrogate_model_kwargs={"min_impurity_decrease": 0.0},
                acq_func_kwargs={"kappa": float(kappa), "scheduler": {"type": "constant"}},
                checkpoint_history_to_csv=False,
            )
            search.tell(history)
            asked: dict[str, Any] = search.ask(1)[0]
        # Its logarithms round numbers: 0.00050234 comes back as 0.00050233999...
        spans = [p.name for p in self.space.parameters.values() if p.span is not None]
        numbers = {name: _nearest(asked[name], {c[name] for c in candidates}) for name in spans}
        return asked | numbers | {p.name: p.values[asked[p.name]] for p in words}


def _nearest(value: float, among: Iterable[float]) -> float:
    return min(among, key=lambda number: abs(number - value))


def _hyperparameter(parameter: Parameter) -> Any:
    """A parameter for DeepHyper's ``HpProblem.add``; ordered words become their positions."""
    from ConfigSpace import CategoricalHyperparameter

    span = parameter.span
    if span is not None and parameter.varies:
        return (span.low, span.high, "log-uniform" if span.log else "uniform")
    if parameter.ordered:
        return list(range(len(parameter.values)))
    # Sorted, because DeepHyper refuses [True, False] in places.
    values = sorted(parameter.values)
    if parameter.ordered is False and parameter.varies:
        return CategoricalHyperparameter(parameter.name, choices=values)
    return values


def _placed(config: Mapping[str, Any], words: Sequence[Parameter]) -> dict[str, Any]:
    """A configuration with the positions of ordered words in place of them."""
    return {**config, **{p.name: p.place(config[p.name]) for p in words}}
