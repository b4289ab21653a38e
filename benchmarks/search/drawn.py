"""Drawn worlds: landscapes whose cluster and framework are hidden from the search.

Everything that a search has to learn is drawn from a seed: constants of time and memory, habits of
the framework, a network that may congest, effects of unpriced parameters, noise, failures, and a
misfit that no constant of the cost model can express. In a tenth of the worlds the ranking is the
reverse of the model's, and in a tenth hardly any configuration fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from analysis.cost.constants import TRANSFER, Constants
from analysis.cost.model import CostModel, between_machines
from analysis.cost.network import Network
from analysis.prediction.pricing import Pricing
from analysis.prediction.start_up import StartUp
from analysis.run.trial import Trial
from benchmarks.search.probed import STEPS
from search_spaces import SearchSpace, load_space
from search_spaces.known import FRAMEWORKS, framework_named
from search_spaces.points.candidates import Candidates
from workflows.replay.landscape import Landscape
from workflows.search.probing import Plan

SHALLOW_LOG_SD = 0.03  # misfit of a shallower model's time and memory
LARGEST = 100_000  # configurations of a world at most
CLUSTERS = (
    *("alps", "dgx_a100", "dgx_b200", "dgx_h100", "frontier", "jean_zay_v100", "mi300x"),
    "perlmutter",
)
MODELS = (
    *("gpt_1_4b", "gpt_5b", "gpt_10b", "gpt_22b", "gpt_40b", "gpt_80b", "gpt_175b"),
    *("llama_8b", "llama_70b"),
)
# Habits that a record may state wrongly, and their possible values.
HABITS: Mapping[str, tuple[Any, ...]] = {
    "gradient_bytes": (2.0, 4.0),
    "moment_bytes": (1.0, 2.0, 4.0),
    "flash_attention": (True, False),
    "logits_bytes": (4.0, 8.0, 12.0),
    "logit_copies": (0.0, 2.0),
    "masked_dropout": (False, True),
    "fused_layers": (False, True),
    "placeholder_gradients": (False, True),
    "keeps_products": ("", "second", "all"),
    "reduce_bytes": (2.0, 4.0),
    "overlaps_gradients": (True, False),
    "overlaps_split_gradients": (True, False),
}
OF_STAGES = ("split", "counts_ends", "stage_settings", "fills_pipeline")
"""Habits that decide which configurations are valid; the search knows them."""
VARIED: dict[str, tuple[float, list[Any]]] = {  # parameters, and in which share of the worlds
    "vpp": (0.5, [1, 2, 4]),
    "zero_stage": (0.9, [0, 1, 2, 3]),
    "sequence_parallel": (0.7, [False, True]),
    "recompute": (0.8, ["none", "selective", "full"]),
    "attention_kernel": (0.3, ["eager", "flash", "fused"]),
    "data_workers": (0.2, [1, 2, 4, 8]),
}


@dataclass(frozen=True)
class World(Landscape):
    """A landscape that is computed, with one run per configuration.

    Attributes:
        kind: what the search's assumptions get wrong.
        listed: whether the search may choose only from these configurations, not all valid ones.
        candidates: the configurations of the landscape.
        seconds: step time of each, as a mean over runs; shape (n,).
        measured_s: step time of its only run; nan where it failed; shape (n,).
        kinds: how that run ended; shape (n,).
        peaks: bytes that it reported; shape (n,).
        tokens: per step; shape (n,).
        num_nodes: shape (n,).
        truth: the cost model with the hidden constants and habits.
        slower: log slowdown by each value of the unpriced parameters.
    """

    kind: str = ""
    listed: bool = False
    candidates: Candidates = field(kw_only=True)
    indices: np.ndarray = field(kw_only=True)  # sorted
    seconds: np.ndarray = field(kw_only=True)
    measured_s: np.ndarray = field(kw_only=True)
    kinds: np.ndarray = field(kw_only=True)
    peaks: np.ndarray = field(kw_only=True)
    tokens: np.ndarray = field(kw_only=True)
    num_nodes: np.ndarray = field(kw_only=True)
    truth: CostModel = field(kw_only=True)
    slower: Mapping[str, np.ndarray] = field(kw_only=True)

    @property
    def ran(self) -> np.ndarray:
        return self.kinds == "ok"

    @cached_property
    def best(self) -> float:
        return float((self.tokens / self.seconds)[self.ran].max())

    def share(self, config: Mapping[str, Any]) -> float:
        row = self.row(config)
        return float(self.tokens[row] / self.seconds[row]) / self.best if self.ran[row] else 0.0

    def row(self, config: Mapping[str, Any]) -> int:
        return int(np.searchsorted(self.indices, self.candidates.indices_of([config])[0]))

    def answer(self, config: Mapping[str, Any]) -> Trial:
        row = self.row(config)
        seconds = float(self.measured_s[row])
        if not self.ran[row]:
            return Trial(row, dict(config), 0.0, kind=str(self.kinds[row]))
        result = {"step_time_s": {"median": seconds}, "peak_memory_bytes": float(self.peaks[row])}
        speed = float(self.tokens[row]) / seconds
        return Trial(row, dict(config), 0.0, kind="ok", objective=speed, result=result)

    def node_seconds(self, configs: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Node-seconds of one trial of each; a trial that fails ends at its first step."""
        rows = np.array([self.row(config) for config in configs])
        steps_s = STEPS * np.where(self.ran[rows], self.measured_s[rows], 0.0)
        return self.num_nodes[rows] * (StartUp.expected(self.space).base_s + steps_s)

    def probed(self, found: Plan, rng: np.random.Generator) -> tuple[list[Trial], float]:
        """Trials of probes, and their node-seconds; the shallower model has its own misfit."""
        pricing = Pricing(found.space)
        jobs = pricing.jobs_of(found.configs)
        prediction = self.truth.predict(jobs)
        calm_s, late_s = prediction.states_s
        step_s = np.where(rng.random(len(jobs)) < prediction.crowded, late_s, calm_s)
        step_s = step_s * np.exp(SHALLOW_LOG_SD * rng.normal(size=len(jobs)))
        for name, effects in self.slower.items():
            place = found.space.parameters[name].place
            step_s = step_s * np.exp([effects[place(c[name])] for c in found.configs])
        peaks = self.truth.reported_peak_bytes(jobs)
        peaks = peaks * np.exp(SHALLOW_LOG_SD * rng.normal(size=len(jobs)))
        assert self.space.cluster is not None
        fits = prediction.peak_bytes <= self.space.cluster.memory_bytes
        tokens = jobs.global_batch * jobs.model.seq_length
        trials = []
        for row, config in enumerate(found.configs):
            trial = Trial(row + 1, dict(config), 0.0, ended_t=0.0, kind="oom")
            if fits[row]:
                trial.kind, trial.objective = "ok", float(tokens[row] / step_s[row])
                trial.result = {
                    "step_time_s": {"median": float(step_s[row])},
                    "peak_memory_bytes": float(peaks[row]),
                }
            trials.append(trial)
        start_s = StartUp.expected(found.space).base_s
        spent = prediction.num_nodes * (start_s + STEPS * np.where(fits, step_s, 0.0))
        return trials, float(spent.sum())


