"""``meshtune init``: a space that loads, from as little as a user has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import search_spaces
from search_spaces import SpaceError, check, load_space
from workflows import launch_script
from workflows.cli.main import main
from workflows.estimate import Estimate
from workflows.submission import least_s

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=8
DATA=$1
SEQ=${SEQ:-2048}
DISTRIBUTED_ARGS=(
    --nproc_per_node 8
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096   # wide
    --num-attention-heads 32
    --seq-length $SEQ
    --max-position-embeddings ${SEQ}
    --account-for-loss-in-pipeline-split
)
torchrun ${DISTRIBUTED_ARGS[@]} /opt/megatron/pretrain_gpt.py ${GPT_MODEL_ARGS[@]} \\
    --global-batch-size 96 --micro-batch-size 2 \\
    --bf16 --data-path $DATA --vocab-size 51200 --split 949,50,1 2>&1 | tee log
echo done
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
    assert "left out: --data-path $1" in shown
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
    assert "/opt/megatron/pretrain_gpt.py" in command
    assert "--split 949,50,1" in command
    assert "account_for_loss" in space.parameters  # although srun has an --account
    assert "tee" not in command and "done" not in command
    assert "nproc" not in command
    assert "# what may vary" in (here / "mine.yaml").read_text()


@pytest.mark.parametrize(
    ("strategy", "stages"),
    [("optim_grads_params", (0, 1, 3)), ("optim_grads", (0, 1, 2)), ("optim", (0, 1))],
)
def test_megatrons_own_fsdp_is_searched_as_the_script_has_it(
    here: Path, strategy: str, stages: tuple[int, ...]
) -> None:
    fsdp = f"--use-megatron-fsdp --data-parallel-sharding-strategy {strategy}"
    script = SCRIPT.replace("--bf16", f"--bf16 --use-distributed-optimizer {fsdp}")
    (here / "launch.sh").write_text(
        script.replace("--bf16", "--bf16 --untie-embeddings-and-output-weights")
    )
    assert main(["init", "mine.yaml", *COMMON, "--args", "launch.sh"]) == 0
    space = load_space(here / "mine.yaml")
    assert space.parameters["zero_stage"].values == stages
    config = {name: each.values[0] for name, each in space.parameters.items()}
    config |= {"zero_stage": stages[-1]}
    command = " ".join(space.command(config, "/t"))
    assert "--use-megatron-fsdp" in command and "--use-torch-fsdp2" not in command
    assert command.count(f"--data-parallel-sharding-strategy {strategy}") == 1
    assert command.count("--use-distributed-optimizer") == 1
    assert space.environment(config, "/t")["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


def test_an_option_without_its_file_and_a_model_without_a_name_are_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "launch.sh").write_text("torchrun train.py --deepspeed --deepspeed_config ds.json\n")
    args = ["init", "mine.yaml", "--cluster", "dgx_h100", "--args", "launch.sh", "--adapter"]
    assert main([*args, "transformers", "--model", "llama_8b"]) != 0
    assert "--deepspeed names no file here: write --deepspeed FILE" in capsys.readouterr().err
    (here / "launch.sh").write_text("torchrun pretrain_gpt.py --bf16\n")
    assert main([*args, "megatron-lm"]) != 0
    assert "a shipped model, Hugging Face's config.json or a *.yaml" in capsys.readouterr().err


def test_a_stage_that_a_record_lacks_is_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "own.yaml").write_text("optimizer: {zero_stage: 2}\n")
    told = ["--adapter", "nanotron", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", "mine.yaml", *told, "--config", "own.yaml"]) == 0
    assert "your ZeRO 2 is not searched: nanotron's record" in capsys.readouterr().out


def test_nodes_are_those_that_the_script_asks_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "launch.sh").write_text(SCRIPT)
    assert main(["init", "mine.yaml", *COMMON, "--args", "launch.sh"]) == 0
    assert load_space(here / "mine.yaml").parameters["num_nodes"].values == (8,)
    assert "8 x 8 GPUs of dgx_h100" in capsys.readouterr().out


def test_a_model_and_a_cluster_are_enough(here: Path) -> None:
    assert main(["init", *COMMON, "--model", "llama_8b"]) == 0
    space = load_space(here / "space.yaml")
    assert check(space).valid > 0
    assert space.model_name == "Llama 3.1 8B"


def test_a_module_is_the_entry_of_a_trainer_that_starts_modules(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "dpo.sh").write_text("torchrun -m trl.scripts.dpo --dataset_name x\n")
    trl = ["--adapter", "trl", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", "space.yaml", *trl, "--args", "dpo.sh"]) == 0
    program = load_space(here / "space.yaml").trainer.command or []
    assert program[:3] == ["python", "-m", "trl.scripts.dpo"]
    (here / "sizes.sh").write_text("python -m pretrain_gpt --micro-batch-size 1\n")
    arguments = [*COMMON, "--model", "llama_8b", "--args", "sizes.sh"]
    assert main(["init", "other.yaml", *arguments]) == 0
    assert "left out: -m pretrain_gpt: name by --entry yours" in capsys.readouterr().out


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
        (
            [*COMMON, "--args", "unknown.sh"],
            "not told num-attention-heads, vocab-size, seq-length; no shell reads --seq-length $1",
        ),
        (
            [*COMMON, "--args", "function.sh"],
            "megatron-lm is told none, or not all of it; no shell reads $@",
        ),
        (
            [*COMMON, "--args", "outer.sh"],
            "seq-length; outer.sh starts no script: name by --args the file that does",
        ),
        (
            ["--adapter", "megatron-lm", "--cluster", "perlmuter", "--args", "unknown.sh"],
            "--cluster: found 'perlmuter', accepted a file (*.yaml), or one of ",
        ),
        (
            ["--adapter", "accelerate", *COMMON[2:], "--args", "unknown.sh"],
            "--model is missing: accelerate is told none",
        ),
        (
            ["--adapter", "lightning", *COMMON[2:], "--args", "unknown.sh"],
            "--model is missing: lightning is told none",
        ),
        (["exists.yaml", *COMMON, "--model", "llama_8b"], "exists.yaml exists"),
    ],
)
def test_what_is_missing_is_told_and_nothing_is_written(
    here: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "empty.sh").write_text("echo hello\n")
    (here / "unknown.sh").write_text("x.py --num-layers 2 --hidden-size 64 --seq-length $1\n")
    (here / "function.sh").write_text('run() {\n torchrun x.py "$@"\n}\nrun --num-layers 2\n')
    (here / "outer.sh").write_text("srun --ntasks-per-node=8 ./run.sh\n")
    (here / "exists.yaml").write_text("mine")
    assert main(["init", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not (here / "space.yaml").exists()
    assert (here / "exists.yaml").read_text() == "mine"


def test_what_the_adapter_cannot_be_told_is_neither_searched_nor_constrained(here: Path) -> None:
    # DeepSpeed's pipelines are modelled; a script of one's own is not told of them.
    told = ["--adapter", "deepspeed", "--entry", "train.py", "--model", "llama_8b"]
    assert main(["init", "mine.yaml", "--cluster", "dgx_h100", "--nodes", "2", *told]) == 0
    space = load_space(here / "mine.yaml")
    assert "zero_stage" in space.parameters and "pp" not in space.parameters
    assert not any("pp" in e.text for e in space.constraints)
    assert check(space).valid > 0


@pytest.mark.parametrize(
    ("adapter", "recompute"),
    [
        ("accelerate", ("none", "full")),
        ("transformers", ("none", "full")),
        ("megatron-lm", ("none", "selective", "full")),
    ],
)
def test_only_what_the_trainer_can_do_is_searched(
    here: Path, adapter: str, recompute: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--adapter", adapter, "--entry", "train.py", "--model", "llama_8b"]
    assert main(["init", "mine.yaml", "--cluster", "dgx_h100", *own]) == 0
    space = load_space(here / "mine.yaml")
    assert tuple(space.parameters["recompute"].values) == recompute
    told = "add your script's to args" in capsys.readouterr().out
    assert told == ("mbs" not in space.parameters) == (adapter == "accelerate")
    assert check(space).valid > 0


TRAINER = """\
#SBATCH --nodes=2
torchrun --nnodes 2 --nproc_per_node 8 run_clm.py --model_name_or_path x --block_size 2048 \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps $((64 / SLURM_NNODES / 8))
"""
NANOTRON = """\
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 8, sequence_length: 4096}
parallelism: {dp: 8, tp: 2, pp: 1}
"""


@pytest.mark.parametrize(
    ("adapter", "arguments", "batch", "length"),
    [
        ("transformers", ["--args", "launch.sh"], 128, 2048),
        ("nanotron", ["--config", "own.yaml"], 128, 4096),
        ("torchtitan", ["--config", "own.toml", "--nodes", "2"], 16, 4096),
        ("maxtext", ["--config", "base.yml", "--nodes", "2"], 32, 1024),
        ("llama-factory", ["--config", "factory.yaml", "--nodes", "2"], 128, 2048),
    ],
)
def test_the_batch_and_the_length_of_the_pasted_run_are_kept(
    here: Path, adapter: str, arguments: list[str], batch: int, length: int
) -> None:
    (here / "launch.sh").write_text(TRAINER)
    (here / "own.yaml").write_text(NANOTRON)
    (here / "own.toml").write_text("[training]\nlocal_batch_size = 1\nseq_len = 4096\n")
    (here / "base.yml").write_text("per_device_batch_size: 2.0\nmax_target_length: 1024\n")
    (here / "factory.yaml").write_text(
        "{finetuning_type: lora, cutoff_len: 2048, per_device_train_batch_size: 1, "
        "gradient_accumulation_steps: 8}\n"
    )
    told = ["--adapter", adapter, "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", *told, *arguments]) == 0
    space = load_space(here / "space.yaml")
    assert [e.text for e in space.constraints][:1] == [f"global_batch_size == {batch}"]
    assert space.model is not None and space.model.seq_length == length
    assert check(space).valid > 0


def test_the_job_that_is_proposed_lasts_for_the_whole_search(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "launch.sh").write_text(f"module load cuda\n{TRAINER}")
    told = ["--adapter", "transformers", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", "mine.yaml", *told, "--args", "launch.sh"]) == 0
    line = re.search(r"submit \S+.* --nodes (\d+) --time (\d+)m", capsys.readouterr().out)
    assert line is not None and line[1] == "2"
    space = load_space(here / "mine.yaml")
    search_h = Estimate.of(space).expected_node_hours
    assert search_h and int(line[2]) >= 60 * search_h / 2 + space.trial.timeout_s / 60 > 30
    assert int(line[2]) <= 60 * search_h / 2 + least_s(space) / 60 + 1


def test_a_space_without_a_valid_configuration_is_written_for_check_to_say_why(here: Path) -> None:
    (here / "launch.sh").write_text(SCRIPT.replace("--bf16", "--bf16 --context-parallel-size 3"))
    assert main(["init", "mine.yaml", *COMMON, "--nodes", "1", "--args", "launch.sh"]) == 0
    with pytest.raises(SpaceError, match="no configuration is valid"):
        check(load_space(here / "mine.yaml"))


def test_a_batch_that_these_nodes_cannot_share_is_left(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "launch.sh").write_text(TRAINER.replace("_size 2 ", "_size 7 "))
    told = ["--adapter", "transformers", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", *told, "--nodes", "64", "--args", "launch.sh"]) == 0
    assert "the trainer's own batch is left: found 448" in capsys.readouterr().out
    assert check(load_space(here / "space.yaml")).valid > 0


def test_another_length_than_the_models_is_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.yaml").write_text(
        "{version: 1, cluster: dgx_h100, model: llama_8b, parameters: {mbs: [1, 2], gas: 1},\n"
        "trainer: {adapter: transformers, entry: x.py, args: [--cutoff_len, 1024]},\n"
        "objective: {maximize: samples_per_second}}\n"
    )
    assert main(["check", "mine.yaml"]) == 2
    told = capsys.readouterr().err
    assert "found cutoff_len 1024, the space's model has seq_length 8192" in told
    assert "{base: NAME, seq_length: 1024}" in told


MEGATRON = """\
VOCAB_FILE=$1 MERGE_FILE=$2
DATA_ARGS=(--data-path $3 --vocab-file $VOCAB_FILE --merge-file $MERGE_FILE)
MODEL=(--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024)
deepspeed pretrain_gpt.py ${MODEL[@]} ${DATA_ARGS[@]} --deepspeed_config ds_made_later.json
"""


@pytest.mark.parametrize("adapter", ["megatron-lm", "megatron-deepspeed"])
def test_a_published_script_without_a_vocabulary_is_taken(
    here: Path, adapter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer has it; and the script writes DeepSpeed's file itself."""
    (here / "launch.sh").write_text(MEGATRON)
    told = ["--adapter", adapter, "--cluster", "dgx_h100", "--args", "launch.sh"]
    assert main(["init", *told]) == 0
    shown = capsys.readouterr().out
    assert "--vocab-size is taken to be 50257" in shown
    space = load_space(here / "space.yaml")
    assert space.model is not None and space.model.vocab_size == 50257
    if adapter == "megatron-deepspeed":
        assert "left out, as it is not here: ds_made_later.json" in shown
        assert "ds_made_later.json" not in " ".join(map(str, space.trainer.command or []))
    assert check(space).valid > 0


