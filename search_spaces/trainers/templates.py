"""Text in which ``{tp}`` and ``{dp // cp}`` stand for a trial's values.

Text between braces is an expression of the constraint grammar if it parses as one that has a name;
JSON such as ``{"stage": 1}`` stays as it is. ``{{tp}}`` becomes ``{tp}``, and an
argument ``{*names}``, if no text is around it, one for each of the names that commas separate.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from foundation.quantities import scalar_text
from foundation.values import Scalar
from search_spaces.parameters import value_type_of
from trainer.plan.rules.expression import ValueType, constant, parse

_BRACES = re.compile(r"\{\{([^{}]*)\}\}|\{\*?([^{}]*)\}")


def expressions(text: str) -> Iterator[str]:
    """Every expression in a template's braces."""
    for found in _BRACES.finditer(text):
        if found[1] is None and _is_expression(found[2]):
            yield found[2]


def names(*texts: str) -> frozenset[str]:
    """Names that the expressions in templates read."""
    every = (each for text in texts for each in expressions(text))
    trees = (ast.walk(ast.parse(each.strip(), mode="eval")) for each in every)
    read = {node.id for nodes in trees for node in nodes if isinstance(node, ast.Name)}
    return frozenset(read - {"true", "false"})


def condition_names(condition: str) -> frozenset[str]:
    """Names that a condition, an expression without braces, reads."""
    return names(f"{{{condition}}}")


def filled(text: str, values: Mapping[str, Scalar]) -> str:
    """A template filled with values; booleans become true and false.

    Raises:
        ExpressionError: for an expression of unknown names or wrong types.
        ZeroDivisionError: if one divides by zero.
    """

    def fill(found: re.Match[str]) -> str:
        if found[1] is not None:
            return f"{{{found[1]}}}" if _is_expression(found[1].removeprefix("*")) else found[0]
        if not _is_expression(found[2]):
            return found[0]
        return scalar_text(_computed(found[2], values))

    return _BRACES.sub(fill, text)


def value(text: str, values: Mapping[str, Scalar]) -> Scalar | list[str]:
    """A filled template; a single expression gives its value in its own type, {*names} a list."""
    found = _BRACES.fullmatch(text)
    if found and found[1] is None and _is_expression(found[2]):
        one = _computed(found[2], values)
        return str(one).split(",") if text.startswith("{*") else one
    return filled(text, values)


def holds(condition: str, values: Mapping[str, Scalar]) -> bool:
    """Whether an expression is true of these values; false where it divides by zero."""
    columns = {name: constant(value) for name, value in values.items()}
    return bool(parse(condition, _types(values)).holds(columns))


def arguments(templates: Sequence[str], values: Mapping[str, Scalar]) -> list[str]:
    """Arguments of a command from templates; an argument that becomes empty is left out."""
    each = ((t, value(t, values), filled(t, values)) for t in templates)
    several = ((t, one if isinstance(one, list) else [text]) for t, one, text in each)
    return [text for template, texts in several for text in texts if text or not template]


def _is_expression(text: str) -> bool:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Name) for node in ast.walk(tree))


def _computed(text: str, values: Mapping[str, Scalar]) -> Scalar:
    name = text.strip()
    if name in values:
        return values[name]
    return parse(name, _types(values), any_type=True).value(values)


def _types(values: Mapping[str, Scalar]) -> dict[str, ValueType]:
    return {name: value_type_of(value) for name, value in values.items()}
