"""TRL's trials on a real Slurm share launches: what takes longest, its imports, is done once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.run.fold import read_run
from slurm.minicluster.cluster import Minicluster
from support import tiny_model
from support.small_search import QUICK

pytestmark = [pytest.mark.slurm, pytest.mark.heavy, pytest.mark.timeout(3600)]
QUIET = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OMP_NUM_THREADS": "1"}
SPACE = """\
version: 1
model: {{base: model/config.json, seq_length: 256}}
cluster: {{name: box, gpus_per_node: 1, memory_gib: 4, peak_fp32_tflops: 0.1}}
trainer:
  adapter: trl
  args: --model_name_or_path {here}/model --dataset_name {here}/data --max_length 256
    --use_cpu true --dtype float32
  preload: [trl.trainer.sft_trainer]
  env: {env}
tuning: {{method: lora, rank: 8, packing: [true]}}
parameters: {{mbs: [1, 4], gas: 2, precision: [fp32]}}
objective: {{maximize: tokens_per_second}}
trial: {{warmup_steps: 1, measured_steps: 3, timeout: 400s, no_progress_timeout: 300s}}
budget: {{trials: 2}}
finalists: false
"""


@pytest.mark.parametrize("quiet", [True, False])
def test_trl_is_imported_once_where_pyarrow_starts_no_thread(
    minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path, quiet: bool
) -> None:
    python = os.environ.get("TRL_PYTHON")
    if not python:
        pytest.skip("needs TRL_PYTHON, the python of an environment with TRL")
    subprocess.run([python, tiny_model.__file__, str(tmp_path), "trl"], check=True)
    space, out = tmp_path / "tune.yaml", tmp_path / "run"
    space.write_text(SPACE.format(here=tmp_path, env=json.dumps(QUIET if quiet else {})))
    job = allocate(1)
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    env = {**os.environ, "SLURM_JOB_ID": job, "HF_HUB_OFFLINE": "1", "PATH": path}
    argv = [sys.executable, "-m", "workflows.cli.main", "search", str(space), "--run-dir", str(out)]
    try:
        subprocess.run([*argv, *QUICK], env=env, check=True)
    finally:
        minicluster.run("scancel", job)
    trials = read_run(out).trials.values()
    assert [trial.kind for trial in trials] == ["ok", "ok"]
    for trial in trials:
        said = (out / f"trials/{trial.number:04}/stderr.log").read_text()
        assert ("meshtune: starts afresh, as imports have started" in said) != quiet
