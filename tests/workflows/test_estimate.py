"""Node-hours of a search, before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import Pricing, Ranking
from search_spaces import load_space
from workflows.estimate import Estimate

SPACE = """\
version: 1
model: llama_8b
cluster: dgx_h100
trainer: {adapter: megatron-lm, entry: /opt/pretrain_gpt.py}
parameters: {num_nodes: [1, 2], tp: [1, 2, 4], pp: [1, 2], mbs: [1, 2], global_batch_size: 64}
objective: {maximize: tokens_per_second_per_gpu}
trial: {timeout: 30m, warmup_steps: 1, measured_steps: 4}
budget: {trials: 10}
finalists: {max_repeats: 2}
"""


def estimate(folder: Path, *edits: tuple[str, str]) -> Estimate:
    text = SPACE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / "space.yaml").write_text(text)
    return Estimate.of(load_space(folder / "space.yaml"))


def test_it_is_the_predicted_steps_and_the_start_of_the_best_ranked(tmp_path: Path) -> None:
    cost = estimate(tmp_path)
    space = load_space(tmp_path / "space.yaml")
    ranking = Ranking.of(Pricing(space), 10)
    each_h = [
        space.num_nodes(config) * (60 + 5 * step_s * fits) / 3600
        for config, step_s, fits in zip(
            ranking.configs, ranking.prediction.step_time_s, ranking.prediction.fits, strict=True
        )
    ]
    assert cost.expected_node_hours == pytest.approx(sum(each_h) + 2 * each_h[0])
    assert cost.most_node_hours == 12 * 2 * 0.5
    assert "10 trials and up to 2 repeats: about " in cost.text()
    assert " h on 4 nodes (the best-ranked, uncalibrated: 60 s to start, 5" in cost.text(4)


def test_a_budget_of_node_hours_is_the_most(tmp_path: Path) -> None:
    cost = estimate(tmp_path, ("trials: 10", "trials: 10, node_hours: 0.5"))
    assert cost.expected_node_hours is not None
    assert cost.expected_node_hours <= cost.most_node_hours == 0.5
    assert "at most 0.5 (by budget.node_hours)" in cost.text()


def test_without_a_number_of_trials_one_of_them_is_told(tmp_path: Path) -> None:
    cost = estimate(tmp_path, ("budget: {trials: 10}\n", ""))
    assert cost.most_node_hours == 1.0
    assert cost.text().startswith("each trial (budget.trials leaves their number open): about ")


def test_without_a_price_only_the_most_is_told(tmp_path: Path) -> None:
    cost = estimate(
        tmp_path, ("model: llama_8b\n", ""), ("adapter: megatron-lm, entry", "command: [python"),
        ("pretrain_gpt.py", "x.py]"), ("tokens_per_second_per_gpu", "samples_per_second"),
        ("[python:", "[python,"),
    )  # fmt: skip
    assert cost.expected_node_hours is None
    assert cost.text().endswith("; no price: the space has no model")
