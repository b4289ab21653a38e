"""Spaces as the cost model sees them, and ``meshtune predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.cost.memory_fit import state_bytes
from analysis.prediction.pricing import NotPricedError, Pricing
from analysis.prediction.ranking import rank
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import load_space, shipped_spaces
from search_spaces.frameworks import MESHTUNE
from search_spaces.load import SHIPPED
from search_spaces.points.candidates import Candidates
from trainer.config import TrainConfig
from workflows.cli.main import main


def test_a_space_is_priced_as_its_own_trials_would_be_placed() -> None:
    space = load_space("gpt_20b_zero_topo_frontier")
    pricing, candidates = Pricing(space), Candidates(space)
    indices = candidates.indices(40, np.random.default_rng(0), [], 10**6)
    configs = candidates.configs(indices)
    prediction = pricing.predict(configs)
    for row, config in enumerate(configs):
        train = TrainConfig.parse(space.train_config(config, "none"))
        placement = train.place(space.world_size(config), space.cluster.gpus_per_node)
        job = prediction.jobs[row : row + 1]
        own = state_bytes(np.array([1e6]), job, MESHTUNE)
        expected = placement.bytes_per_rank(1_000_000)
        assert sum(expected.values()) == pytest.approx(float(sum(own.values())[0]), rel=0.02)


def test_the_recipe_found_by_hand_is_near_the_top_of_frontiers_space() -> None:
    """Dash et al. 2023, section V-A: few tensor-parallel ranks, many stages, many micro-batches."""
    ranking = rank(Pricing(load_space("gpt_175b_frontier")), top=20)
    for config in ranking.configs:
        assert config["tp"] in (4, 8)
        assert 8 <= config["pp"] <= 16
        assert config["mbs"] <= 2
        assert config["gas"] >= 80
    assert 0.05 < ranking.num_likely / ranking.num_priced < 0.3


def test_a_run_of_trials_moves_predictions_towards_its_times() -> None:
    space = load_space("llama_8b_dgx_h100")
    pricing, candidates = Pricing(space), Candidates(space)
    configs = candidates.draw(12, np.random.default_rng(1), [], 4)
    before = pricing.predict(configs)
    run = Run(Path("nowhere"))
    for number, config in enumerate(configs[:8]):
        slower = 1.4 * float(before.step_time_s[number])
        result = {"step_time_s": {"median": slower}}
        run.trials[number] = Trial(number, config, 0.0, kind="ok", objective=1.0, result=result)
    pricing.learn(run)
    after = pricing.predict(configs)
    ratio = after.step_time_s[8:] / before.step_time_s[8:]
    assert np.all(np.abs(ratio / 1.4 - 1) < 0.15)


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
        ({"trainer": {"command": ["x"], "framework": "megatron"}}, "framework"),
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


def test_a_space_without_a_model_has_no_prices(tmp_path: Path) -> None:
    with pytest.raises(NotPricedError, match="model"):
        Pricing(load_space(str(_own(tmp_path, model=None))))


@pytest.mark.parametrize("name", shipped_spaces())
def test_no_shipped_space_has_trials_that_its_time_limits_end(name: str) -> None:
    assert rank(Pricing(load_space(name)), top=1).warnings == ()


def test_time_limits_that_end_many_trials_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (SHIPPED / "llama_8b_dgx_h100.yaml").read_text()
    path = tmp_path / "short.yaml"
    path.write_text(text.replace("timeout: 15m", "timeout: 70s").replace("  no_progress", "#"))
    assert main(["check", str(path)]) == 0
    warning = capsys.readouterr().out.splitlines()[-1]
    assert main(["predict", str(path), "--top", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == warning
    space = load_space(path)
    pricing, candidates = Pricing(space), Candidates(space)
    indices = candidates.indices(10**6, np.random.default_rng(0), [], 10**6)
    prediction = pricing.predict_columns(candidates.columns(indices), len(indices))
    fits = prediction.fits >= 0.5
    over = 100 * np.mean(60 + 7 * prediction.step_time_s[fits] > 70)
    assert warning.startswith(
        f"warning: {over:.2g} % of those that fit need longer than trial.timeout"
    )


def test_what_would_not_end_in_time_ranks_below_what_would(tmp_path: Path) -> None:
    text = (SHIPPED / "llama_8b_dgx_h100.yaml").read_text()
    path = tmp_path / "short.yaml"
    path.write_text(text.replace("timeout: 15m", "timeout: 90s").replace("  no_progress", "#"))
    free, short = (rank(Pricing(load_space(name)), top=5) for name in ("llama_8b_dgx_h100", path))
    needed_s = 60 + 7 * free.pricing.predict(free.configs).step_time_s
    assert needed_s.max() > 90  # the best ones have the largest batches
    needed_s = 60 + 7 * short.pricing.predict(short.configs).step_time_s
    assert needed_s.max() < 90


def test_where_nothing_fits_the_least_that_is_needed_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (SHIPPED / "llama_8b_dgx_h100.yaml").read_text()
    path = tmp_path / "large.yaml"
    path.write_text(text.replace("model: llama_8b", "model: gpt_1t"))
    assert main(["check", str(path)]) == 0
    warning = capsys.readouterr().out.splitlines()[-1]
    ranking = rank(Pricing(load_space(path)), top=10)
    memory_bytes = ranking.prediction.memory.total
    assert ranking.num_likely == 0 and list(memory_bytes) == sorted(memory_bytes)
    assert (
        f"none is expected to fit: the least that one needs is {memory_bytes[0] / 2**30:,.4g} GiB"
        in warning
    )
    assert ranking.warnings == (warning,)
    search = ["search", str(path), "--launcher", "simulate", "--trials", "1"]
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
