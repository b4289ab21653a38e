"""A resolved search space: parameters, rules, trainer and objectives."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from foundation.bounds import Bound
from foundation.documents import written_document
from foundation.energy import Meter
from foundation.values import Scalar
from search_spaces.changes import changed_keys
from search_spaces.cluster import Cluster
from search_spaces.language.schema import BudgetSection, FinalistsSection, TrialSection
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.parameters import LENGTHS, Parameter
from search_spaces.rules import facts as _facts
from search_spaces.rules.facts import Derivation
from search_spaces.rules.rule import Facts, Rule
from search_spaces.trainers.trainer import Trainer, TrialFacts, make_trainer
from trainer.plan.model import ModelConfig
from trainer.plan.rules.expression import Array, Expression

# Metrics that need an energy counter; so does cost, if energy has a price.
MOST_CHANGES = 6  # named in a message
ENERGY_FIGURES = ("energy_joules", "joules_per_token", "co2")


@dataclass(frozen=True)
class Objective:
    """A metric to maximize or minimize, from the trainer's result or derived from it.

    Dots in ``key`` lead to nested keys of the result.
    """

    key: str
    maximize: bool

    def as_dict(self) -> dict[str, str]:
        return {"maximize" if self.maximize else "minimize": self.key}


@dataclass(frozen=True)
class SearchSpace:
    """Parameters and their rules, how a trial runs, and the objectives.

    A *raw* configuration has a value for every parameter; its canonical form omits the inactive
    ones. A raw one is valid only with inactive parameters at their first value, so that no
    canonical configuration is counted twice.
    """

    MAX_CONFIGS: ClassVar[int] = 2**62  # raw configurations: they are numbered with 64 bits

    file: str
    name: str
    description: str
    model: ModelConfig | None
    model_name: str
    cluster: Cluster | None
    trainer: TrainerSpec
    parameters: dict[str, Parameter]
    conditions: dict[str, Expression]
    constraints: tuple[Expression, ...]
    rules: tuple[Rule, ...]
    objective: Objective
    trial: TrialSection
    budget: BudgetSection
    failure_penalty: str
    allow: tuple[str, ...]
    finalists: FinalistsSection
    more_objectives: tuple[Objective, ...] = ()  # for a Pareto front
    subject_to: tuple[Bound, ...] = ()  # on measured values; only trials within can be the best
    assumed: str = ""  # a note on assumptions about what the model's file does not state

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All objectives; the first one decides which trial is best."""
        return (self.objective, *self.more_objectives)

    @property
    def goals(self) -> dict[str, Any]:
        """Objectives as the journal states them: the first; all, if there are several; bounds."""
        goals: dict[str, Any] = {"objective": self.objective.as_dict()}
        if self.more_objectives:
            goals["objectives"] = [objective.as_dict() for objective in self.objectives]
        if self.subject_to:
            goals["subject_to"] = [bound.text for bound in self.subject_to]
        return goals

    @property
    def raw_size(self) -> int:
        return math.prod(len(parameter.values) for parameter in self.parameters.values())

    @cached_property
    def reads(self) -> dict[str, frozenset[str]]:
        """Parameters that each name in a rule is derived from; none for facts of the model."""
        return self._derivation.reads()

    def holding(self, names: Collection[str]) -> SearchSpace:
        """The space with each of these parameters at its first value, where no rule reads them.

        A continuous parameter keeps its interval.
        """
        own = self.parameters
        held = own | {n: replace(own[n], values=own[n].values[:1]) for n in names}
        reading = {name for name, read in self.reads.items() if not read.isdisjoint(names)}
        rules = tuple(rule for rule in self.rules if rule.names.isdisjoint(reading))
        return replace(self, parameters=held, rules=rules)

    def raw_columns(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Raw configurations by their index, as one column per parameter.

        An index is a mixed-radix number: one digit per parameter, the last varies fastest.
        """
        digits = np.unravel_index(indices, [len(p.values) for p in self.parameters.values()])
        return {
            name: np.array(parameter.values)[digit]
            for (name, parameter), digit in zip(self.parameters.items(), digits, strict=True)
        }

    def columns(self, raw: Mapping[str, Any]) -> Facts:
        """Every name that rules can use, from columns of raw configurations."""
        return self._derivation.facts(raw)

    def valid(self, columns: Mapping[str, Any]) -> np.ndarray:
        """Mask of the N raw configurations that satisfy every rule; shape (N,)."""
        facts = self.columns(columns)
        kept = np.ones(len(np.asarray(columns[next(iter(self.parameters))])), dtype=bool)
        for rule in self.rules:
            kept &= rule.holds(facts)
        return kept

    def first_violation(self, config: Mapping[str, Any]) -> str | None:
        """Why a configuration (raw or canonical) is not in the space; None if it is."""
        unknown = [name for name in config if name not in self.parameters]
        if unknown:
            return f"{unknown[0]}: not a parameter of this space"
        try:
            raw = self.raw(config)
        except ValueError as error:
            return str(error)
        facts = self.columns(_one_row(raw))
        for rule in self.rules:
            if not np.all(rule.holds(facts)):
                values = ", ".join(
                    f"{name} {_plain(facts.columns[name])}"
                    for name in sorted(rule.names)
                    if name in facts.columns
                )
                remedy = f"; {rule.remedy}" if rule.remedy else ""
                return f"{rule.name}: {rule.text} ({values}){remedy}"
        return None

    def raw(self, config: Mapping[str, Any]) -> dict[str, Scalar]:
        """A value for every parameter: inactive ones, left out or None, get their first value.

        Raises ValueError for a value that the parameter does not have, or a missing parameter
        without a condition.
        """
        raw: dict[str, Scalar] = {}
        for name, parameter in self.parameters.items():
            value = config.get(name)
            if value is not None:
                raw[name] = parameter.member(value)
            elif name in self.conditions:
                raw[name] = parameter.pinned
            else:
                raise ValueError(f"{name}: missing")
        return raw

    def canonical(self, config: Mapping[str, Any]) -> dict[str, Scalar]:
        """The configuration without its inactive parameters, in plain Python types."""
        raw = self.raw(config)
        active = self.columns(_one_row(raw)).active
        return {
            name: value for name, value in raw.items() if name not in active or np.all(active[name])
        }

    def facts(self, config: Mapping[str, Any]) -> dict[str, Scalar]:
        """Parameters, model, cluster and what follows from them (``dp``, ``world_size``, ...).

        An inactive parameter has the trainer's default, or its first value. Placements of the
        built-in trainer are resolved to ``weight_shard`` and the like.
        """
        facts = self.columns(_one_row(self.raw(config)))
        return {name: _plain(column) for name, column in facts.columns.items()}

    def num_nodes(self, config: Mapping[str, Any]) -> int:
        return int(self.facts(config)["num_nodes"])

    @property
    def ranks_per_node(self) -> int:
        """Processes of a trial on each of its nodes."""
        own = self.cluster.gpus_per_node if self.cluster is not None else 1
        return self.trial.ranks_per_node or own

    @property
    def starts_its_own(self) -> bool:
        """Whether the trainer itself starts the processes of a node's GPUs, as Ray does."""
        return self.cluster is not None and self.ranks_per_node != self.cluster.gpus_per_node

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Node counts that trials may have, ascending; some may have no valid configuration."""
        if "num_nodes" in self.parameters:
            return tuple(sorted(int(value) for value in self.parameters["num_nodes"].values))
        if not _facts.derived_nodes(self.parameters):
            return (1,)
        degrees = [self.parameters[n] for n in self.reads["num_nodes"] if n in self.parameters]
        ranks = {1}
        for parameter in degrees:  # an inactive one counts as 1
            ranks = {have * int(value) for have in ranks for value in {*parameter.values, 1}}
        nodes = {count // int(self._derivation.static["gpus_per_node"]) for count in ranks}
        return tuple(sorted(nodes - {0})) or (1,)

    @cached_property
    def program(self) -> Trainer:
        return make_trainer(self.trainer)

    def train_config(self, config: Mapping[str, Any], data: str | None = None) -> dict[str, Any]:
        """The content of a trial's ``config.json``: for the built-in trainer, what
        ``TrainConfig.parse`` accepts, reading the tokens at ``data``.

        Raises ValueError if the built-in trainer gets no data.
        """
        return self.program.config_file(self._trial(config, Path(), data))

    def command(self, config: Mapping[str, Any], trial_dir: Path | str) -> tuple[str, ...]:
        """The argv of every rank of a trial in that folder."""
        return self.program.command(self._trial(config, Path(trial_dir)))

    def files(self, config: Mapping[str, Any], trial_dir: Path | str) -> Mapping[str, str]:
        """The text of further files in that folder, by name."""
        return self.program.files(self._trial(config, Path(trial_dir)))

    def environment(self, config: Mapping[str, Any], trial_dir: Path | str) -> dict[str, str]:
        """Environment variables of every rank of a trial in that folder."""
        return self.program.environment(self._trial(config, Path(trial_dir)))

    def _trial(
        self, config: Mapping[str, Any], directory: Path, data: str | None = None
    ) -> TrialFacts:
        return TrialFacts(
            config=self.canonical(config),
            facts=self.facts(config),
            directory=directory,
            warmup_steps=self.trial.warmup_steps,
            measured_steps=self.trial.measured_steps,
            model=self.model,
            data=data,
            device=self.cluster.device if self.cluster is not None else None,
        )

    @cached_property
    def uneven_lengths(self) -> str:
        """Why tokens have to be counted, as they do not follow from sequences; else ""."""
        varied = [n for n, p in self.parameters.items() if p.varies and n in LENGTHS]
        if varied and self.trainer.builtin is None:
            return f"{varied[0]} varies"
        return "sequences are as long as the data's rows" if self.program.log.rows_vary else ""

    def uncounted(self, known: Collection[str]) -> str:
        """Message, with the remedy, that none of the ``known`` metrics counts real tokens."""
        padded = sorted(key for key in known if key.startswith("padded_tokens_per_second"))
        counted = f" ({padded[0]} has padding in it)" if padded else ""
        real = [key for key in known if key.startswith(("labelled_tokens_per", "epochs_per"))]
        instead = min(real, default="samples_per_second with packing and lengths fixed")
        return (
            f"{self.uneven_lengths}, and nothing counts real tokens{counted}: print them as "
            'MESHTUNE_RESULT {"tokens_per_second": ...}, add a pattern for them under '
            f"trainer.result, or maximize {instead}"
        )

    @property
    def workdir(self) -> Path | None:
        """The folder in which every rank is started; None: the trial's own."""
        return None if self.trainer.workdir is None else Path(self.trainer.workdir)

    def priced(self, measured: bool = True) -> tuple[str, ...]:
        """Metrics (``cost``, ``co2``) that the cluster prices; ``measured``: energy is known."""
        return tuple(self.cluster.bill(0.0, 0.0 if measured else None)) if self.cluster else ()

    def unmeasured(self) -> str:
        """Why this machine's nodes cannot measure a goal of the built-in trainer; else "".

        A simulated trial gets its energy from the cluster's facts.
        """
        cluster = self.cluster
        goals = [*(o.key for o in self.objectives), *(bound.key for bound in self.subject_to)]
        counted = {*ENERGY_FIGURES, *(["cost"] if cluster and cluster.price_per_kwh else [])}
        sought = [key for key in goals if key in counted]
        if self.trainer.builtin is None or not sought:
            return ""
        device = self.trainer.builtin.device
        meter = Meter("" if device == "cpu" or (cluster and cluster.is_cpu) else "any")
        return f"{', '.join(sought)}: no counter of energy ({meter.why})" if meter.why else ""

    def unused(self) -> list[str]:
        """Parameters with several values on which the trainer's command does not depend."""
        reads = self.program.reads
        if reads is None:
            return []
        used = frozenset[str]().union(*(self.reads.get(name, frozenset()) for name in reads))
        used |= self.reads["world_size"]
        return [n for n, p in self.parameters.items() if p.varies and n not in used]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that defines the search.

        It omits prose, and settings that end the search: budget, finalists, early stops.
        """
        text = json.dumps(self._definition(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def changes(self, earlier: SearchSpace) -> list[str]:
        """Keys that define the search, with their values here and in an earlier space.

        Values that may be secret are left out. If no key tells (an empty mapping against none),
        names and fingerprints do.
        """
        lines = changed_keys(self._definition(), earlier._definition())
        if not lines:
            told, had = (f"{s.name} ({s.fingerprint[:12]})" for s in (self, earlier))
            return [f"fingerprint: found that of {told}, the run has that of {had}"]
        more = [f"and {len(lines) - MOST_CHANGES} more"] if len(lines) > MOST_CHANGES else []
        return [*lines[:MOST_CHANGES], *more]

    def frozen(self) -> str:
        """Self-contained YAML with the same fingerprint; it includes model and cluster."""
        return written_document(self.content())

    def content(self) -> dict[str, Any]:
        """The content of ``frozen`` as a mapping, which may be changed."""
        definition = self._definition()
        if self.model is not None and self.model_name:
            definition["model"] = {"name": self.model_name, **definition["model"]}
        if self.trainer.made_by is not None:
            definition["trainer"]["made_by"] = self.trainer.made_by
        return {
            "version": definition.pop("version"),
            "name": self.name,
            **({"description": self.description} if self.description else {}),
            **definition,
            "trial": {**definition["trial"], "early_stop": self.trial.early_stop},
            "budget": self.budget.model_dump(by_alias=True, exclude_none=True),
            "finalists": self.finalists.model_dump(),
        }

    def _definition(self) -> dict[str, Any]:
        trial = self.trial.model_dump(by_alias=True, exclude_none=True, exclude={"early_stop"})
        return {
            "version": 1,
            "model": self.model and self.model.model_dump(exclude_defaults=True),
            "cluster": self.cluster
            and self.cluster.model_dump(exclude_defaults=True, exclude={"source"}),
            "trainer": self.trainer.model_dump(
                exclude_none=True, exclude_defaults=True, exclude={"made_by"}
            ),
            "parameters": {n: p.as_file() for n, p in self.parameters.items()},
            "conditions": {name: e.text for name, e in self.conditions.items()},
            "constraints": [expression.text for expression in self.constraints],
            "objective": self.goals.get("objectives", self.goals["objective"]),
            "trial": trial,
            "failure_penalty": self.failure_penalty,
            "allow": list(self.allow),
            **({"subject_to": self.goals["subject_to"]} if self.subject_to else {}),
        }

    @cached_property
    def _derivation(self) -> Derivation:
        static = _facts.static_facts(self.model, self.cluster, self.ranks_per_node)
        known, axes = _facts.defaults(self.trainer), self.program.axes
        return Derivation(self.parameters, self.conditions, static, known, axes)


def _one_row(config: Mapping[str, Scalar]) -> dict[str, list[Scalar]]:
    return {name: [value] for name, value in config.items()}


def _plain(column: Array) -> Scalar:
    """A column of one row as a Python value; whole numbers as int."""
    value = np.asarray(column).reshape(-1)[0].item()
    return int(value) if isinstance(value, float) and value.is_integer() else value
