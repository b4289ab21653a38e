"""``meshtune check`` and ``predict``: what they print, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.prediction.pricing import Pricing
from analysis.prediction.ranking import Ranking
from search_spaces import load_space
from search_spaces.points.candidates import Candidates
from search_spaces.shipped import SHIPPED
from workflows.cli.main import main


def test_check_says_how_many_configurations_are_expected_to_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    space = load_space("gpt_175b_frontier_table4")
    configs = Candidates(space).draw(10**6, np.random.default_rng(0), [], 10**6)
    likely = np.count_nonzero(Pricing(space).predict(configs).fits >= 0.5)
    assert 0 < likely < len(configs)
    assert main(["check", "gpt_175b_frontier_table4"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"{likely:,} of {len(configs):,} valid configurations are predicted to fit in "
        "64 GiB (cost model, uncalibrated)"
    )


def test_check_says_why_it_predicts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(
        "version: 1\ncluster: {name: c, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 1}\n"
        "trainer: {command: [train, '{mbs}']}\nparameters: {mbs: [1, 2]}\n"
        "objective: {maximize: speed}\n"
    )
    assert main(["check", str(space)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "memory is not predicted: the space has no model"


def test_the_command_prints_a_table_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "strong.pdf"
    command = ["predict", "llama_8b_dgx_h100", "--scaling", "strong", "--nodes", "1,2,4"]
    assert main([*command, "--tokens", "15e12", "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "strong scaling of" in out and "days for 15 trillion tokens" in out
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--nodes", "1,2"], "--nodes goes with --scaling"),
        (["--picture", "x.svg"], "--picture goes with --scaling"),
        (["--scaling", "weak", "--picture", "no/such/x.svg"], "a folder that exists"),
        (["--scaling", "weak", "--picture", "x.png"], "accepted a file *.svg or *.pdf"),
        (["--scaling", "weak", "--nodes", "100000"], "nodes_in_cluster"),
    ],
)
def test_options_that_do_not_fit_are_one_clear_error(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "gpt_175b_frontier", *options]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "many", "1,x"])
def test_nodes_are_positive_whole_numbers(value: str) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "tiny_cpu", "--scaling", "weak", "--nodes", value])


def _own(tmp_path: Path, **changes: Any) -> Path:
    content: dict[str, Any] = {
        "version": 1,
        "model": "llama_8b",
        "cluster": "dgx_h100",
        "trainer": {"command": ["train", "{tp}"], "framework": "nanotron"},
        "parameters": {"tp": [1, 2], "mbs": [1, 2], "gas": 8, "num_nodes": 1, "zero_stage": 1},
        "objective": {"maximize": "speed"},
        **changes,
    }
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_an_own_trainer_is_priced_with_its_frameworks_habits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(_own(tmp_path)), "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "of 4 configurations are expected to fit" in shown
    assert "memory:" in shown and "forward backward" in shown
    assert Pricing(load_space(str(_own(tmp_path)))).model.framework.name == "nanotron"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": None}, "no model"),
        ({"parameters": {"tp": [1, 2]}}, "mbs"),
        ({"trainer": {"command": ["x"], "framework": ""}}, "framework"),
        (
            {
                "cluster": {
                    "name": "bare",
                    "gpus_per_node": 8,
                    "memory_gib": 80,
                    "peak_bf16_tflops": 989,
                },
                "parameters": {"tp": 2, "mbs": 1, "gas": 8, "num_nodes": 1, "zero_stage": 1},
            },
            "meshtune preflight",
        ),
    ],
)
def test_what_cannot_be_priced_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], complaint: str
) -> None:
    assert main(["predict", str(_own(tmp_path, **changes))]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("timeout_s", [70, 50])  # some of them, and all
def test_time_limits_that_end_many_trials_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], timeout_s: int
) -> None:
    text = (SHIPPED / "llama_8b_dgx_h100.yaml").read_text()
    path = tmp_path / "short.yaml"
    path.write_text(
        text.replace("timeout: 15m", f"timeout: {timeout_s}s").replace("  no_progress", "#")
    )
    assert main(["check", str(path)]) == 0
    warning = capsys.readouterr().out.splitlines()[-1]
    assert main(["predict", str(path), "--top", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == warning
    space = load_space(path)
    pricing, candidates = Pricing(space), Candidates(space)
    indices = candidates.indices(10**6, np.random.default_rng(0), [], 10**6)
    prediction = pricing.model.predict(pricing.jobs(candidates.columns(indices)))
    fits = prediction.fits >= 0.5
    over = 100 * np.mean(60 + 7 * prediction.step_time_s[fits] > timeout_s)
    assert warning.startswith(
        f"warning: {over:.3g} % of those that fit need longer than trial.timeout"
    )


def test_where_nothing_fits_the_least_that_is_needed_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (SHIPPED / "llama_8b_dgx_h100.yaml").read_text()
    path = tmp_path / "large.yaml"
    path.write_text(text.replace("model: llama_8b", "model: gpt_1t"))
    assert main(["check", str(path)]) == 0
    warning = capsys.readouterr().out.splitlines()[-1]
    ranking = Ranking.of(Pricing(load_space(path)), top=10)
    memory_bytes = ranking.prediction.memory.total
    assert ranking.num_likely == 0 and list(memory_bytes) == sorted(memory_bytes)
    assert (
        f"none is expected to fit: the least that one needs is {memory_bytes[0] / 2**30:,.4g} GiB"
        in warning
    )
    assert ranking.warnings == (warning,)
    search = ["search", str(path), "--launcher", "simulate", "--trials", "1", "--no-report"]
    assert main([*search, "--run-dir", str(tmp_path / "run")]) == 1
    assert warning in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", ["predict", "search"])
def test_a_space_without_valid_configurations_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "none.yaml"
    text = (SHIPPED / "llama_8b_dgx_h100.yaml").read_text()
    path.write_text(text.replace("constraints:\n", "constraints:\n  - tp > 8\n"))
    assert main([command, str(path)]) == 2
    said = capsys.readouterr()
    assert "no configuration is valid" in said.err and "tp > 8" in said.err
    assert said.out == "" and not (tmp_path / "runs").exists()
