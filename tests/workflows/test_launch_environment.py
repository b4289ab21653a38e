"""What a launch script sets around its trainer: variables, modules, options of srun."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces import load_space
from workflows.cli.main import main

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
module purge
module load cuda/12.4 nccl
source /opt/venv/bin/activate
export NCCL_DEBUG=WARN CUDA_DEVICE_MAX_CONNECTIONS=1
export MASTER_ADDR=$(hostname) MASTER_PORT=29500
export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH
TORCH_NCCL_AVOID_RECORD_STREAMS=1
export TORCH_NCCL_AVOID_RECORD_STREAMS
LOCAL=unused
PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True" \\
srun -N 2 --ntasks-per-node=8 --cpu-bind=none --mpi pmix \\
  python /opt/megatron/pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 2048 --vocab-size 51200 --bf16 \\
  --micro-batch-size 1 --global-batch-size 64
"""


def test_what_a_launch_script_sets_is_carried_or_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("launch.sh").write_text(SCRIPT)
    asked = ["--adapter", "megatron-lm", "--cluster", "dgx_h100", "--args", "launch.sh"]
    assert main(["init", "mine.yaml", *asked]) == 0
    env = load_space("mine.yaml").trainer.env
    assert env == {
        "NCCL_DEBUG": "WARN",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    said = capsys.readouterr().out
    assert "export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH" in said
    assert "source /opt/venv/bin/activate" in said
    assert "modules: [cuda/12.4, nccl]; srun_options: [--cpu-bind=none, --mpi=pmix]" in said
    assert "MASTER" not in said and "LOCAL=" not in said
