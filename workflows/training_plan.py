"""The layout with which a training continues on the available nodes.

A long run loses nodes and gets others. At each start, all layouts that train the same (equal global
batch, number formats and whatever else is not layout) are ranked by tokens per day after failures,
with the measurements of the search and of the run itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from analysis import CandidateSet, Metrics, Observations, Posterior, Pricing, Run, Trial
from foundation.quantities import config_text, counted, duration, scalar_text
from search_spaces import Candidates, SearchSpace, SpaceError, check, load_space
from trainer.plan.fields import Choices, OtherChoices
from trainer.plan.jobs import Mask

# Choices that change the numbers of a step, not only where they are computed.
NUMERIC = frozenset((
    "precision", "engine", "reduce_precision", "quantize_weights", "quantize_gradients",
    "quantize_secondary", "tuning", "lora_rank", "lora_targets", "lora_dropout", "reference_model",
))  # fmt: skip
_FREE = {"num_nodes", "dp", *Choices.model_fields, *OtherChoices.model_fields} - NUMERIC
_OF_NODES = frozenset(("num_nodes", "dp", "gas"))  # what follows from nodes and batch
DAY_S = 86400.0
_SPEED = "tokens_per_second"
LONGEST = "365d"


@dataclass(frozen=True)
class TrainingPlan:
    space: SearchSpace  # of all layouts that were compared
    config: Mapping[str, Any]  # the chosen one, canonical
    # ``tokens_per_day`` after failures, ``step_time_s``, the probability to fit (``fits``), and of
    # ``Goodput`` ``useful_share``, ``checkpoint_interval_s``, ``checkpoint_s`` and ``restart_s``
    expected: Mapping[str, float]
    basis: str  # of the failures, as a line of text
    # slow nodes, by how many times: relative to the search's predictions, every start with the node
    # was slower than every start without it, by more than the noise
    slow: Mapping[str, float]

    @classmethod
    def of(
        cls,
        searched: Run,
        space: SearchSpace,
        base: Mapping[str, Any],
        nodes: int,
        training: Run | None = None,
    ) -> Self:
        """The layout with the most tokens per day after failures, on at most so many nodes.

        Global batch and number formats are those of ``base``. The starts of a ``training`` until
        now count as trials.

        Raises SpaceError if no layout is valid on so many nodes, NotPricedError without prices.
        """
        trials = [trial for trial in searched.trials.values() if trial.ended]
        starts = [] if training is None else [t for t in training.trials.values() if t.ended]
        wide = layouts(space, base, nodes, [trial.config for trial in (*trials, *starts)])
        pricing = Pricing(wide).probed(searched.folder)
        # Parameters of the plan alone have one value in the search, such as one node.
        alone = wide.parameters.keys() - space.parameters.keys()
        speeds = [
            replace(t, config={**{name: space.facts(t.config)[name] for name in alone}, **t.config})
            for t in _as_speeds(Pricing(space), trials)
        ]
        every = [*speeds, *as_trials(wide, starts)]
        numbered = dict(enumerate(every))
        run = replace(searched, goals=[("objective", True)], subject_to=(), trials=numbered)
        candidates = Candidates(wide)
        if not len(candidates.indices(1, np.random.default_rng(0), [], 2**31)):
            check(wide)  # raises the error that says which rule removes the most
        chosen = CandidateSet.shortlist(pricing, candidates, seed=0)
        observations = Observations.of(run)
        posterior = Posterior(chosen, observations.calibrated(pricing), observations)
        failures = pricing.failures.learned(wide, every).observed(starts)
        goodput = failures.goodput(posterior.prediction)
        rate, ran = np.exp(posterior.mean), _ran(chosen, every)
        best = int(np.argmax(rate * goodput.share * np.where(ran, 1.0, posterior.at_speed)))
        [config] = candidates.configs(chosen.indices[best : best + 1])
        columns = {
            "tokens_per_day": DAY_S * rate * goodput.share,
            "step_time_s": tokens_per_step(wide, config) / rate,
            "fits": np.where(ran, 1.0, posterior.prediction.fits),
            **goodput.columns(1.0),
        }
        expected = {name: float(c[best]) for name, c in columns.items() if "to_train" not in name}
        slow = _slow_nodes(pricing, speeds, starts)
        return cls(wide, wide.canonical(config), expected, failures.basis(), slow)

    @property
    def nodes(self) -> int:
        return self.space.num_nodes(self.config)

    @property
    def tokens_per_step(self) -> int:
        return tokens_per_step(self.space, self.config)

    @property
    def save_interval(self) -> int:
        each_s = self.expected["step_time_s"]
        return max(1, round(self.expected["checkpoint_interval_s"] / each_s))

    def __str__(self) -> str:
        told = self.expected
        return (
            f"{config_text(dict(self.config))}: {told['tokens_per_day']:,.4g} tokens per day after "
            f"failures on {counted(self.nodes, 'node')}, steps of {told['step_time_s']:.4g} s, "
            f"fits with {100 * told['fits']:.0f} %, {100 * told['useful_share']:.3g} % of the time "
            f"useful with a checkpoint every {counted(self.save_interval, 'step')} "
            f"({duration(told['checkpoint_interval_s'])})"
            + "".join(f"; {node} is slow ({x:.2g} times)" for node, x in self.slow.items())
        )


def tokens_per_step(space: SearchSpace, config: Mapping[str, Any]) -> int:
    facts: dict[str, Any] = space.facts(config)
    return int(facts["global_batch_size"] * facts["seq_length"])


def layouts(
    space: SearchSpace, base: Mapping[str, Any], nodes: int, tried: Iterable[Mapping[str, Any]] = ()
) -> SearchSpace:
    """The space of all layouts that train what ``base`` trains, on at most so many nodes.

    Its parameters have the values of ``tried`` configurations, even if these are not valid.
    Constraints of the space on nodes and batch are dropped.
    """
    content = space.content()
    facts: dict[str, Any] = space.facts(base)
    if "global_batch_size" not in facts:
        raise SpaceError(f"{space.file}: a layout for other nodes needs mbs and gas as parameters")
    batch, ranks = int(facts["global_batch_size"]), nodes * space.ranks_per_node
    divisors = [size for size in range(1, batch + 1) if batch % size == 0]
    values = {"num_nodes": [*range(1, nodes + 1)], "gas": divisors}
    values["dp"] = [size for size in divisors if size <= ranks]
    parameters, builtin = content["parameters"], content["trainer"].get("builtin")
    for name in ("num_nodes", "gas") if builtin is not None else ():
        builtin.pop(name, None)
        parameters.setdefault(name, [facts[name]])
    tried = list(tried)
    for name in values.keys() & parameters.keys():
        own = space.parameters[name].values if name in space.parameters else parameters[name]
        known = {c[name] for c in tried if c.get(name) is not None}
        parameters[name] = sorted({*own, *known, *values[name]})
    kept = [
        each.text
        for each in space.constraints
        if not any(space.reads.get(name, frozenset()) & _OF_NODES for name in each.names)
    ]
    stay = [name for name in (*base, *NUMERIC) if name not in _FREE and name in facts]
    for name in parameters.keys() & stay:
        parameters[name] = [*dict.fromkeys([base[name], *(c.get(name, base[name]) for c in tried)])]
    content["constraints"] = [
        *kept,
        f"global_batch_size == {batch}",
        f"num_nodes <= {nodes}",
        *(f"{name} == {_literal(facts[name])}" for name in dict.fromkeys(stay)),
    ]
    for key in ("objectives", "subject_to"):
        content.pop(key, None)
    content["objective"] = {"maximize": _SPEED}
    content["trial"] |= {"timeout": LONGEST, "no_progress_timeout": None, "early_stop": False}
    return load_space(content, frozen=True)


def _literal(value: Any) -> str:
    """A value in the syntax of constraints."""
    return f"'{value}'" if isinstance(value, str) else scalar_text(value)


def _as_speeds(pricing: Pricing, trials: Sequence[Trial]) -> list[Trial]:
    """Trials with tokens per second as the objective, without successes that have none."""
    found = []
    for trial, time_s in zip(trials, pricing.step_times_s(trials), strict=True):
        if not trial.ok:
            found.append(replace(trial, expected={}))
        elif np.isfinite(time_s):
            speed = tokens_per_step(pricing.space, trial.config) / float(time_s)
            changes: dict[str, Any] = {"objectives": {}, "bounded": {}, "violated": ()}
            found.append(replace(trial, objective=speed, expected={}, **changes))
    return found


def as_trials(space: SearchSpace, starts: Iterable[Trial]) -> Iterator[Trial]:
    """Starts of a training as trials of its space, with the duration that a trial would have.

    A start that made steps is a success, whatever ended it.
    """
    steps = space.trial.steps
    for start in starts:
        step_s = Metrics(start.result).get("step_time_s.median")
        if step_s is None:
            if start.failed:
                yield start
            continue
        attempt, start_up_s = start.attempts[-1], start.result.get("start_up_s")
        objective = tokens_per_step(space, start.config) / step_s
        attempts = []
        if start_up_s is not None:
            ended_t = attempt.started_t + start_up_s + steps * step_s
            attempts = [replace(attempt, kind="ok", ended_t=ended_t, objective=objective)]
        yield replace(start, kind="ok", objective=objective, expected={}, attempts=attempts)


def _ran(candidates: CandidateSet, trials: Iterable[Trial]) -> Mask:
    """Mask of candidates whose latest trial ran: whatever the model says, they fit."""
    latest = {tuple(sorted(trial.config.items())): trial for trial in trials if trial.completed}
    configs = [trial.config for trial in latest.values() if trial.ok]
    return np.isin(candidates.indices, candidates.candidates.indices_of(configs))


def _slow_nodes(
    pricing: Pricing, trials: Iterable[Trial], starts: Iterable[Trial]
) -> dict[str, float]:
    warmup = pricing.space.trial.warmup_steps  # in a shorter start all steps are cold
    long = (s for s in starts if s.attempts and (s.attempts[-1].steps or 0) > warmup)
    timed = [start for start in long if "step_time_s" in start.result]
    if len(timed) < 3:  # two with the node, one without
        return {}
    model, nodes = pricing.calibrated(trials), [set(s.attempts[-1].nodes) for s in timed]
    predicted_s = model.predict(pricing.jobs_of([start.config for start in timed])).step_time_s
    off = np.log([start.result["step_time_s"]["median"] for start in timed]) - np.log(predicted_s)
    slow = {}
    for node in sorted(set[str]().union(*nodes)):
        has = np.array([node in each for each in nodes])
        with_it = set.intersection(*(each for each in nodes if node in each))
        without_it = set[str]().union(*(each for each in nodes if node not in each))
        if with_it - without_it != {node}:  # others were there exactly when it was
            continue
        if has.sum() > 1 and not has.all() and off[has].min() - off[~has].max() > 2 * model.log_sd:
            slow[node] = float(np.exp(np.median(off[has]) - np.median(off[~has])))
    return slow
