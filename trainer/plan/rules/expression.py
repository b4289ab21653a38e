"""The constraint grammar: arithmetic, comparisons and logic over named columns.

``+ - * / // %``, ``== != < <= > >=`` (chains too), ``and or not``, ``in [..]``, ``.. if .. else
..``, parentheses, numbers, quoted text, ``true``, ``false`` and names; no calls, attributes,
subscripts or powers. Python's parser reads it, a whitelist walks it, numpy evaluates it.

Types are checked first, so evaluation cannot fail. Numbers are float64: exact for integers up to
2^53, and without int64's silent overflow.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np

from foundation.messages import nearest

ValueType = Literal["number", "boolean", "text"]
Array = Any  # numpy array or scalar of float64, bool or str; shapes broadcast

Scalar = bool | int | float | str

MAX_LENGTH = 500
MAX_DEPTH = 40
MAX_NUMBER = 2**53

_OPERATORS: dict[type[ast.AST], tuple[ValueType, Callable[..., Array]]] = {
    ast.Add: ("number", operator.add),
    ast.Sub: ("number", operator.sub),
    ast.Mult: ("number", operator.mul),
    ast.Div: ("number", np.divide),
    ast.FloorDiv: ("number", np.floor_divide),
    ast.Mod: ("number", np.mod),
    ast.USub: ("number", operator.neg),
    ast.UAdd: ("number", operator.pos),
    ast.Not: ("boolean", np.logical_not),
}
"""Type of the operands and of the result, and its computation."""
_COMPARISONS: dict[type[ast.cmpop], Callable[[Array, Array], Array]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_ARTICLE = {"number": "a number", "boolean": "true or false", "text": "text"}
_GRAMMAR = (
    "+ - * / // %, comparisons, and, or, not, in [..], .. if .. else .., parentheses, numbers, "
    "text, names"
)


class ExpressionError(ValueError):
    """A mistake in an expression, and its column (from 0)."""

    def __init__(self, text: str, column: int, what: str) -> None:
        super().__init__(what)
        self.text, self.column, self.what = text, max(0, min(column, len(text))), what

    def __str__(self) -> str:
        """The mistake, with a caret under the place."""
        start = max(0, self.column - 60)
        part, before = self.text[start : start + 90], " " * (self.column - start)
        return f"{self.what}\n    {part}\n    {before}^"


def constant(value: Scalar) -> Array:
    """A single value, as columns are."""
    if isinstance(value, (bool, str)):
        return np.asarray(value)
    return np.float64(value)


@dataclass(frozen=True)
class Value:
    """A computed column; ``bad`` marks rows that divide by zero."""

    value: Array
    bad: Array = False


_Evaluate = Callable[[Mapping[str, Array]], Value]


def _any(*bad: Array) -> Array:
    """Rows that are bad in any of these; False if nothing divides."""
    found = [rows for rows in bad if rows is not False]
    return reduce(np.logical_or, found) if found else False


def _both(left: Value, right: Value) -> Value:
    """``and``; as in Python, the right side counts only if the left is true."""
    bad = right.bad is not False and np.logical_and(left.value, right.bad)
    return Value(np.logical_and(left.value, right.value), _any(left.bad, bad))


def _either(left: Value, right: Value) -> Value:
    """``or``, likewise."""
    bad = right.bad is not False and np.logical_and(np.logical_not(left.value), right.bad)
    return Value(np.logical_or(left.value, right.value), _any(left.bad, bad))


def _of(compute: Callable[..., Array], *parts: _Evaluate) -> _Evaluate:
    """A function of all its parts, bad where one of them is."""

    def evaluate(columns: Mapping[str, Array]) -> Value:
        values = [part(columns) for part in parts]
        return Value(compute(*[value.value for value in values]), _any(*[v.bad for v in values]))

    return evaluate


def _divisor(part: _Evaluate) -> _Evaluate:
    """The same, bad where it is 0."""

    def evaluate(columns: Mapping[str, Array]) -> Value:
        found = part(columns)
        return Value(found.value, np.logical_or(found.bad, np.equal(found.value, 0)))

    return evaluate


def _is_among(value: Array, *members: Array) -> Array:
    return reduce(np.logical_or, (np.equal(value, member) for member in members))


@dataclass(frozen=True)
class Expression:
    """A checked expression, true or false unless it was parsed as one of any type."""

    text: str
    names: frozenset[str]
    _evaluate: _Evaluate

    def holds(self, columns: Mapping[str, Array]) -> np.ndarray:
        """Truth by row; false where it divides by zero. The shape is the columns' broadcast."""
        with np.errstate(all="ignore"):
            result = self._evaluate(columns)
            return np.asarray(np.logical_and(result.value, np.logical_not(result.bad)))

    def value(self, row: Mapping[str, Scalar]) -> Scalar:
        """The value for one row, an int if whole; raises ZeroDivisionError."""
        with np.errstate(all="ignore"):
            result = self._evaluate({name: constant(row[name]) for name in self.names})
        if np.any(result.bad):
            raise ZeroDivisionError(f"{self.text}: divides by zero")
        value: Scalar = np.asarray(result.value).item()
        return int(value) if isinstance(value, float) and value.is_integer() else value


