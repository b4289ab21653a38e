"""A search over the grid, its replicas and where they keep their states; real ranks train it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.run.fold import read_run
from analysis.run.trial import Trial
from trainer.data.prepare import prepare_data, python_source_files

RANKS = 4
SPACE = """\
version: 1
name: grid
model: {{name: small, num_layers: 1, hidden_size: 32, num_heads: 4, vocab_size: 264, seq_length: 8}}
cluster:
  {{name: four, gpus_per_node: 4, memory_gib: 1, peak_fp32_tflops: 0.1,
   links: [{{level: node, gpus: 4, gb_per_s: 1}}]}}
trainer: {{builtin: {{data: {data}, precision: fp32, device: cpu}}}}
parameters:
  gx: {{log2: [1, 4]}}
  gy: {{log2: [1, 4]}}
  gz: {{log2: [1, 4]}}
  placement: [zero0, zero1]
  mbs: {{log2: [1, 8]}}
constraints: [global_batch_size == 8]
objective: {{maximize: tokens_per_second}}
trial: {{warmup_steps: 1, measured_steps: 2}}
budget: {{trials: {trials}}}
finalists: false
"""


def searched(folder: Path, trials: int) -> list[Trial]:
    """All trials of a search, by the local launcher."""
    prepare_data(python_source_files(20_000), folder / "text")
    space = folder / "space.yaml"
    space.write_text(SPACE.format(data=folder / "text", trials=trials))
    command = ["search", str(space), "--launcher", "local", "--run-dir", str(folder / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "meshtune", *command, "--seed", "0", "--no-report"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [*read_run(folder / "run").trials.values()]


def trains_the_same(trials: list[Trial]) -> None:
    """Each configuration on all ranks, from the same weights, on the same tokens."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (trial.config, trial.result or {}) for trial in trials
    ]
    assert [result.get("status") for _, result in found] == ["ok"] * len(trials)
    losses = [result["loss"] for _, result in found]
    assert all(one == pytest.approx(losses[0], rel=1e-5) for one in losses)
    for config, result in found:
        ranks = config["gx"] * config["gy"] * config["gz"] * result["dp"]
        assert (ranks, result["world_size"]) == (RANKS, RANKS)
        sent = result["communication_bytes"]
        assert ("weights" in sent) == (config["gz"] > 1)  # what the third axis gathers
        published = config["placement"] == "zero1" and result["dp"] > 1
        assert ("publish" in sent) == published


def test_a_search_over_the_grid_trains_each_configuration_on_all_ranks(tmp_path: Path) -> None:
    trials = searched(tmp_path, 2)
    assert len({str(trial.config) for trial in trials}) == 2
    trains_the_same(trials)


@pytest.mark.heavy
def test_a_search_over_every_grid_and_placement_reaches_each_axis(tmp_path: Path) -> None:
    trials = searched(tmp_path, 12)
    trains_the_same(trials)
    for axis in ("gx", "gy", "gz"):
        assert len({trial.config[axis] for trial in trials}) > 1
    assert {trial.config["placement"] for trial in trials} == {"zero0", "zero1"}
