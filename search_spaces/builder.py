"""Building a space from its file, with the checks that need several keys."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Mapping
from graphlib import CycleError

from foundation.documents import Document
from foundation.messages import nearest
from foundation.registry import RegistryError
from search_spaces import parameter_values, parameters
from search_spaces.cluster import Cluster
from search_spaces.language.model import ModelShape
from search_spaces.language.schema import BasedModel, ModelFile, SpaceFile
from search_spaces.objectives import bounds_of, check_sources, keys_found, objectives_of
from search_spaces.parameters import COARSEST, FINEST, Parameter
from search_spaces.rules import facts, placements, rule as rules, trainers
from search_spaces.space import SearchSpace
from search_spaces.trainers import section
from search_spaces.trainers.adapters import adapted
from search_spaces.trainers.command import TRIAL_PLACEHOLDERS
from search_spaces.trainers.trainer import Trainer, make_trainer
from trainer.plan.axes.mesh import ordered
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.plan.rules.expression import MAX_NUMBER, Expression, ValueType, parse
from trainer.plan.stages import LAYOUT


class Builder:
    """Checks one file across its keys, and builds the space."""

    def __init__(
        self,
        document: Document,
        file: SpaceFile,
        model: ModelFile | None,
        cluster: Cluster | None,
        frozen: bool,
    ) -> None:
        self.document, self.file, self.cluster, self.frozen = document, file, cluster, frozen
        self.model_name = model.name if model else ""
        self.assumed = _assumed(file.model, model)
        self.own_trainer = file.trainer.builtin is None
        ranks = file.trial.ranks_per_node or 1
        self.ranks = cluster.gpus_per_node if cluster else ranks
        names = {*facts.static_facts(None, cluster), *facts.DERIVED[:2], *TRIAL_PLACEHOLDERS}
        names |= facts.defaults(file.trainer).keys()
        file = self._tuned(file)
        self.written = file.parameters.keys()
        file, self.model = adapted(document, file, model.config() if model else None, names)
        file = parameter_values.with_batch(document, file)
        self.file = file = section.completed(document, file, there=not frozen)
        self.program = self._program()
        self.static = facts.static_facts(self.model, cluster, ranks)
        self.defaults = facts.defaults(file.trainer)

    def _tuned(self, file: SpaceFile) -> SpaceFile:
        """The file with the parameters of its section ``tuning`` among the others."""
        own = file.tuning.parameters() if file.tuning is not None else {}
        for name in own.keys() & file.parameters.keys():
            raise self.document.error(
                ("parameters", name), "found here and under tuning: remove one"
            )
        if own and not self.own_trainer:
            raise self.document.error(
                ("tuning",), "goes with a trainer of your own: the built-in one trains all weights"
            )
        return file.model_copy(update={"tuning": None, "parameters": {**file.parameters, **own}})

    def build(self, name: str) -> SearchSpace:
        document, file = self.document, self.file
        self._model_and_cluster()
        self._facts()
        self._axes()
        own = self._parameters()
        if LAYOUT in self.program.habits.stage_settings:
            layers = self.model.num_layers if self.model else None
            parameter_values.check_texts(document, own, self.written, layers)
        types = facts.types(own, self.static, self.defaults)
        conditions = self._conditions(own, types)
        constraints = tuple(
            section.parsed(document, text, ("constraints", index), types)
            for index, text in enumerate(file.constraints)
        )
        section.check_trainer(document, file.trainer, types)
        found = None  # any metric: those of a run are known from its trials
        if not self.frozen:
            nodes = own["num_nodes"].values if "num_nodes" in own else (1,)
            section.check_launcher(document, file.trainer, self.ranks, max(map(int, nodes)))
            found = keys_found(file.trainer, self.program.log.patterns, types, bool(self.model))
        self._timeouts()
        objectives = objectives_of(document, file, own, found)
        space = SearchSpace(
            file=document.name,
            name=name,
            description=file.description,
            model=self.model,
            model_name=self.model_name,
            cluster=self.cluster,
            trainer=file.trainer,
            parameters=own,
            conditions=conditions,
            constraints=constraints,
            rules=self._rules(own, types, conditions, constraints),
            objective=objectives[0],
            trial=file.trial,
            budget=file.budget,
            finalists=file.finalists,
            failure_penalty=file.failure_penalty,
            allow=tuple(sorted(set(file.allow))),
            more_objectives=objectives[1:],
            subject_to=bounds_of(document, file, types, found),
            assumed=self.assumed,
        )
        check_sources(document, space, found)
        return space

    def _model_and_cluster(self) -> None:
        """Check that the built-in trainer has both, one rank per GPU, and settings that fit."""
        if self.own_trainer:
            return
        for key, value in (("model", self.model), ("cluster", self.cluster)):
            if value is None:
                what = f"key '{key}' is missing: the built-in trainer needs it"
                raise self.document.error((), what)
        ranks, cluster = self.file.trial.ranks_per_node, self.cluster
        if cluster is not None and ranks is not None:
            raise self.document.error(
                ("trial", "ranks_per_node"),
                f"found {ranks}: the built-in trainer has a process for each of the "
                f"{cluster.gpus_per_node} GPUs of a node of {cluster.name}; remove it",
            )
        if isinstance(self.model, ModelShape):
            keys = ", ".join(self.model.beyond_trainer)
            raise self.document.wrong(
                ("model",),
                f"found a model with {keys}, which the built-in trainer does not train; name a "
                "command of your own under trainer",
            )
        builtin = self.file.trainer.builtin
        if builtin is None or self.model is None or self.frozen:
            return
        try:  # with the default of all that trials may vary
            settings = builtin.model_dump()
            TrainConfig.parse({**settings, "model": self.model.model_dump(exclude_none=True)})
        except ConfigError as error:
            what = str(error).removeprefix("config: ")
            raise self.document.wrong(("trainer", "builtin"), what) from error

    def _rules(
        self,
        own: Mapping[str, Parameter],
        types: Mapping[str, ValueType],
        conditions: Mapping[str, Expression],
        constraints: Iterable[Expression],
    ) -> tuple[rules.Rule, ...]:
        once = [rules.pinned(n, own[n].array[0], condition) for n, condition in conditions.items()]
        axes, trainer = self.program.axes, self.file.trainer.builtin
        off = self._allowed()
        builtin = rules.builtin(types, own_trainer=self.own_trainer, own_axes=axes, allow=off)
        if "dp" in own:
            ranks = f"{' * '.join(ordered(axes))} == world_size"
            builtin.append(
                rules.expressed("degrees_make_world", parse(ranks, types), required=True)
            )
        if self.own_trainer:
            framework = self.program.habits
            uneven = "uneven_layers" in self.file.allow
            builtin += trainers.of_stages(framework, own, types.keys(), uneven=uneven)
            builtin += trainers.of_experts(self.model, own, axes, types)
        if "tp_across_nodes" not in self.file.allow and {"tp", "gpus_on_links"} <= types.keys():
            within = parse("gpus_on_links % tp == 0", types)
            builtin.append(rules.expressed("tp_within_links", within))
        if trainer is not None:
            if "engine" in own:
                builtin += trainers.of_deepspeed(trainer, types)
            if "cp" in types and trainer.splits_samples:
                builtin.append(rules.expressed("documents_by_cp", parse("cp == 1", types)))
            derived = facts.Derivation(own, conditions, self.static, self.defaults, axes)
            builtin += placements.one_placement(own)
            builtin += placements.counted_once(own, conditions, derived.facts, axes)
        given = [
            rules.expressed(f"constraint_{number}", expression)
            for number, expression in enumerate(constraints, start=1)
        ]
        needed = [
            rules.expressed(
                f"trainer_{number}", section.parsed(self.document, text, ("trainer", "use"), types)
            )
            for number, text in enumerate(self.program.constraints, start=1)
        ]
        return (*once, *builtin, *given, *needed)

    def _allowed(self) -> set[str]:
        """Rules that the space switches off, or its trainer's own rules replace."""
        allowed = set[str](self.file.allow)
        if not self.own_trainer and "uneven_layers" in allowed:
            raise self.document.error(
                ("allow",),
                "found uneven_layers, accepted with a command; the built-in trainer is told by "
                "first_stage_layers and last_stage_layers",
            )
        if self.own_trainer:
            allowed.add("uneven_layers")  # trainers.of_stages has its framework's requirements
        cluster = self.cluster
        if cluster is not None and cluster.domain_gpus > cluster.gpus_per_node:
            allowed.add("tp_across_nodes")  # replaced by tp_within_links
        return allowed

    def _program(self) -> Trainer:
        try:
            return make_trainer(self.file.trainer)
        except RegistryError as error:
            raise self.document.wrong(("trainer", "use"), str(error)) from error
        except ValueError as error:  # the trainer's own
            raise self.document.error(("trainer", "options"), str(error)) from error

    def _facts(self) -> None:
        for name, value in self.static.items():
            if isinstance(value, (int, float)) and abs(value) > MAX_NUMBER:
                key = "cluster" if hasattr(self.cluster, name) else "model"
                raise self.document.wrong((key,), f"{name} is beyond 2^53")

    def _axes(self) -> None:
        """Refuse further parallel axes whose names cannot be axes."""
        axes = self.program.axes if self.own_trainer else ()
        own = self.file.parameters
        for index, name in enumerate(axes):
            if name in ordered() or name in facts.DERIVED:
                problem = f", accepted names other than {', '.join(ordered())}, which always count"
            elif name in parameters.BUILTIN_NAMES and name not in (*parameters.AXES, "ep"):
                problem = ", which is no axis; accepted degrees of parallelism"
            elif name in axes[:index]:
                problem = " twice, accepted once"
            elif name not in own:
                known = ", ".join(own)
                problem = f", accepted parameters of this space: {known}{nearest(name, own)}"
            else:
                continue
            raise self.document.error(("trainer", "axes", index), f"found {name}{problem}")

    def _parameters(self) -> dict[str, Parameter]:
        for points in (FINEST, COARSEST):
            found = {name: self._parameter(name, points) for name in self.file.parameters}
            if math.prod(len(p.values) for p in found.values()) <= SearchSpace.MAX_CONFIGS:
                return found
        raise self.document.error(
            ("parameters",),
            "found more than 2^62 combinations of values, accepted fewer: leave out values, or "
            "parameters",
        )

    def _parameter(self, name: str, points: int) -> Parameter:
        if problem := self._problem(name):
            raise self.document.error(("parameters", name), problem)
        spec = self.file.parameters[name]
        if spec is True and name not in self.written and not parameter_values.is_flag(name):
            raise self.document.error(
                ("trainer",), f"{name}: found its argument without a value; write one behind it"
            )
        return parameter_values.build(
            name,
            spec,
            self.document,
            own_trainer=self.own_trainer,
            is_axis=name == "dp" or name in self.program.axes,
            points=points,
        )

    def _problem(self, name: str) -> str:
        """Why a parameter cannot have this name; empty if it can."""
        builtin = self.file.trainer.builtin
        if name in facts.DERIVED and not (name == "dp" and self.own_trainer):
            return "is derived from the others, never searched; remove it"
        if name in self.static or name in TRIAL_PLACEHOLDERS:
            return "is a fact of the model, cluster or trial; rename it"
        usual = parameters.USUAL_NAMES.get(name, name)
        if self.own_trainer and usual != name and not self.frozen:  # an older run keeps its names
            return (
                f"is {usual} here: rename it, so that dp, batch and cost model know it; the "
                f"command can pass {{{usual}}} on by any name"
            )
        if keyword.iskeyword(name) or name in ("true", "false"):
            return "is a word of the constraint grammar; rename it"
        if not self.own_trainer and name not in parameters.BUILTIN_NAMES:
            names = sorted(parameters.BUILTIN_NAMES)
            accepted = f"accepted: {', '.join(names)}{nearest(name, names)}"
            return f"unknown parameter of the built-in trainer, {accepted}"
        if builtin is not None and name in builtin.model_fields_set:
            return "found here and under trainer.builtin, accepted once"
        return ""

    def _conditions(
        self, own: Mapping[str, Parameter], types: Mapping[str, ValueType]
    ) -> dict[str, Expression]:
        derived = {*facts.DERIVED, *placements.TYPES} - own.keys()
        if facts.derived_nodes(own):
            derived.add("num_nodes")
        usable = {name: value_type for name, value_type in types.items() if name not in derived}
        conditions = {}
        for name, text in self.file.conditions.items():
            if name not in own:
                raise self.document.error(
                    ("conditions", name),
                    f"not a parameter of this space, accepted: {', '.join(own)}"
                    f"{nearest(name, own)}",
                )
            conditions[name] = section.parsed(self.document, text, ("conditions", name), usable)
        try:
            facts.condition_order(conditions)
        except CycleError as error:
            circle = list(reversed(error.args[1]))
            raise self.document.error(
                ("conditions", circle[0]),
                f"conditions name each other in a circle: {' -> '.join(circle)}",
            ) from None
        return conditions

    def _timeouts(self) -> None:
        trial = self.file.trial
        quiet = trial.no_progress_timeout_s
        if quiet is not None and quiet > trial.timeout_s:
            raise self.document.wrong(
                ("trial", "no_progress_timeout"),
                f"found {quiet:g} s, accepted at most the timeout of {trial.timeout_s:g} s",
            )


def _assumed(given: ModelFile | BasedModel | str | None, model: ModelFile | None) -> str:
    """A note on the sequence length assumed because ``config.json`` states none; or empty."""
    base = given.base if isinstance(given, BasedModel) and given.seq_length is None else given
    if model is None or not isinstance(base, str) or not base.endswith(".json"):
        return ""
    return (
        f"sequences of {model.seq_length:,} tokens are assumed, of which {base} says nothing; "
        f"as model, {{base: {base}, seq_length: N}} sets them"
    )