def parse(text: str, types: Mapping[str, ValueType], *, any_type: bool = False) -> Expression:
    """Compile an expression of typed names, boolean or of ``any_type``; raises ExpressionError."""
    text = " ".join(text.split())
    if not text:
        raise ExpressionError(text, 0, "found an empty expression, accepted a comparison")
    if not text.isprintable():
        raise ExpressionError(ascii(text), 0, "found control characters, accepted plain text")
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            text, MAX_LENGTH, f"found {len(text)} characters, accepted at most {MAX_LENGTH}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text, mode="eval")
        compiler = _Compiler(text, types)
        found, evaluate = compiler.compile(tree.body, 0)
    except SyntaxError as error:
        raise ExpressionError(text, (error.offset or 1) - 1, _syntax(text, error)) from None
    except (RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, ExpressionError):
            raise
        raise ExpressionError(text, 0, "found an expression too deep to read") from None
    if found != "boolean" and not any_type:
        raise ExpressionError(
            text, 0, f"found {_ARTICLE[found]}, accepted an expression that is true or false"
        )
    return Expression(text, frozenset(compiler.names), evaluate)


def _syntax(text: str, error: SyntaxError) -> str:
    hint = ""
    if "=" in text and not any(sign in text for sign in ("==", "<=", ">=", "!=")):
        hint = "; equality is written '=='"
    elif "&&" in text or "||" in text or "!" in text.replace("!=", ""):
        hint = "; logic is written 'and', 'or', 'not'"
    return f"not an expression ({error.msg}), accepted {_GRAMMAR}{hint}"


