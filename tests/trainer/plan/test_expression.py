"""The constraint grammar computes what Python would, over columns, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trainer.plan.rules.expression import ExpressionError, ValueType, parse

TYPES: dict[str, ValueType] = {
    "a": "number",
    "b": "number",
    "c": "number",
    "on": "boolean",
    "w": "text",
}

_numbers = st.recursive(
    st.sampled_from(["a", "b", "c", "0", "1", "2", "3", "7", "2.5"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda x: f"(-{x})"),
    ),
    max_leaves=5,
)
_signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
_tests = st.one_of(
    st.tuples(_numbers, _signs, _numbers).map(" ".join),
    st.tuples(_numbers, _signs, _numbers, _signs, _numbers).map(" ".join),
    st.tuples(_numbers, st.sampled_from(["in", "not in"]), st.just("[1, 2, 4]")).map(" ".join),
    st.sampled_from(["on", "w == 'x'", "w in ['x', 'y']", "True", "on == False"]),
)
_logic = st.recursive(
    _tests,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda t: f"({t[0]}) {t[1]} ({t[2]})"
        ),
        inner.map(lambda x: f"not ({x})"),
        st.tuples(_numbers, inner, _numbers).map(lambda t: f"({t[0]} if {t[1]} else {t[2]}) < 4"),
    ),
    max_leaves=4,
)
_row = st.fixed_dictionaries(
    {
        "a": st.integers(0, 9),
        "b": st.integers(0, 9),
        "c": st.integers(0, 9),
        "on": st.booleans(),
        "w": st.sampled_from(["x", "y", "z"]),
    }
)


def by_python(text: str, row: dict[str, Any]) -> bool:
    """The oracle: Python itself, with division by zero counted as false."""
    try:
        return bool(eval(text, {"__builtins__": {}}, row))
    except ZeroDivisionError:
        return False


def columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    types = {"number": float, "boolean": bool, "text": str}
    return {n: np.array([r[n] for r in rows], dtype=types[k]) for n, k in TYPES.items()}


@given(_logic, st.lists(_row, min_size=1, max_size=8))
def test_every_expression_agrees_with_python_row_by_row(
    text: str, rows: list[dict[str, Any]]
) -> None:
    got = np.broadcast_to(parse(text, TYPES).holds(columns(rows)), (len(rows),))
    assert got.tolist() == [by_python(text, row) for row in rows]


@given(st.text(max_size=80))
def test_any_text_is_an_expression_or_an_expression_error(text: str) -> None:
    try:
        parse(text, TYPES)
    except ExpressionError as error:
        assert str(error)


_WORDS = "and or not in if else lambda True None is await yield print"
_SIGNS = [
    *"ab()[]{}.,:*+-/%<>=!&|^~@'\"\\ 0129\n",
    *(f" {word} " for word in _WORDS.split()),
    *("f'", "**", "1e999", "0x", "...", ":="),
]


@given(st.lists(st.sampled_from(_SIGNS), max_size=25).map("".join))
def test_any_arrangement_of_signs_is_an_expression_or_an_expression_error(text: str) -> None:
    try:
        parse(text, TYPES)
    except ExpressionError as error:
        assert str(error)


def holds(text: str, **values: Any) -> bool:
    types: dict[str, ValueType] = {
        name: "boolean" if isinstance(v, bool) else "text" if isinstance(v, str) else "number"
        for name, v in values.items()
    }
    arrays = {
        n: np.float64(v) if types[n] == "number" else np.asarray(v) for n, v in values.items()
    }
    return bool(parse(text, types).holds(arrays))


def test_division_by_zero_is_violated_whatever_is_done_with_it() -> None:
    for text in ("tp / zero > 1", "tp / zero < 1", "tp % zero == 0", "tp // zero != 3"):
        assert not holds(text, tp=4, zero=0)
        assert not holds(f"not ({text})", tp=4, zero=0)
    assert not holds("1 in [1, tp / zero]", tp=4, zero=0)


def test_a_guard_before_the_division_protects_it() -> None:
    assert holds("zero == 0 or tp % zero == 0", tp=4, zero=0)
    assert holds("not (tp == 1 == tp / zero)", tp=4, zero=0)
    assert not holds("zero != 0 and tp % zero == 0", tp=4, zero=0)
    assert not holds("tp % zero == 0 or zero == 0", tp=4, zero=0)


def test_products_beyond_64_bits_do_not_wrap_around() -> None:
    assert holds("n * n * n > n", n=2**53)
    assert holds("n * n * n * n * n * n > 0", n=2**53)


def test_true_and_false_are_written_as_in_yaml_or_python() -> None:
    assert holds("on == true and not false", on=True)
    assert holds("on == True", on=True)


def test_a_parameter_may_be_called_like_no_constant() -> None:
    assert parse("a > 1", {"a": "number"}).names == {"a"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a.real > 1", "an attribute"),
        ("len(w) > 1", "a function call"),
        ("w[0] == 'x'", "a subscript"),
        ("a ** 2 > 1", "a power"),
        ("(lambda: on)", "a lambda"),
        ("(1 if on else w) == 1", "found text, accepted a number"),
        ("a is b", "'is'"),
        ("a & b > 1", "'&'"),
        ("~a > 1", "'~'"),
        ("[a, b] == [1, 2]", "a list, accepted only after 'in'"),
        ("a in b", "accepted after 'in': a list"),
        ("a in []", "accepted after 'in': a list"),
        ("{a} == 1", "Set"),
        ("f'{a}' == w", "JoinedStr"),
        ("a == 1j", "complex"),
        ("a == None", "NoneType"),
        ("a and b", "found a number, accepted true or false"),
        ("on + 1 > 2", "found true or false, accepted a number"),
        ("w < 'x'", "accepted numbers around < and >"),
        ("w == 1", "found a number, accepted text"),
        ("a", "accepted an expression that is true or false"),
        ("aa > 1", "unknown name 'aa'; did you mean 'a'?"),
        ("a; b", "not an expression"),
        ("a := 1", "not an expression"),
        ("import os", "not an expression"),
    ],
)
def test_what_the_grammar_lacks_is_named(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, TYPES)
    assert said in str(caught.value)


def test_the_caret_stands_under_the_mistake_after_wide_characters() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse("w == 'größe' and aaa > 1", TYPES)
    _, text, caret = str(caught.value).splitlines()
    assert text[caret.index("^") :].startswith("aaa")


def test_long_expressions_are_shown_around_the_mistake() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse("a > 1 or " * 30 + "zzz > 1", TYPES)
    _, text, caret = str(caught.value).splitlines()
    assert len(text) <= 100 and text[caret.index("^") :].startswith("zzz")
