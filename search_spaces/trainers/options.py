"""Command-line options in the styles of known trainers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from foundation.documents import plain_scalar
from foundation.quantities import scalar_text
from search_spaces.language.trainer_schema import Flags


def written(options: Mapping[str, Any], style: str) -> list[str]:
    """Options as arguments; true is a flag, false none, and a list several values.

    ``style`` is ``--key value``, ``--key=value`` or ``key=value``, where nothing is a flag.
    """
    arguments: list[str] = []
    for key, value in options.items():
        values = [_text(each) for each in value] if isinstance(value, list) else [_text(value)]
        if style == "key=value":
            arguments.append(f"{key}={','.join(values)}")
        elif value is True:
            arguments.append(f"--{key}")
        elif value is not False and style == "--key=value":
            arguments.append(f"--{key}={','.join(values)}")
        elif value is not False:
            arguments += [f"--{key}", *values]
    return arguments


def read(arguments: Sequence[str | Flags], style: str) -> dict[str, Any]:
    """Options in arguments, the inverse of :func:`written`; conditional ones are None."""
    options: dict[str, Any] = {}
    key = ""
    for entry in arguments:
        if isinstance(entry, Flags):
            options |= dict.fromkeys(read(entry.args, style))
            key = ""
            continue
        name, sign, value = entry.partition("=")
        if style == "key=value":
            if sign:
                options[name.lstrip("+~")] = _unquoted(value)
        elif entry.startswith("--"):
            key = name[2:]
            options[key] = plain_scalar(value) if sign else True
            key = "" if sign else key
        elif key:
            earlier, this = options[key], plain_scalar(entry)
            several = earlier if isinstance(earlier, list) else [earlier]
            options[key] = this if earlier is True else [*several, this]
    return options


def first(arguments: Sequence[str | Flags], style: str) -> int:
    """Index of the first option; the number of arguments if none is an option."""
    for index, entry in enumerate(arguments):
        if isinstance(entry, Flags) or ("=" in entry if style == "key=value" else entry[:1] == "-"):
            return index
    return len(arguments)


def without(
    arguments: Sequence[str | Flags], names: Collection[str], style: str
) -> list[str | Flags]:
    kept: list[str | Flags] = []
    left_out = False
    for entry in arguments:
        if isinstance(entry, Flags):
            args = [text for text in without(entry.args, names, style) if isinstance(text, str)]
            kept += [Flags(when=entry.when, args=args)] if args else []
            left_out = False
            continue
        name, sign, _ = entry.partition("=")
        if style == "key=value":
            left_out = bool(sign) and name.lstrip("+~") in names
        elif entry.startswith("--"):
            left_out = name[2:] in names
        if not left_out:
            kept.append(entry)
    return kept


def _unquoted(value: str) -> Any:
    """A value as Hydra reads it: quoted values are text."""
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else plain_scalar(value)


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # some parsers take whole numbers only
    return scalar_text(value)