def test_a_command_in_a_here_document_is_read(here: Path) -> None:
    (here / "launch.sh").write_text(
        "read -r -d '' training_commands <<EOF\n/opt/train.py \\\n   --num-layers 4 \\\n"
        "   --hidden-size 64\nEOF\necho <<NOTE\n/opt/other.py --a 1 --b 2 --c 3 --d 4\nNOTE\n"
        "deepspeed --num_gpus 4 $training_commands\n"
    )
    found = launch_script.read(here / "launch.sh")
    assert (found.entry, found.ranks) == ("/opt/train.py", 4)
    assert found.arguments == ["--num-layers", "4", "--hidden-size", "64"]


def test_a_padded_vocabulary_is_the_models(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = SCRIPT.replace("--vocab-size 51200", "--padded-vocab-size 50304")
    (here / "launch.sh").write_text(script)
    assert main(["init", "mine.yaml", *COMMON, "--args", "launch.sh"]) == 0
    assert "--vocab-size is taken to be 50304" in capsys.readouterr().out
    model = load_space(here / "mine.yaml").model
    assert model is not None and model.vocab_size == 50304


def test_files_are_named_as_seen_from_the_folder_of_the_space(here: Path) -> None:
    (here / "spaces").mkdir()
    for name in ("clusters/dgx_h100.yaml", "models/tiny.yaml"):
        record = Path(search_spaces.__file__).parent / name
        (here / record.name).write_text(record.read_text())
    (here / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    args = ["--adapter", "deepspeed", "--cluster", "dgx_h100.yaml", "--config", "ds.json"]
    file = here / "spaces" / "space.yaml"
    args += ["--entry", "train.py", "--model", "tiny.yaml"]
    assert main(["init", "spaces/space.yaml", *args]) == 0
    assert load_space(file).parameters["zero_stage"].values[-1] == 3
    assert "cluster: ../dgx_h100.yaml" in file.read_text()
    assert "../tiny.yaml" in file.read_text()
    assert "config: ../ds.json" in file.read_text()
