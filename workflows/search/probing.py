"""Probes: the first minutes of a search, spent on a shallower model on few nodes.

A layer takes much the same memory and time in a model of 4 layers as in one of 80, and measuring
it costs a fraction. Probes are a run of their own, in the run's folder ``probes/``: same trainer,
same cluster, fewer layers, only the most informative configurations. The cost model learns from
them as from any other trial (``analysis.prediction.pricing``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis import (
    CandidateSet,
    MissingFactError,
    NotPricedError,
    Pricing,
    RunFolder,
    StartUp,
    informative,
    lessons,
    read_run,
)
from foundation.quantities import counted, number
from search_spaces import Candidates, SearchSpace, SpaceError, load_space
from slurm import Launcher
from trainer.plan.jobs import Array, Jobs
from trainer.plan.layouts import NO_LAYOUT
from trainer.plan.stages import LAYOUT
from workflows.search.budget import Budget
from workflows.search.session import Search, run_session
from workflows.search.stopping import CONTINUE, DONE, INTERRUPTED

LAYERS = 4  # of the shallower model at most: enough for a pipeline, and for a layer of each kind
DEPTHS = 4  # times as deep, at least, as the shallower model is the real one
CANDIDATES = 10_000  # from which probes are chosen
WIDEST = 2  # nodes: one shows kernels and memory, a second the network
MOST_VALUES = 4  # of a parameter without a price that are probed beside its first
USUAL = 4  # probes; more are not worth their cost
Launch = Callable[[SearchSpace, RunFolder], Launcher]
ANY_BATCH = {"global_batch_size", "num_nodes"}  # constraints on these do not bind probes
KINDS = ("dense_layers", "windowed_layers")  # kinds of layers whose share a shallower model keeps


class ProbeError(SpaceError):
    """The space cannot be probed; the message says why, and what would help."""


@dataclass(frozen=True)
class Plan:
    space: SearchSpace  # of the shallower model
    configs: Sequence[Mapping[str, Any]]  # canonical, the most informative first
    node_s: float  # expected node-seconds of all of them
    trial_node_s: float  # expected node-seconds of the search's first trial

    def __str__(self) -> str:
        layers = self.space.model.num_layers if self.space.model else 0
        return (
            f"{counted(len(self.configs), 'probe')} of {layers} layers on up to "
            f"{counted(max(map(self.space.num_nodes, self.configs)), 'node')}: about "
            f"{number(self.node_s / 3600)} node-hours, a trial about "
            f"{number(self.trial_node_s / 3600)}"
        )


def shallower(space: SearchSpace, nodes: int = WIDEST) -> SearchSpace:
    """The space with a model of few layers, on few nodes, with any global batch.

    Raises ProbeError if its trainer cannot be told the number of layers, or no such configuration
    is valid.
    """
    model, reads = space.model, space.program.reads
    if model is None:
        raise ProbeError(f"{space.file}: probes need a model")
    depth = min(LAYERS, model.num_layers // DEPTHS)
    if depth < 2:
        layers = counted(model.num_layers, "layer")
        raise ProbeError(f"{space.file}: a model of {layers} is its own probe")
    if reads is not None and "num_layers" not in reads:
        raise ProbeError(
            f"{space.file}: probes need a trainer that is told the model's depth: write "
            "{num_layers} where its command or file has the number of layers"
        )
    content = space.content()
    share = depth / model.num_layers
    kinds = {name: content["model"].get(name, 0) for name in KINDS}
    content["model"] |= {"num_layers": depth}
    content["model"] |= {n: max(1, round(share * count)) for n, count in kinds.items() if count}
    parameters = content["parameters"]
    if "num_nodes" in parameters:
        parameters["num_nodes"] = [*range(1, nodes + 1)]
    if LAYOUT in parameters:
        parameters[LAYOUT] = [NO_LAYOUT]
    content["name"] = f"{space.name}-probes"
    content["constraints"] = [each.text for each in space.constraints if not ANY_BATCH & each.names]
    content["finalists"] = {"max_repeats": 0}
    content["trial"] |= {"early_stop": False}  # a slow one tells as much as a fast one
    try:
        return load_space(content, frozen=True)
    except SpaceError as error:
        raise ProbeError(f"{space.file}: probes of {depth} layers: {error}") from None


def plan(space: SearchSpace, count: int | None, nodes: int, seed: int = 0) -> Plan:
    """The ``count`` most informative probes on at most so many nodes, and one for each further
    value of a parameter without a price. Default count: USUAL, or 1 if there are such parameters.

    Raises ProbeError if there are none.
    """
    shallow = shallower(space, min(nodes, WIDEST))
    rng = np.random.default_rng(seed)
    try:
        whole, small = Pricing(space).supposing(), Pricing(shallow).supposing()
        every = CandidateSet.shortlist(whole, Candidates(space), seed)
        few = Candidates(shallow)
        indices = few.indices(CANDIDATES, rng, [], min(nodes, WIDEST))
        probes = CandidateSet(small, few, indices)
    except (NotPricedError, MissingFactError) as error:
        raise ProbeError(f"{space.file}: probes need the cost model: {error}") from None
    if not len(indices):
        raise ProbeError(
            f"{space.file}: no configuration of a shallower model is valid on "
            f"{counted(min(nodes, WIDEST), 'node')}"
        )
    seconds = _node_seconds(small, probes.jobs)
    count = (1 if small.unpriced else USUAL) if count is None else count
    rows = informative(every, probes, seconds, count, seed)
    chosen = [*alike_but_for_one(small, few.configs(indices[rows]))]
    return Plan(
        space=shallow,
        configs=[shallow.canonical(config) for config in chosen],
        node_s=float(_node_seconds(small, small.jobs_of(chosen)).sum()) if chosen else 0.0,
        trial_node_s=float(_node_seconds(whole, every.jobs[:1])[0]),
    )


def alike_but_for_one(
    pricing: Pricing, configs: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Raw configurations, all with the first value of each unpriced parameter, then the first one
    with each other value: the difference is the effect of that value."""
    parameters = [pricing.space.parameters[name] for name in pricing.unpriced]
    usual = {p.name: p.pinned for p in parameters}
    yield from ({**config, **usual} for config in configs)
    for parameter in parameters if configs else ():
        for value in parameter.values[1 : MOST_VALUES + 1]:
            other = {**configs[0], **usual, parameter.name: value}
            if pricing.space.first_violation(other) is None:
                yield other


