"""What is slow says what it does."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress

import pytest

from support.waiting import wait_for
from workflows.cli.working import Working


def test_what_takes_long_says_what_it_does_and_what_is_quick_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Working("counting", lines=True) as tell:
        tell("adding")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("workflows.cli.working.SILENT_S", 0.01)
    said = ""

    def heard(words: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return said == words

    with Working("counting", lines=True) as tell:
        wait_for(lambda: heard("counting ...\n"), "the first part is told")
        tell("adding")
        assert heard("counting ...\nadding ...\n")
    tell("nothing more")
    assert heard("counting ...\nadding ...\n")


def test_the_first_words_do_not_wait_for_what_draws_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "12")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rich.console", None)
        with pytest.raises(ImportError), Working("reading a space", at_once=True):
            pass
    assert capsys.readouterr().err.startswith("reading a s\r")
    with Working("reading", at_once=True):
        pass
    assert capsys.readouterr().err.startswith(f"reading ...\r{' ' * 11}\r")


def test_brackets_in_a_name_are_shown_and_are_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Working("reading [/a]", at_once=True) as tell:
        tell("reading [bold]")
    assert "reading [/a]" in capsys.readouterr().err


def test_an_interrupt_that_a_library_swallows_is_not_lost() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever others have left
    reached = False
    with pytest.raises(KeyboardInterrupt), Working("reading"):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
