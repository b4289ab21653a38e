"""A configuration as the options of a known trainer, whichever trainer it was found with."""

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

DEGREES = (*ordered(), "vpp")  # of which 1 is no news


@dataclass(frozen=True)
class Export:
    """Options, files and environment of a known trainer for one configuration."""

    arguments: tuple[tuple[str, ...], ...]  # options of its command line, each with its values
    files: Mapping[str, str]  # text of its configuration files by name
    environment: Mapping[str, str]  # of every rank
    unmapped: tuple[str, ...]  # parameters that it has no option for, and why; a line each

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
            arguments: of the user's own command line, which tell the trainer's version; default
                those of the space, if its trainer is the same.

        Raises SpaceError that begins with ``found``, if there is no such adapter.
        """
        record = AdapterFile.named(adapter)
        stated = StatedOptions.in_arguments(record, arguments)
        stated = stated or StatedOptions.of_command(record, space.trainer)
        own = space.canonical(config)
        inactive = space.parameters.keys() - own.keys()
        values = {name: v for name, v in space.facts(config).items() if name not in inactive}
        known = dict(_known_settings(record, values, stated))
        every = [setting for settings in known.values() for setting in settings]
        chosen = [s for s in every if s.when is None or templates.holds(s.when, values)]
        passed = {key: value for setting in chosen for key, value in setting.arguments.items()}
        paths = {key: value for setting in chosen for key, value in setting.file.items()}
        environment = {
            key: templates.filled(text, values)
            for setting in (*(s for s in record.always if s.applies(stated)), *chosen)
            for key, text in setting.environment.items()
        }
        unmapped: list[str] = []
        if space.model is not None:
            model = model_keys.written(record.model, space.model, {})
            if record.model_in == "arguments":
                passed = model | passed
            else:
                paths = model | paths
            unwritten = model_keys.unwritten(record.model, space.model)
            if unwritten and len(record.model) <= 1:  # but the length of its sequences
                unmapped.append(f"the model ({', '.join(unwritten)}): {adapter} has it elsewhere")
                unwritten = []
            unmapped += [
                f"model.{name}: {getattr(space.model, name)}: {adapter} has no such key"
                for name in unwritten
            ]
        filled = {key: config_files.filled(value, values) for key, value in passed.items()}
        argv = [options.written({key: value}, record.options) for key, value in filled.items()]
        argv.append([word for setting in chosen for word in setting.words])
        files = {}
        if record.file is not None and paths:
            file = ConfigFile(set=dict(paths))
            files = {record.file.name: config_files.rendered(record.file.name, file, values)}
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


def _unmapped(
    own: Mapping[str, Any], record: AdapterFile, told: Collection[str], values: Mapping[str, Any]
) -> list[str]:
    """Parameters that the trainer is not told, and its constraints that are broken."""
    lines = []
    for name, value in own.items():
        broken = [
            text
            for text in record.constraints.get(name, [])
            if templates.names("{" + text + "}") <= values.keys()
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