def wanted(space: SearchSpace, nodes: int) -> Plan | None:
    """The probes with which a search of the space begins on so many nodes; None: without any.

    ``auto`` means none on one node, where a probe takes as long as a trial, and none if together
    they cost more than a trial.

    Raises ProbeError if the space asks for probes and cannot have them.
    """
    count = space.budget.probes
    if count != "auto":
        return plan(space, count, nodes) if count else None
    if nodes < WIDEST or space.widths[-1] < WIDEST:
        return None
    try:
        found = plan(space, None, nodes)
    except ProbeError:
        return None
    return found if found.configs and found.node_s < found.trial_node_s else None


def _node_seconds(pricing: Pricing, jobs: Jobs) -> Array:
    """Expected node-seconds of trials from start to end, before any trial."""
    space, prediction = pricing.space, pricing.model.predict(jobs)
    start_s = StartUp.expected(space).seconds(prediction.num_nodes)
    return np.asarray(prediction.num_nodes * (start_s + space.trial.steps * prediction.step_time_s))


def begin_with_probes(search: Search, launch: Launch, flags: str = "", always: bool = False) -> int:
    """Run the probes with which a search begins, and print their cost and what was learned.

    Args:
        search: about to run; if it has trials already, it has had its probes.
        launch: a launcher for another space and folder.
        flags: see ``run_session``.
        always: even if the space asks for none.

    Returns:
        The exit code if they were stopped, else 0.

    Raises ProbeError if the space asks for probes and cannot have them.
    """
    folder = search.folder
    if folder.started and read_run(folder.path).trials:
        if always:
            print(f"{folder.path} has trials already: a search begins with its probes")
        return DONE
    nodes, count = len(search.launcher.nodes()), search.space.budget.probes
    found = (
        plan(search.space, USUAL, nodes) if always and not count else wanted(search.space, nodes)
    )
    if found is None:
        return DONE
    print(f"probes: {found}")
    with closing(launch(found.space, folder.probes)) as launcher:
        probes = replace(
            search,
            space=found.space,
            folder=folder.probes,
            launcher=launcher,
            policy="random",
            pricing=None,
            budget=Budget(trials=len(found.configs)),
            only=found.configs,
        )
        code = run_session(probes, flags, report=False)
    if code in (CONTINUE, INTERRUPTED):
        return code
    pricing = Pricing.of(search.space)
    for line in lessons(pricing.probed(folder)) if pricing else ():
        print(f"learned: {line}")
    return DONE
