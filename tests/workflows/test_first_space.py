"""``meshtune init``: a space that loads, from as little as a user has."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces import check, load_space
from workflows.cli.main import main

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=8
DATA=/data/x
DISTRIBUTED_ARGS=(
    --nproc_per_node 8
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096   # wide
    --num-attention-heads 32
    --seq-length 2048
    --max-position-embeddings 2048
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} \\
    --global-batch-size 96 --micro-batch-size 2 \\
    --bf16 --data-path $DATA --vocab-size 51200 --split 949,50,1 2>&1 | tee log
"""
COMMON = ["--adapter", "megatron-lm", "--cluster", "dgx_h100"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_launch_script_is_enough(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "launch.sh").write_text(SCRIPT)
    assert main(["init", "mine.yaml", *COMMON, "--nodes", "2", "--args", "launch.sh"]) == 0
    shown = capsys.readouterr().out
    assert "left out, as no shell reads it: --data-path $DATA" in shown
    assert "MASTER_ADDR" not in shown
    space = load_space(here / "mine.yaml")
    assert space.name == "mine"
    assert space.model is not None
    assert (space.model.num_layers, space.model.seq_length) == (32, 2048)
    assert [e.text for e in space.constraints if "batch" in e.text] == ["global_batch_size == 96"]
    assert space.parameters["num_nodes"].values == (2,)
    assert len(space.parameters["tp"].values) > 1
    assert check(space).valid > 0
    command = " ".join(str(word) for word in space.trainer.command or [])
    assert "--split 949,50,1" in command
    assert "tee" not in command
    assert "nproc" not in command
    assert "# what may vary" in (here / "mine.yaml").read_text()


def test_a_model_and_a_cluster_are_enough(here: Path) -> None:
    assert main(["init", *COMMON, "--model", "llama_8b"]) == 0
    space = load_space(here / "space.yaml")
    assert check(space).valid > 0
    assert space.model_name == "Llama 3.1 8B"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["space.yaml", "--adapter", "megatron-lm"], "--model and --cluster missing"),
        (["space.txt", *COMMON], "accepted a file *.yaml"),
        ([*COMMON, "--model", "nothing"], "--model: found 'nothing'"),
        (
            ["--adapter", "x", "--cluster", "dgx_h100", "--model", "llama_8b"],
            "--adapter: found 'x'",
        ),
        ([*COMMON, "--args", "nothing.sh"], "nothing.sh"),
        ([*COMMON, "--args", "empty.sh"], "--model is missing"),
        (["exists.yaml", *COMMON, "--model", "llama_8b"], "exists.yaml exists"),
    ],
)
def test_what_is_missing_is_told_and_nothing_is_written(
    here: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty.sh").write_text("echo hello\n")
    (here / "exists.yaml").write_text("mine")
    assert main(["init", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not (here / "space.yaml").exists()
    assert (here / "exists.yaml").read_text() == "mine"


def test_what_the_adapter_cannot_be_told_is_neither_searched_nor_constrained(here: Path) -> None:
    # Of a mixture etp is searched elsewhere, too.
    assert main(["init", "mine.yaml", *COMMON, "--nodes", "2", "--model", "mixtral_8x7b"]) == 0
    space = load_space(here / "mine.yaml")
    assert "ep" in space.parameters and "etp" not in space.parameters
    assert check(space).valid > 0
