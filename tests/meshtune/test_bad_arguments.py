"""What nobody can mean, in every function of ``meshtune``: one message, and nothing is made."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshtune
from analysis import NotPricedError, RunError
from foundation.arguments import ArgumentError
from foundation.registry import RegistryError
from search_spaces import SpaceError
from workflows.search.study import ClosedError

SPACE = "gpt_22b_frontier"
NO_SPACE = [None, 5, b"tiny_cpu", ["tiny_cpu"], math.nan]
NO_PATH = [5, "", "a\0b", "x" * 5000, b"run", True]
NO_COUNT = [0, -1, True, 2.5, "3", math.nan, math.inf, 10**5000, [1]]
NO_SEED = [-1, "x", 1.5, False, math.nan, 10**5000]
NO_TEXT = [5, None, b"random", ["random"]]
TABLE = pd.DataFrame({"tp": [1, 2, 4, 8] * 4, "pp": [1, 2] * 8, "speed": range(16)})


def refuses(call: Callable[[Any], Any], values: list[Any], name: str) -> list[Any]:
    return [pytest.param(call, value, name, id=f"{name}-{i}") for i, value in enumerate(values)]


def search(**more: Any) -> Any:
    return meshtune.search(**{"space": SPACE, "launcher": "simulate", "trials": 2, **more})


@pytest.mark.parametrize(
    ("call", "value", "name"),
    [
        *refuses(meshtune.load_space, NO_SPACE, "reference"),
        *refuses(lambda v: search(space=v), NO_SPACE, "space"),
        *refuses(lambda v: search(launcher=v), [5, b"local", []], "launcher"),
        *refuses(lambda v: search(trials=v), NO_COUNT, "trials"),
        *refuses(lambda v: search(run_dir=v), NO_PATH, "run_dir"),
        *refuses(lambda v: search(policy=v), NO_TEXT, "policy"),
        *refuses(lambda v: search(seed=v), NO_SEED, "seed"),
        *refuses(lambda v: search(simulate=v), NO_TEXT, "simulate"),
        *refuses(lambda v: search(listen=v), ["print", 5], "listen"),
        *refuses(meshtune.predict, NO_SPACE, "space"),
        *refuses(lambda v: meshtune.predict(SPACE, top=v), NO_COUNT, "top"),
        *refuses(meshtune.load, [*NO_PATH, None], "run"),
        *refuses(meshtune.report, [*NO_PATH, None], "run"),
        *refuses(meshtune.sensitivity, [None, "runs/x", [1], {}], "frame"),
        *refuses(lambda v: meshtune.sensitivity(TABLE, v), ["x", None, 5, ["tp"]], "objective"),
        *refuses(
            lambda v: meshtune.sensitivity(TABLE, "speed", v), ["tq", ["tp", "x"], 5], "parameters"
        ),
        *refuses(lambda v: meshtune.sensitivity(TABLE, "speed", seed=v), NO_SEED, "seed"),
        *refuses(meshtune.plot, [None, TABLE, 5], "what"),
        *refuses(lambda v: meshtune.plot("runs/x", width=v), [0, "3", True], "width"),
        *refuses(lambda v: meshtune.load_space(SPACE, cluster=v), [5, []], "cluster"),
        *refuses(meshtune.Study, NO_SPACE, "space"),
        *refuses(lambda v: meshtune.Study(SPACE, v), NO_PATH, "folder"),
        *refuses(lambda v: meshtune.Study(SPACE, "study", policy=v), NO_TEXT, "policy"),
        *refuses(lambda v: meshtune.Study(SPACE, "study", seed=v), NO_SEED, "seed"),
    ],
)
def test_a_value_that_cannot_be_is_named_and_nothing_is_made(
    call: Callable[[Any], Any],
    value: Any,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError) as refusal:
        call(value)
    message = str(refusal.value)
    assert message.startswith(f"{name}=") and ": accepted " in message
    assert "\n" not in message and len(message) < 400
    assert isinstance(refusal.value, (ValueError, TypeError))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: meshtune.load_space("nowhere"), SpaceError),
        (lambda: meshtune.load_space(Path("/")), SpaceError),
        (lambda: meshtune.load_space("/dev/zero"), SpaceError),
        (lambda: meshtune.load("nowhere"), RunError),
        (lambda: meshtune.report("/"), RunError),
        (lambda: meshtune.Study(SPACE, "study", policy="foo"), RegistryError),
        (lambda: search(policy="foo", run_dir="run"), RegistryError),
        (lambda: search(launcher="foo", run_dir="run"), RegistryError),
        (lambda: search(simulate="nodes=0", run_dir="run"), ValueError),
    ],
)
def test_what_is_not_there_is_said_in_one_line_and_nothing_is_made(
    call: Callable[[], Any], error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as refusal:
        call()
    assert len(str(refusal.value).splitlines()) <= 10
    assert not list(tmp_path.iterdir())


def test_a_space_without_a_model_is_named_with_what_a_prediction_needs(tmp_path: Path) -> None:
    space = tmp_path / "own.yaml"
    space.write_text(
        "version: 1\nname: own\ncluster: {name: none, gpus_per_node: 1, memory_gib: 1, "
        "peak_fp32_tflops: 0.1}\ntrainer: {command: [echo, '{tp}']}\nparameters: {tp: [1]}\n"
        "objective: {maximize: speed}\n"
    )
    with pytest.raises(NotPricedError, match=r"own\.yaml: .* no model; a prediction needs .*model"):
        meshtune.predict(space)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> meshtune.Study:
    return meshtune.Study(SPACE, tmp_path_factory.mktemp("study"), policy="random")


@pytest.mark.parametrize("width", [0, -1, True, 1.5, "2", None])
def test_a_width_that_cannot_be_is_refused(study: meshtune.Study, width: Any) -> None:
    asked = len(study.trials)
    with pytest.raises(ArgumentError, match="max_nodes="):
        study.ask(width)
    assert len(study.trials) == asked


CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "result",
    [
        None, 5, "ok", "broken", b"oom", ["oom"], {}, {"speed": 1.0},
        {"tflops_per_gpu": "fast"}, {"tflops_per_gpu": True}, {"tflops_per_gpu": None},
        {"tflops_per_gpu": [1.0]}, {"tflops_per_gpu": {}}, {"tflops_per_gpu": object()},
        {"tflops_per_gpu": 10**5000}, {"tflops_per_gpu": 40.0, "more": CIRCULAR},
        {"tflops_per_gpu": 40.0, "more": DEEP}, {"tflops_per_gpu": 40.0, "more": {1, 2}},
    ],
)  # fmt: skip
def test_a_result_that_is_none_leaves_the_trial_running(study: meshtune.Study, result: Any) -> None:
    trial = study.ask()
    assert trial is not None
    with pytest.raises(ValueError) as refusal:
        study.tell(trial, result)
    assert len(str(refusal.value)) < 1000 and "\n" not in str(refusal.value)
    assert trial.running is not None
    study.tell(trial, "oom")


@pytest.mark.parametrize("trial", [None, -1, 10**30, "1", 1.0, True, 9999])
def test_a_trial_that_does_not_run_cannot_be_told(study: meshtune.Study, trial: Any) -> None:
    with pytest.raises(ArgumentError, match="trial"):
        study.tell(trial, "oom")


def test_a_figure_beyond_what_can_be_has_diverged_and_breaks_nothing_after(tmp_path: Path) -> None:
    beyond = [1e308, -1e308, 1e-320, 10**400, np.float64("-inf")]
    with meshtune.Study("gpt_175b_frontier_table4", tmp_path / "study") as study:
        for speed in (40.0, *beyond, 0.0, 43.0, -1.0):
            trial = study.ask()
            assert trial is not None
            study.tell(trial, {"tflops_per_gpu": speed, "peak_memory_bytes": speed})
        for strange in study.trials[1 : 1 + len(beyond)]:
            assert (strange.kind, strange.objective) == ("diverged", None)
            assert strange.message.startswith("tflops_per_gpu is ")
        assert study.best is not None and study.best.objective == 43.0
    assert "diverged" in meshtune.report(study).read_text()


def test_a_closed_study_says_how_to_open_it_again(tmp_path: Path) -> None:
    study = meshtune.Study(SPACE, tmp_path / "study", policy="random")
    trial = study.ask()
    assert trial is not None
    study.close()
    study.close()
    for call in (study.ask, lambda: study.tell(trial, "oom")):
        with pytest.raises(ClosedError, match=r"closed: meshtune\.Study\(space, .*study'\) opens"):
            call()
    with meshtune.Study(SPACE, tmp_path / "study") as again:
        again.tell(trial.number, "oom")