class _Answers(Mapping[Any, list[Trial]]):
    """Answers by canonical configuration, computed when they are asked for."""

    def __init__(self) -> None:
        self.world: World | None = None

    def __getitem__(self, key: tuple[Any, ...]) -> list[Trial]:
        assert self.world is not None
        return [self.world.answer(dict(key))]

    def __len__(self) -> int:
        return len(self.world.indices) if self.world else 0

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError("answers are computed one by one")


# ---- drawing ----


def world(seed: int) -> World:
    """The world of a seed; its search has to learn everything that is drawn here."""
    rng = np.random.default_rng((seed, 28))
    while True:
        space = _space(rng)
        candidates = Candidates(space)
        indices = candidates.indices(10 * LARGEST, rng, [], 2**31)
        if 20 <= len(indices) <= LARGEST:
            break
    listed = rng.random() < 0.4  # like the configurations of recorded sweeps
    if listed:
        indices = indices[: int(np.exp(rng.uniform(*np.log([20, 400]))))]
    indices = np.sort(indices)
    pricing = Pricing(space)
    jobs = pricing.jobs(candidates.columns(indices))
    truth, kind = _truth(pricing, rng)
    prediction = truth.predict(jobs)
    calm_s, late_s = prediction.states_s
    errors_s = np.exp(_misfit(space, indices, np.exp(rng.uniform(*np.log([0.03, 0.15]))), rng))
    larger = np.exp(_misfit(space, indices, np.exp(rng.uniform(*np.log([0.01, 0.06]))), rng))
    effects, digits = _unpriced(space, rng), _digits(space, indices)
    slower = errors_s * np.exp(sum((by[digits[n]] for n, by in effects.items()), 0.0))
    crowded = prediction.crowded
    worth_s = slower / ((1 - crowded) / calm_s + crowded / late_s)
    run_s = slower * np.where(rng.random(len(indices)) < crowded, late_s, calm_s)
    if rng.random() < 0.1:
        kind = "inverted"
        per_sample_s = worth_s / jobs.global_batch
        order = np.argsort(per_sample_s)
        per_sample_s[order] = per_sample_s[order[::-1]]
        worth_s = run_s = per_sample_s * jobs.global_batch
    noise = np.exp(rng.uniform(*np.log([0.005, 0.05])))
    run_s = run_s * np.exp(noise * rng.normal(size=len(indices)))
    if rng.random() < 0.3:  # a shared machine
        run_s = run_s * np.where(rng.random(len(indices)) < 0.03, rng.uniform(2, 6), 1.0)
    needed = prediction.peak_bytes * larger
    limit = truth.memory_limit_bytes
    if (needed <= limit).mean() < 0.02 or rng.random() < 0.1:
        kind = "hardly fits"
        few = max(int(rng.integers(3, 7)), int(0.03 * len(indices)))
        limit = float(np.sort(needed)[min(few, len(needed)) - 1])
        assert space.cluster is not None
        smaller = space.cluster.model_copy(update={"memory_gib": limit / 2**30})
        space = replace(space, cluster=smaller)
    pressed = _pressed(needed / limit, np.random.default_rng((seed, 31)))
    worth_s, run_s = worth_s * pressed, run_s * pressed
    kinds = np.where(needed > limit, "oom", "ok").astype("<U5")
    kinds[(kinds == "ok") & _crashes(space, indices, rng)] = "crash"
    reported = truth.reported_peak_bytes(jobs) * larger * np.exp(0.005 * rng.normal(size=len(jobs)))
    configs = [space.canonical(config) for config in candidates.configs(indices)]
    answers = _Answers()
    answers.world = World(
        f"world {seed}",
        space,
        configs,
        answers,
        kind=kind,
        listed=listed,
        candidates=candidates,
        indices=indices,
        seconds=worth_s,
        measured_s=run_s,
        kinds=kinds,
        peaks=reported,
        tokens=np.asarray(jobs.global_batch * jobs.model.seq_length, dtype=float),
        num_nodes=np.asarray(prediction.num_nodes),
        truth=truth,
        slower=effects,
    )
    return answers.world if answers.world.ran.any() else world(seed + 10**6)


