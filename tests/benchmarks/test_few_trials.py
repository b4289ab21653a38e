"""Cost models after few trials of a new model, on a sweep that the tests write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.search import few_trials
from benchmarks.search.few_trials import main


def test_trials_are_judged_with_both_priors_as_measured_and_disturbed(
    truth: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_trials, "DRAWS", 2)
    folder = truth((16, 1), (32, 1))
    assert main(["--truth", str(folder), "--without", ""]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[2].strip() for row in rows] == ["as measured", "the first slow"]
    assert [row[3].strip() for row in rows] == ["4", "4"]
    bounded, wider = (float(text) for text in rows[1][4].split(";")[0].split(","))
    assert bounded <= wider  # a disturbed trial does less harm with the prior of the search
    assert main(["--truth", str(folder)]) == 0  # leaves sweeps out
    assert len(capsys.readouterr().out.splitlines()) == 2
