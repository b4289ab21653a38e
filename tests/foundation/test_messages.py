from __future__ import annotations

import pytest

from foundation.messages import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("step 1\tloss 2.5\nGrüße, 学習", "step 1\tloss 2.5\nGrüße, 学習"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("10 %\r20 %", r"10 %\r20 %"),
        ("\x9b31m\x00\x7f", r"\x9b31m\x00\x7f"),
        ("cod.exe\u202egpj", r"cod.exe\u202egpj"),
        ("\ud800", r"\ud800"),
    ],
    ids=["text", "ansi", "cursor", "c1", "bidi", "surrogate"],
)
def test_only_what_could_act_on_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