def _space(rng: np.random.Generator) -> SearchSpace:
    """A space of one model on one cluster, with one global batch."""
    cluster = str(rng.choice(CLUSTERS))
    content: dict[str, Any] = {
        "version": 1,
        "name": "world",
        "model": str(rng.choice(MODELS)),
        "cluster": cluster,
        "trainer": {"command": ["recorded", "{num_layers}"], "framework": _told(rng)},
        "objective": {"maximize": "tokens_per_second"},
        "trial": {"timeout": "365d"},
        "allow": ["tp_across_nodes"],
    }
    plain = load_space(
        {**content, "parameters": {"num_nodes": 1, "tp": 1, "pp": 1, "mbs": 1, "gas": 1}}
    )
    assert plain.model is not None and plain.cluster is not None
    per_node = plain.cluster.gpus_per_node
    states = 18 * plain.model.num_parameters / (plain.cluster.memory_bytes * per_node)
    nodes = int(2 ** np.clip(np.ceil(np.log2(states / rng.uniform(0.1, 0.8))), 0, 7))
    tp = [2**n for n in range(int(np.log2(per_node)) + 1)]
    batch = int(2 ** rng.integers(6, 10)) * (1 if nodes < 32 else 4)
    batches = f"global_batch_size == {batch}"
    if rng.random() < 0.3:
        batches = f"{batch // 2} <= global_batch_size <= {4 * batch}"
    parameters: dict[str, Any] = {
        "num_nodes": [nodes] if rng.random() < 0.7 else [nodes, 2 * nodes],
        "tp": tp,
        "pp": [p for p in (1, 2, 4, 8, 16) if plain.model.num_layers % p == 0],
        "mbs": [1, 2, 4, 8][: int(rng.integers(2, 5))],
        "gas": {"log2": [1, 1024]},
    }
    for name, (share, values) in VARIED.items():
        if rng.random() < share:
            parameters[name] = values
    conditions = {"vpp": "pp > 1", "sequence_parallel": "tp > 1"}
    content["conditions"] = {n: c for n, c in conditions.items() if n in parameters}
    return load_space({**content, "parameters": parameters, "constraints": [batches]})