class _Compiler:
    """Turns a syntax tree into closures over columns, checking each step's type."""

    def __init__(self, text: str, types: Mapping[str, ValueType]) -> None:
        self.text, self.types = text, types
        self.names: set[str] = set()

    def compile(self, node: ast.expr, depth: int) -> tuple[ValueType, _Evaluate]:
        if depth > MAX_DEPTH:
            raise self._error(node, f"nested deeper than {MAX_DEPTH} levels")
        match node:
            case ast.Constant():
                return self._constant(node)
            case ast.Name():
                return self._name(node)
            case ast.BoolOp():
                return self._logic(node, depth)
            case ast.UnaryOp():
                return self._operation(node.op, [node.operand], node, depth)
            case ast.BinOp():
                return self._operation(node.op, [node.left, node.right], node, depth)
            case ast.Compare():
                return self._comparison(node, depth)
            case ast.IfExp():
                return self._choice(node, depth)
            case ast.List() | ast.Tuple():
                raise self._error(node, "found a list, accepted only after 'in'")
        raise self._error(node, f"found {_called(node)}, accepted {_GRAMMAR}")

    def _constant(self, node: ast.Constant) -> tuple[ValueType, _Evaluate]:
        match node.value:
            case bool(value):
                return "boolean", lambda _: Value(value)
            case str(value):
                return "text", lambda _: Value(value)
            case int(number) | float(number) if abs(number) <= MAX_NUMBER:
                return "number", lambda _: Value(np.float64(number))
            case int() | float():
                raise self._error(node, f"found a number beyond {MAX_NUMBER}")
        raise self._error(node, f"found {type(node.value).__name__}, accepted {_GRAMMAR}")

    def _name(self, node: ast.Name) -> tuple[ValueType, _Evaluate]:
        name = node.id
        if name not in self.types:
            if name in ("true", "false"):
                return "boolean", lambda _: Value(name == "true")
            raise self._error(node, f"unknown name '{name}'{nearest(name, self.types)}")
        self.names.add(name)
        return self.types[name], lambda columns: Value(columns[name])

    def _logic(self, node: ast.BoolOp, depth: int) -> tuple[ValueType, _Evaluate]:
        parts = [self._typed(part, "boolean", depth) for part in node.values]
        join = _either if isinstance(node.op, ast.Or) else _both
        return "boolean", lambda columns: reduce(join, (part(columns) for part in parts))

    def _choice(self, node: ast.IfExp, depth: int) -> tuple[ValueType, _Evaluate]:
        """``if`` and ``else``: as in Python, the branch that is not chosen does not count."""
        condition = self._typed(node.test, "boolean", depth)
        found, first = self.compile(node.body, depth + 1)
        second = self._typed(node.orelse, found, depth)

        def evaluate(columns: Mapping[str, Array]) -> Value:
            which, a, b = condition(columns), first(columns), second(columns)
            bad = np.logical_or(which.bad, np.where(which.value, a.bad, b.bad))
            return Value(np.where(which.value, a.value, b.value), bad)

        return found, evaluate

    def _operation(
        self, sign: ast.AST, operands: list[ast.expr], node: ast.expr, depth: int
    ) -> tuple[ValueType, _Evaluate]:
        if type(sign) not in _OPERATORS:
            raise self._error(node, f"found {_called(sign)}, accepted {_GRAMMAR}")
        found, compute = _OPERATORS[type(sign)]
        parts = [self._typed(operand, found, depth) for operand in operands]
        if isinstance(sign, (ast.Div, ast.FloorDiv, ast.Mod)):
            parts[1] = _divisor(parts[1])
        return found, _of(compute, *parts)

    def _comparison(self, node: ast.Compare, depth: int) -> tuple[ValueType, _Evaluate]:
        sides = [node.left, *node.comparators]
        pairs = [
            self._pair(sign, left, right, depth)
            for sign, left, right in zip(node.ops, sides, sides[1:], strict=False)
        ]
        return "boolean", lambda columns: reduce(_both, (pair(columns) for pair in pairs))

    def _pair(self, sign: ast.cmpop, left: ast.expr, right: ast.expr, depth: int) -> _Evaluate:
        found, first = self.compile(left, depth + 1)
        if isinstance(sign, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.List, ast.Tuple)) or not right.elts:
                raise self._error(right, "accepted after 'in': a list such as [1, 2, 4]")
            members = [self._typed(item, found, depth) for item in right.elts]
            inside = _of(_is_among, first, *members)
            return inside if isinstance(sign, ast.In) else _of(np.logical_not, inside)
        compare = _COMPARISONS.get(type(sign))
        if compare is None:
            raise self._error(left, f"found {_called(sign)}, accepted {_GRAMMAR}")
        if found != "number" and not isinstance(sign, (ast.Eq, ast.NotEq)):
            raise self._error(left, f"found {_ARTICLE[found]}, accepted numbers around < and >")
        return _of(compare, first, self._typed(right, found, depth))

    def _typed(self, node: ast.expr, expected: ValueType, depth: int) -> _Evaluate:
        found, evaluate = self.compile(node, depth + 1)
        if found != expected:
            raise self._error(node, f"found {_ARTICLE[found]}, accepted {_ARTICLE[expected]} here")
        return evaluate

    def _error(self, node: ast.expr, what: str) -> ExpressionError:
        # ast counts bytes of UTF-8; the caret needs characters.
        column = len(self.text.encode()[: node.col_offset].decode(errors="ignore"))
        return ExpressionError(self.text, column, what)


_CALLED = {
    ast.Call: "a function call",
    ast.Attribute: "an attribute ('.')",
    ast.Subscript: "a subscript ('[..]')",
    ast.Pow: "a power ('**')",
    ast.Lambda: "a lambda",
    ast.Is: "'is'",
    ast.IsNot: "'is not'",
    ast.BitAnd: "'&'",
    ast.BitOr: "'|'",
    ast.Invert: "'~'",
}


def _called(node: ast.AST) -> str:
    """A reader's name for syntax outside the grammar."""
    return _CALLED.get(type(node), type(node).__name__)
