"""Adapters: a known trainer's name becomes its command, its file and its environment.

``trainer: {adapter: megatron-lm, entry: pretrain_gpt.py}`` becomes the command that a user would
have written out, so that checks, trials and the frozen space deal with commands alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from foundation.documents import Document, as_written
from foundation.messages import nearest
from search_spaces.frameworks import StatedHabits
from search_spaces.known import LOG_FORMATS, record
from search_spaces.language.adapter_schema import AdapterFile, Setting, WrittenFile
from search_spaces.language.log_schema import TOKEN_FACTS, ResultPatterns
from search_spaces.language.schema import SpaceFile
from search_spaces.language.trainer_schema import ConfigFile, FileCase, Flags
from search_spaces.parameter_values import BATCH, listed, with_gas
from search_spaces.rules.facts import DERIVED
from search_spaces.shipped import known_trainers, named
from search_spaces.trainers import config_files, model_keys, options, templates
from search_spaces.trainers.command import CommandTrainer
from search_spaces.trainers.stated import StatedOptions
from trainer.plan.annotations import Open, numbered, of_field
from trainer.plan.fields import Choices, OtherChoices
from trainer.plan.layouts import chunks_per_rank
from trainer.plan.model import ModelConfig
from trainer.plan.stages import LAYOUT

_FIELDS = {**Choices.model_fields, **OtherChoices.model_fields}
_WORDS = {n: numbered(field.annotation) for n, field in _FIELDS.items() if of_field(field, Open)}


def adapted(
    document: Document, file: SpaceFile, model: ModelConfig | None, facts: Collection[str]
) -> tuple[SpaceFile, ModelConfig | None]:
    """The space file with its adapter's trainer as a command, and the model that is trained.

    A parameter that the user's arguments or file fix becomes one of a single value, so that rules
    and cost model know it; options that the search sets replace the user's.

    Where the space names no model, the trainer's arguments or file describe it. ``facts`` are names
    that templates can use besides parameters and fields of the model.

    Raises SpaceError if the trainer needs something that the space lacks, or two models are stated.
    """
    if file.trainer.adapter is None:
        return file, model
    adapter = named(AdapterFile, ("trainer", "adapter"), file.trainer.adapter, document)
    if adapter.habits is not None and file.trainer.adapter not in known_trainers("command"):
        raise document.wrong(
            ("trainer", "adapter"),
            f"found habits in {as_written(file.trainer.adapter)}, accepted in a record of your "
            "own: framework, the name of the known one whose habits it has",
        )
    return _Adapting(document, file, adapter).result(model, facts)


class _Adapting:
    """One space with one adapter."""

    def __init__(self, document: Document, file: SpaceFile, adapter: AdapterFile) -> None:
        self.document, self.file, self.spec = document, file, file.trainer
        self.stated = StatedOptions(document, self.spec, adapter)
        self.adapter = adapter = self.stated.adapter
        own, fixed = file.parameters, self.stated.parameters()
        self.parameters: dict[str, Any] = {**own, **fixed, **own}  # the space's come first, and win
        if chunks := self._chunks():
            self.parameters.setdefault("vpp", chunks)
        for name in adapter.settings.keys() & own.keys():
            self._check_words(name, adapter.settings[name])

    def result(
        self, model: ModelConfig | None, facts: Collection[str]
    ) -> tuple[SpaceFile, ModelConfig | None]:
        model = self.stated.model(model)
        batch = self._batch(model)
        known = {*facts, *self.parameters, *model_keys.names(model)}
        if {"mbs", "gas"} <= known:
            known.add("global_batch_size")
        heeded = {
            name: text
            for name, condition in self.adapter.conditions.items()
            if name in self.parameters and (text := self._expressed(condition, known)) is not None
        }
        conditions = {**heeded, **self.file.conditions}
        chosen = list(self._chosen(known, conditions))
        files = self._files(chosen, model)
        name = str(self.spec.adapter)
        if name not in known_trainers("command"):
            name = str((Path(self.document.name).parent / name).absolute())
        command = {
            "adapter": None,
            "made_by": name,
            "entry": None,
            "args": [],
            "config": None,
            "command": self._command(chosen, model, files),
            "files": files,
            "env": {**{k: v for s in chosen for k, v in s.environment.items()}, **self.spec.env},
            "result": self._log(),
            "framework": self._habits(),
        }
        demands = [
            text
            for name, constraints in self.adapter.constraints.items()
            if name in self.parameters
            for constraint in constraints
            if (text := self._expressed(constraint, known)) is not None
        ]
        changes = {
            "trainer": self.spec.model_copy(update=command),
            "conditions": conditions,
            "parameters": self.parameters,
            "constraints": [*self.file.constraints, *batch, *demands],
        }
        return self.file.model_copy(update=changes), model

    def _check_words(self, name: str, settings: Sequence[Setting]) -> None:
        """Refuse a value for which the known trainer has no option: trials would run without it."""
        words = _WORDS.get(name) if self.spec.adapter in known_trainers("command") else None
        read = CommandTrainer(self.spec.model_copy(update={"command": self.spec.args})).reads
        passed = re.compile(rf"\{{[^{{}}]*\b{name}\b(?!\s*[!=]=)")  # not only compared
        texts = [text for each in settings for text in _texts(each)]
        if words is None or read is None or name in read or any(map(passed.search, texts)):
            return
        told = [*(each.when or "" for each in settings), *self.file.conditions.values()]
        meant = re.findall(rf"\b{name}\s*==\s*['\"]([^'\"]+)['\"]", " ".join(told))
        accepted = sorted({*words, *meant})
        for value in listed(self.file.parameters[name]):
            if isinstance(value, str) and value not in accepted:
                raise self.document.wrong(
                    ("parameters", name),
                    f"found {as_written(value)}, accepted by {self.adapter.name} "
                    f"{', '.join(accepted)}{nearest(value, accepted)}",
                )

    def _habits(self) -> str | StatedHabits:
        """The framework, with the habits that the user's space and options state."""
        own, usual = self.spec.framework, self._framework()
        of_files = {**self.stated.further, **self.stated.paths}
        said = {**self.spec.env, **of_files, **self.stated.options}
        of_framework = record(usual).stated_habits(said, absent=False)
        found = {**of_framework, **self.adapter.stated_habits(said, absent=True)}
        if any("expandable_segments:True" in value for value in self.spec.env.values()):
            found["expandable_segments"] = True
        if isinstance(own, StatedHabits):
            found, own = {**found, **own.stated}, own.base
        base = own or usual
        return StatedHabits(base=base, **found) if found else base

    def _framework(self) -> str:
        """The framework whose habits the trainer has under the options that the user states."""
        on = {name for name, value in self.spec.env.items() if value.lower() in ("1", "true")}
        framework: str = self.adapter.framework
        for key, other in self.adapter.frameworks.items():
            framework = other if key in self.stated.keys | on else framework
        return framework

    def _batch(self, model: ModelConfig | None) -> list[str]:
        """The constraint on the global batch, where the space, or else an option, states it."""
        own, length = self.parameters, model.seq_length if model is not None else None
        if "mbs" in own and BATCH not in own and (size := self.stated.batch(length)):
            own[BATCH] = size
        self.parameters, constraints = with_gas(self.document, self.parameters, {})
        return constraints

    def _chunks(self) -> list[int]:
        """Chunks per rank in the space's pipeline layouts, from which ``vpp`` follows."""
        if LAYOUT not in self.parameters or not {LAYOUT, "vpp"} <= self.adapter.settings.keys():
            return []
        return chunks_per_rank(*(listed(self.parameters.get(name)) for name in (LAYOUT, "pp")))

    def _expressed(self, expression: str, known: Collection[str]) -> str | None:
        """An expression in names of the space, ``absent`` ones replaced; None if one is unknown."""
        for name, value in self.adapter.absent.items():
            if name not in known:
                expression = re.sub(rf"\b{name}\b", value, expression)
        return expression if templates.condition_names(expression) <= set(known) else None

    def _chosen(self, known: Collection[str], conditions: Mapping[str, str]) -> Iterator[Setting]:
        """The settings of every trial, and of each parameter or fact of the space."""
        stated = self.stated.keys
        for setting in (each for each in self.adapter.always if each.applies(stated)):
            self._check("each trial", setting, known)
            yield setting
        for name, settings in self.adapter.settings.items():
            if name in self.parameters or (name in DERIVED and name in known):
                for setting in (each for each in settings if each.applies(stated)):
                    self._check(name, setting, known)
                    yield _where(conditions.get(name), setting)

    def _check(self, name: str, setting: Setting, known: Collection[str]) -> None:
        for lacking in sorted(names_of(setting) - set(known)):
            missing = "model" if lacking in ModelConfig.model_fields else f"parameter {lacking}"
            raise self.document.error(
                ("parameters", name) if name in self.file.parameters else ("trainer", "adapter"),
                f"{self.adapter.name} is told {name} by {lacking}: add the space's {missing}",
            )

    def _command(
        self, chosen: list[Setting], model: ModelConfig | None, files: Collection[str]
    ) -> list[str | Flags]:
        style = self.adapter.options
        replaced = {o for setting in chosen for o in (*setting.arguments, *setting.same)}
        if self.adapter.file is not None and self.adapter.file.name in files:
            replaced |= {text[2:] for text in self.adapter.file.arguments if text[:2] == "--"}
        model_options: dict[str, Any] = {}
        if model is not None and self.adapter.model_in == "arguments":
            model_options = model_keys.written(self.adapter.model, model, self.stated.of_model)
        told = {*replaced, *self.adapter.dropped, *model_options}
        own = options.without(self.spec.args, told, style)
        command: list[str | Flags] = [*self._program()]
        if self.adapter.file is not None and self.adapter.file.name in files:
            first = options.first(own, style)  # the user's subcommand comes before the file
            command += [*own[:first], *self._of_file(self.adapter.file), *own[first:]]
        else:
            command += own
        kept = {name: v for name, v in model_options.items() if name not in replaced}
        command += options.written(kept, style)
        for setting in sorted(chosen, key=lambda setting: bool(setting.words)):
            arguments = [*options.written(setting.arguments, style), *setting.words]
            if arguments and setting.when is not None:
                command.append(Flags(when=setting.when, args=arguments))
            else:
                command += arguments
        return command

    def _of_file(self, file: WrittenFile) -> list[str]:
        """Arguments that name the written file, from the folder in which ranks start."""
        if self.spec.workdir is None:
            return file.arguments
        return [text.replace(file.name, f"{{trial_dir}}/{file.name}") for text in file.arguments]

    def _program(self) -> list[str]:
        entry = self.stated.entry
        if not entry and any("{entry}" in text for text in self.adapter.command):
            raise self.document.error(
                ("trainer",), f"key 'entry' is missing: the script that {self.adapter.name} starts"
            )
        beside = Path(self.document.name).parent / entry
        if entry and beside.is_file():
            entry = str(beside.absolute())
        program = [text.replace("{entry}", entry) for text in self.adapter.command]
        if self.adapter.is_module(entry):
            program.insert(1, "-m")
        return program

    def _files(self, chosen: list[Setting], model: ModelConfig | None) -> dict[str, ConfigFile]:
        if self.adapter.file is None:
            return self.spec.files
        entries: dict[str, Any] = {}
        if model is not None and self.adapter.model_in == "file":
            entries |= model_keys.written(self.adapter.model, model, self.stated.of_model)
        cases = []
        for setting in chosen:
            if setting.file and setting.when is not None:
                cases.append(FileCase(when=setting.when, set=setting.file))
            else:
                entries |= setting.file
        if self.spec.config is None and not (entries or cases):
            return self.spec.files
        base = config_files.without(self.stated.file, self.adapter.dropped)
        own = ConfigFile(content=base, set=entries, cases=cases)
        return {**self.spec.files, self.adapter.file.name: own}

    def _log(self) -> ResultPatterns | None:
        """The space's own patterns beside those of the adapter's log."""
        own, log = self.spec.result, self.adapter.log
        if log is None or (own is not None and own.format):
            return own
        if not isinstance(log, str) and self.spec.adapter in known_trainers("command"):
            log = self.adapter.name
        with self.document.errors_at(("trainer", "adapter")):
            usual = (
                ResultPatterns(format=log) if isinstance(log, str) else log.resolved(LOG_FORMATS)
            )
        if own is None:
            return usual
        both = {key: getattr(own, key) or getattr(usual, key) for key in TOKEN_FACTS}
        both["patterns"] = {**usual.patterns, **own.patterns}
        both["pauses"] = usual.pauses if own.pauses is None else own.pauses
        return usual.model_copy(update=both)


def _where(condition: str | None, setting: Setting) -> Setting:
    """A setting that applies only where its parameter is active."""
    if condition is None or setting.environment:
        return setting
    when = condition if setting.when is None else f"({condition}) and ({setting.when})"
    return setting.model_copy(update={"when": when})


def names_of(setting: Setting) -> frozenset[str]:
    return templates.names(*_texts(setting)) | templates.condition_names(setting.when or "")


def _texts(setting: Setting) -> list[str]:
    """Texts that are passed on, with their placeholders."""
    told = [*config_files.texts(setting.arguments), *config_files.texts(setting.file)]
    return [*told, *setting.environment.values()]