def _told(rng: np.random.Generator) -> str:
    """The framework that the space names; an unrecorded one in a third of the worlds."""
    names = [name for name in FRAMEWORKS if name != "meshtune"]
    return "unrecorded" if rng.random() < 0.35 else str(rng.choice(names))


def _truth(pricing: Pricing, rng: np.random.Generator) -> tuple[CostModel, str]:
    """The cost model with hidden constants and habits, and what the search's record gets wrong."""
    told = pricing.space.program.framework
    recorded = told in FRAMEWORKS
    name = told if recorded else str(rng.choice([n for n in FRAMEWORKS if n != "meshtune"]))
    changed = int(rng.choice([0, 1, 3])) if recorded else int(rng.choice([0, 2, 4]))
    new = {n: rng.choice(np.array(HABITS[n], object)) for n in rng.permutation([*HABITS])[:changed]}
    named = framework_named(told)
    known = {n: getattr(named, n) for n in OF_STAGES}
    framework = framework_named(name).with_habits(**new, **known, reports_first_stage=False)
    kind = "unrecorded" if not recorded else "record wrong" if new else "recorded"
    model, wide = pricing.model, float(rng.choice([0.7, 1.0, 1.3]))
    network = Network(np.array([np.inf]), np.ones(1))
    if rng.random() < 0.25:
        network = Network(np.array([np.exp(rng.normal(np.log(20), 0.7))]), np.ones(1))
    memory = model.memory
    prior = memory.constants.covariance()
    seconds = _near(model.constants, model.covariance, between_machines(), wide, rng)
    memory = replace(memory, constants=_near(memory.constants, memory.covariance, prior, wide, rng))
    truth = replace(model, framework=framework, constants=seconds, memory=memory, network=network)
    return truth, kind


def _near(
    center: Constants,
    learnt: np.ndarray | None,
    prior: np.ndarray,
    wide: float,
    rng: np.random.Generator,
) -> Any:
    """Constants drawn around ``center``, with ``wide`` times the deviations of its covariance."""
    covariance = prior if learnt is None else TRANSFER**2 * learnt
    off = np.clip(rng.normal(size=len(covariance)), -2, 2) * np.sqrt(np.diag(covariance))
    return type(center).from_logs(center.logs() + wide * off)


def _digits(space: SearchSpace, indices: np.ndarray) -> dict[str, np.ndarray]:
    """For every parameter the index of each configuration's value."""
    radix = [len(parameter.values) for parameter in space.parameters.values()]
    return dict(zip(space.parameters, np.unravel_index(indices, radix), strict=True))


def _misfit(
    space: SearchSpace, indices: np.ndarray, log_sd: float, rng: np.random.Generator
) -> np.ndarray:
    """Log effects of values, and of pairs of values, unknown to the cost model; shape (n,)."""
    digits = _digits(space, indices)
    varied = [n for n, p in space.parameters.items() if len(p.values) > 1]
    sizes = {n: len(space.parameters[n].values) for n in varied}
    each = [rng.normal(size=sizes[n])[digits[n]] for n in varied]
    pairs = [
        rng.normal(size=(sizes[a], sizes[b]))[digits[a], digits[b]]
        for a, b in combinations(varied, 2)
    ]
    halves = [np.sum(part, axis=0) / np.sqrt(2 * len(part)) for part in (each, pairs) if part]
    return log_sd * np.asarray(sum(halves))


def _unpriced(space: SearchSpace, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Log slowdown of a step by each value of an unpriced parameter."""
    found = {}
    for name, most in (("attention_kernel", 0.35), ("data_workers", 0.2)):
        if name in space.parameters:
            effects = rng.uniform(0, most, len(space.parameters[name].values))
            found[name] = effects - effects.min()
    return found


def _pressed(needed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Slowdown of jobs whose allocator has no memory to spare; in most worlds."""
    if rng.random() < 0.3:
        return np.ones(len(needed))
    return np.where(needed > rng.uniform(0.85, 0.97), rng.uniform(1.5, 6), 1.0)


def _crashes(space: SearchSpace, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Crashes of one run in a hundred; in a quarter of the worlds also of one pair of values."""
    crashed = rng.random(len(indices)) < 0.01
    if rng.random() < 0.25:
        digits = _digits(space, indices)
        varied = [n for n, p in space.parameters.items() if len(p.values) > 1]
        a, b = rng.choice(varied, 2, replace=False)
        one, other = (int(rng.integers(len(space.parameters[n].values))) for n in (a, b))
        crashed |= (digits[a] == one) & (digits[b] == other)
    return crashed
