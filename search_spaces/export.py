"""A configuration in the options of a known trainer, with whatever trainer it was found."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.language.adapter_schema import AdapterFile, Setting
from search_spaces.language.trainer_schema import ConfigFile
from search_spaces.space import SearchSpace
from search_spaces.trainers import config_files, model_keys, options, templates
from search_spaces.trainers.adapters import names_of
from search_spaces.trainers.stated import StatedOptions
from trainer.plan.axes.mesh import ordered
from trainer.plan.model import ModelConfig

DEGREES = (*ordered(), "vpp")  # a degree of 1 need not be reported


@dataclass(frozen=True)
class Export:
    """Options, files and environment of a known trainer for one configuration."""

    arguments: tuple[tuple[str, ...], ...]  # options of its command line, each with its values
    files: Mapping[str, str]  # text of its configuration files by name
    environment: Mapping[str, str]  # of every rank
    unmapped: tuple[str, ...]  # a line for each parameter without an option, with the reason
    whole: bool = False  # the arguments are a command that runs by itself

    @classmethod
    def of(
        cls,
        space: SearchSpace,
        config: Mapping[str, Any],
        adapter: str,
        arguments: Sequence[str] = (),
    ) -> Export:
        """A configuration of a space, and its model, in the options of a known trainer.

        Args:
            adapter: the trainer's name, or a file of an adapter.
            arguments: of the user's own command line, which show the trainer's version; default
                those of the space, if its trainer is the same.

        Raises SpaceError that begins with ``found``, if there is no such adapter.
        """
        record = AdapterFile.named(adapter)
        stated = StatedOptions.in_arguments(record, arguments)
        stated = stated or StatedOptions.of_command(record, space.trainer)
        own, facts = space.canonical(config), space.facts(config)
        values = {n: v for n, v in facts.items() if n in own or n not in space.parameters}
        known = dict(_known_settings(record, values, stated))
        every = [setting for settings in known.values() for setting in settings]
        chosen = [s for s in every if s.when is None or templates.holds(s.when, values)]
        model, unmapped = _model(record.in_version(stated), space.model)
        in_arguments = record.model_in == "arguments"
        passed, paths = (model, dict[str, Any]()) if in_arguments else ({}, model)
        for setting in chosen:
            passed |= setting.arguments
            paths |= setting.file
        environment = {
            key: templates.filled(text, values)
            for setting in (*(s for s in record.always if s.applies(stated)), *chosen)
            for key, text in setting.environment.items()
        }
        filled = {key: config_files.filled(value, values) for key, value in passed.items()}
        argv = [options.written({key: value}, record.options) for key, value in filled.items()]
        argv.append([word for setting in chosen for word in setting.words])
        files = {}
        if (file := record.file) is not None and paths:
            files[file.name] = config_files.rendered(file.name, ConfigFile(set=paths), values)
        told = {*known, *frozenset[str]().union(*(names_of(setting) for setting in every))}
        if "global_batch_size" in told:
            told |= {"mbs", "gas"}
        return cls(
            arguments=tuple(tuple(each) for each in argv if each),
            files=files,
            environment=environment,
            unmapped=(*unmapped, *_unmapped(own, record, told, values)),
        )


def _known_settings(
    record: AdapterFile, values: Mapping[str, Any], stated: Collection[str]
) -> Iterator[tuple[str, list[Setting]]]:
    """Settings that go with the ``stated`` options, if all names that they read have values."""
    for name, settings in record.settings.items():
        fitting = [setting for setting in settings if setting.applies(stated)]
        lacking = {each for setting in fitting for each in names_of(setting)} - values.keys()
        if fitting and name in values and not lacking:
            yield name, fitting


def _model(record: AdapterFile, model: ModelConfig | None) -> tuple[dict[str, Any], list[str]]:
    """The model in the trainer's keys, and lines on the fields without a key."""
    if model is None:
        return {}, []
    unwritten = model_keys.unwritten(record.model, model)
    lines = [f"model.{n}: {getattr(model, n)}: {record.name} has no such key" for n in unwritten]
    if unwritten and len(record.model) <= 1:  # it has at most a key for the sequence length
        lines = [f"the model ({', '.join(unwritten)}): {record.name} has it elsewhere"]
    return model_keys.written(record.model, model, {}), lines


def _unmapped(
    own: Mapping[str, Any], record: AdapterFile, told: Collection[str], values: Mapping[str, Any]
) -> list[str]:
    """Lines on parameters without an option, and on broken constraints of the trainer."""
    lines = []
    for name, value in own.items():
        broken = [
            text
            for text in record.constraints.get(name, [])
            if templates.condition_names(text) <= values.keys()
            and not templates.holds(text, values)
        ]
        given = sorted({key for each in record.settings.get(name, []) for key in each.given})
        if broken:
            lines.append(f"{name}: {value}: {record.name} demands {' and '.join(broken)}")
        elif name in told or name == "num_nodes" or (name in DEGREES and value == 1):
            continue
        elif given:
            lines.append(
                f"{name}: {value}: {record.name} is told where the command line has "
                f"{' or '.join(given)}: name your launch script with --args"
            )
        else:
            lines.append(f"{name}: {value}: {record.name} has no such setting")
    return lines
