"""``meshtune init`` with a trainer's own file, and with lines that start fine-tuning."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from search_spaces import check, load_space, notes
from workflows.cli.main import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
"""


@pytest.mark.parametrize(
    "arguments",
    [["--config", "llama3_8b.toml"], ["--args", "run_train.sh"]],
    ids=["named", "in the launch script"],
)
def test_a_configuration_file_is_enough(here: Path, arguments: list[str]) -> None:
    (here / "llama3_8b.toml").write_text(TITAN)
    (here / "run_train.sh").write_text(
        'CONFIG=${CONFIG:-"llama3_8b.toml"}\n'
        "torchrun --role rank -m torchtitan.train --job.config_file ${CONFIG} --compile.enable\n"
    )
    assert main(["init", "--adapter", "torchtitan", "--cluster", "dgx_h100", *arguments]) == 0
    space = load_space(here / "space.yaml")
    assert space.model is not None
    assert (space.model.num_layers, space.model.seq_length) == (32, 4096)
    assert check(space).valid > 0
    assert list(space.trainer.command or []).count("--job.config_file") == 1


def test_a_configuration_file_without_an_option_is_named_once(here: Path) -> None:
    (here / "base.yml").write_text("max_target_length: 2048\n")
    (here / "run.sh").write_text(
        "python3 -m MaxText.train base.yml model_name=llama3-8b steps=30 attention=cudnn_flash_te\n"
    )
    told = ["--adapter", "maxtext", "--cluster", "dgx_h100", "--args", "run.sh"]
    assert main(["init", *told]) == 0
    command = load_space(here / "space.yaml").trainer.command or []
    assert command[:4] == ["python", "-m", "MaxText.train", "run.yml"]
    assert "base.yml" not in command and "attention=cudnn_flash_te" in command


FINE_TUNERS = {
    # what people type, its file, and how the trial is then started
    "llama-factory": (
        "FORCE_TORCHRUN=1 NNODES=1 llamafactory-cli train own.yaml learning_rate=1e-5",
        {"finetuning_type": "lora", "lora_rank": 8, "cutoff_len": 2048, "stage": "sft"},
        "-m llamafactory.launcher job.yaml",
        "tokens_per_second",
    ),
    "axolotl": (
        "axolotl train own.yaml --launcher torchrun -- --nnodes=1 --nproc_per_node=8",
        {"adapter": "lora", "lora_r": 8, "sequence_len": 2048},
        "-m axolotl.cli.train job.yaml",
        "epochs_per_second",
    ),
    "torchtune": (
        "tune run --nproc_per_node 8 lora_finetune_distributed --config own.yaml batch_size=4",
        {"tokenizer": {"max_seq_len": 2048}, "gradient_accumulation_steps": 2},
        "tune run lora_finetune_distributed --config run.yaml",
        "labelled_tokens_per_second_per_gpu",
    ),
    "ms-swift": (
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B --train_type lora --max_length 2048",
        {},
        "-m swift.cli.sft",
        "epochs_per_second",
    ),
    "litgpt": (
        "litgpt finetune_lora meta-llama/Llama-3.1-8B --train.max_seq_length 2048 --devices 8",
        {},
        "litgpt finetune_lora meta-llama/Llama-3.1-8B",
        "tokens_per_second",
    ),
    "trl": (
        "trl sft --model_name_or_path m --use_peft --max_length 2048 --accelerate_config zero3",
        {},
        "-m trl.scripts.sft --model_name_or_path m",
        "tokens_per_second",
    ),
}


@pytest.mark.parametrize("adapter", FINE_TUNERS)
def test_the_line_that_starts_a_fine_tuning_is_enough(here: Path, adapter: str) -> None:
    line, own, start, objective = FINE_TUNERS[adapter]
    (here / "launch.sh").write_text(line + "\n")
    (here / "own.yaml").write_text(yaml.safe_dump(own))
    asked = ["--cluster", "dgx_h100", "--model", "llama_8b", "--args", "launch.sh"]
    assert main(["init", "mine.yaml", "--adapter", adapter, *asked]) == 0
    space = load_space(here / "mine.yaml")
    assert space.objective.as_dict() == {"maximize": objective}
    config = {name: parameter.values[0] for name, parameter in space.parameters.items()}
    command = " ".join(space.command(config, "/t"))
    assert start in command and "zero3" not in command and "torchrun" not in command
    assert space.parameters["tuning"].values == ("lora",)
    batches = [e.text for e in space.constraints if "batch" in e.text]
    assert all(int(text.split()[-1]) <= 256 for text in batches)  # none of a pre-training


def test_the_value_of_an_option_is_not_taken_for_the_file(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--cluster", "dgx_h100", "--model", "llama_8b", "--args", "launch.sh"]
    (here / "own.yaml").write_text("{adapter: lora, lora_r: 8, sequence_len: 2048}")
    (here / "launch.sh").write_text("axolotl train --lr 1e-4 own.yaml\n")
    assert main(["init", "mine.yaml", "--adapter", "axolotl", *asked]) == 0
    (here / "launch.sh").write_text("llamafactory-cli train --stage sft --do_train true\n")
    assert main(["init", "other.yaml", "--adapter", "llama-factory", *asked]) == 2
    assert "launch.sh: no configuration file of llama-factory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "config", "passed"),
    [
        ("train own.yaml --deepspeed zero2.json", "", "--deepspeed zero2.json"),
        ("train own.yaml --deepspeed zero2.json", "own.yaml", "--deepspeed zero2.json"),
        ("train $CFG --deepspeed zero2.json", "own.yaml", "--deepspeed zero2.json"),
        ("train --deepspeed zero2.json own.yaml", "", "--deepspeed zero2.json"),
        ("train own.yaml --eval own.yaml", "", "--eval own.yaml"),
        ("train own.yaml own.yaml", "", ""),
        ("train own.yaml --targets q v", "", "--targets q v"),
        ("train other.yaml --targets q v", "own.yaml", "--targets q v"),
        ("train --debug own.yaml", "", "--debug"),
    ],
)
def test_a_file_that_an_option_names_stays_with_it(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, config: str, passed: str
) -> None:
    asked = ["--adapter", "axolotl", "--cluster", "dgx_h100", "--model", "llama_8b"]
    (here / "own.yaml").write_text("{adapter: lora, lora_r: 8, sequence_len: 2048}")
    (here / "run.sh").write_text(f"axolotl {line}\n")
    asked += ["--config", config] if config else []
    assert main(["init", "mine.yaml", *asked, "--args", "run.sh"]) == 0
    own = yaml.safe_load((here / "mine.yaml").read_text())["trainer"]
    assert (own["config"], own.get("args", "").split()) == ("own.yaml", passed.split())
    assert ("left out: other.yaml" in capsys.readouterr().out) is ("other.yaml" in line)


def test_words_that_are_no_pairs_are_said_to_be_left_out(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "base.yml").write_text("steps: 9\n")
    (here / "run.sh").write_text(
        "python -m maxtext.train base.yml --own mine dtype=bfloat16 --dry\n"
    )
    asked = ["--adapter", "maxtext", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", "mine.yaml", *asked, "--args", "run.sh"]) == 0
    assert "left out: --own mine --dry" in capsys.readouterr().out
    assert "dtype=bfloat16" in (here / "mine.yaml").read_text()


def test_a_recipe_stays_in_the_arguments(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As examples of NVIDIA-NeMo/Megatron-Bridge (067f987) have one: without it nothing runs."""
    (here / "run.sh").write_text(
        "srun --container-image=${CONTAINER_IMAGE} --container-mounts=/data:/data \\\n"
        "  python scripts/training/run_recipe.py --recipe own_sft_config \\\n"
        "  train.global_batch_size=64 model.tensor_model_parallel_size=2\n"
    )
    asked = ["--adapter", "megatron-bridge", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", "mine.yaml", *asked, "--args", "run.sh"]) == 0
    assert "left out: the container's image ${CONTAINER_IMAGE}" in capsys.readouterr().out
    space = load_space(here / "mine.yaml")
    command = list(space.trainer.command or [])
    assert command[command.index("--recipe") + 1] == "own_sft_config"


def test_files_that_a_trainer_merges_are_not_taken_for_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPT-NeoX merges its files: what the others say would be missing from every trial."""
    asked = ["init", "mine.yaml", "--adapter", "neox", "--cluster", "dgx_h100", "--args", "run.sh"]
    (here / "run.sh").write_text("python ./deepy.py train.py -d configs 6-7B.yml local.yml\n")
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "run.sh: found 6-7B.yml, local.yml: put their options into one file, and name it" in said
    sizes = "'num-layers': 2, 'hidden-size': 64, 'num-attention-heads': 2, 'seq-length': 32"
    (here / "one.yml").write_text(f"{{{sizes}}}\n")
    assert main([*asked, "--config", "one.yml"]) == 2
    assert "neox is told none, or not all of it: it has no option for vocab_size" in (
        capsys.readouterr().err
    )
    (here / "m.yaml").write_text(
        "{num_layers: 2, hidden_size: 64, num_heads: 2, seq_length: 32, vocab_size: 512,\n"
        " positions: learned, tied_embeddings: true}\n"
    )
    assert main([*asked, "--config", "one.yml", "--model", "m.yaml"]) == 0
    assert "left out: local.yml" in capsys.readouterr().out
    command = load_space(here / "mine.yaml").trainer.command or []
    assert "train.py" in command and not {"6-7B.yml", "local.yml", "deepy.py"} & {*command}


TUNED = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
deepspeed: configs/ds.json
"""
OFFLOADED = """\
{"train_batch_size": "auto", "zero_optimization": {"stage": 3, "overlap_comm": false,
 "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}
"""


@pytest.mark.parametrize("missing", [False, True])
def test_a_file_that_the_configuration_names_takes_the_place_of_its_name(
    here: Path, capsys: pytest.CaptureFixture[str], missing: bool
) -> None:
    (here / "tasks").mkdir()
    (here / "configs").mkdir()
    (here / "tasks" / "sft.yaml").write_text(TUNED)
    if not missing:
        (here / "configs" / "ds.json").write_text(OFFLOADED)
    told = ["--adapter", "llama-factory", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", *told, "--config", "tasks/sft.yaml"]) == 0
    space = load_space(here / "space.yaml")
    capsys.readouterr()
    assert main(["check", "space.yaml"]) == 0
    unread = "there is no configs/ds.json here, which your file names"
    assert (unread in capsys.readouterr().out) == missing
    assert ("zero_stage" in space.parameters) != missing
    if not missing:
        fixed = {name: space.parameters[name].values for name in space.parameters}
        assert fixed["zero_stage"] == (2, 3)
        assert fixed["offload_optimizer"] == fixed["offload_parameters"] == (True,)
        config = {name: values[-1] for name, values in fixed.items()}
        (written,) = space.files(config, "/t").values()
        own = yaml.safe_load(written)["deepspeed"]
        assert own["zero_optimization"] == {
            "stage": 3, "overlap_comm": False, "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
        }  # fmt: skip
        assert "train_batch_size" not in own


AXOLOTL = """\
base_model: meta-llama/Meta-Llama-3-8B
adapter: lora
lora_dropout: 0
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 4
deepspeed:
"""


@pytest.mark.parametrize(
    ("more", "parameters", "batch"),
    [
        ("fsdp:\nfsdp_config:\n", {"zero_stage": None, "offload_parameters": None}, 32),
        (
            "fsdp_version: 2\nfsdp_config: {offload_params: true, reshard_after_forward: false}\n"
            "tensor_parallel_size: 2\n",
            {"zero_stage": (2, 3), "offload_parameters": (True,), "tp": (2,)},
            16,
        ),
        (
            "fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n"
            "context_parallel_size: 4\n",
            {"zero_stage": (2, 3), "offload_parameters": None, "cp": (4,)},
            8,
        ),
    ],
)
def test_axolotls_empty_keys_say_nothing_and_its_fsdp_is_read(
    here: Path, more: str, parameters: dict[str, object], batch: int
) -> None:
    (here / "job.yml").write_text(AXOLOTL + more)
    told = ["--adapter", "axolotl", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", *told, "--config", "job.yml"]) == 0
    space = load_space(here / "space.yaml")
    read = {n: space.parameters[n].values if n in space.parameters else None for n in parameters}
    assert read == parameters
    assert space.parameters["lora_dropout"].values == (0.0,)
    assert f"global_batch_size == {batch}" in [each.text for each in space.constraints]
    assert space.program.habits.name == "peft"
    assert check(space).valid > 0


@pytest.mark.parametrize(
    ("component", "entry", "recipe", "tuning"),
    [
        ("llama3_3.llama3_3_70b", [], "full_finetune_distributed", None),
        ("llama3.lora_llama3_70b", [], "lora_finetune_distributed", ("lora",)),
        ("qwen2.qwen2_7b", ["--entry", "knowledge_distillation"], "knowledge_distillation", None),
    ],
)
def test_torchtunes_recipe_is_that_of_the_models_builder(
    here: Path, component: str, entry: list[str], recipe: str, tuning: tuple[str] | None
) -> None:
    (here / "run.yaml").write_text(
        f"model: {{_component_: torchtune.models.{component}}}\n"
        "batch_size: 4\ngradient_accumulation_steps: 1\ntensor_parallel_dim: 4\n"
    )
    told = ["--adapter", "torchtune", "--cluster", "dgx_h100", "--model", "llama_8b", *entry]
    assert main(["init", *told, "--config", "run.yaml"]) == 0
    space = load_space(here / "space.yaml")
    assert list(space.trainer.command or [])[:3] == ["tune", "run", recipe]
    read = space.parameters.get("tuning")
    assert (read and read.values) == tuning
    assert space.parameters["tp"].values == (4,)
    assert space.parameters["zero_stage"].values == (3,)  # FSDP, always
    assert "global_batch_size == 8" in [each.text for each in space.constraints]


def test_a_degree_that_a_framework_lacks_is_left_as_it_is(here: Path) -> None:
    (here / "run.sh").write_text("accelerate launch --num_processes 8 train.py --lr 1e-4\n")
    told = ["--adapter", "accelerate", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", *told, "--args", "run.sh"]) == 0
    space = load_space(here / "space.yaml")
    assert "tp" not in space.parameters  # whose variables would make a mesh for FSDP2
    assert "FSDP_VERSION" not in space.trainer.env


@pytest.mark.parametrize(
    ("own", "parameters"),
    [
        ('"fp16": {"enabled": true}', {"precision": ("fp16",)}),
        ('"bf16": {"enabled": true}', {"precision": ("bf16",)}),
        (
            '"precision": "bfloat16", "zero_optimization": {"stage": 1, "cpu_offload": true}',
            {"precision": ("bf16",), "offload_optimizer": (True,)},
        ),
        (
            '"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}',
            {"offload_parameters": (True,)},
        ),
        ('"zero_optimization": {"stage": 1, "cpu_offload": false}', {}),
    ],
)
def test_words_of_deepspeed_in_neoxs_file_are_read(
    here: Path, own: str, parameters: dict[str, object]
) -> None:
    text = '"num_layers": 44, "seq_length": 2048, "train_batch_size": 64, "pos_emb": "rotary"'
    (here / "own.yml").write_text(f"{{{text}, {own}}}")
    told = ["--adapter", "neox", "--cluster", "dgx_h100", "--model", "gpt_neox_20b"]
    assert main(["init", *told, "--config", "own.yml"]) == 0
    space = load_space(here / "space.yaml")
    names = [n for n in space.parameters if n == "precision" or n.startswith("offload")]
    assert {name: space.parameters[name].values for name in names} == parameters
    assert check(space).valid > 0
    assert not any("offloading" in note for note in notes(space))


@pytest.mark.parametrize(
    ("quantize", "entry", "tuning"),
    [("null", "finetune_lora", "lora"), ("bnb.nf4", "finetune_lora", "qlora"),
     ("null", "finetune_full", None)],
)  # fmt: skip
def test_litgpts_own_file_is_read_and_its_weights_are_sharded(
    here: Path, quantize: str, entry: str, tuning: str | None
) -> None:
    (here / "own.yaml").write_text(
        f"checkpoint_dir: checkpoints/a\nprecision: bf16-true\nquantize: {quantize}\nlora_r: 32\n"
        "train: {micro_batch_size: 2, global_batch_size: 32, max_seq_length: 512, epochs: 1}\n"
    )
    (here / "run.sh").write_text(f"litgpt {entry} --config own.yaml --train.micro_batch_size 1\n")
    told = ["--adapter", "litgpt", "--cluster", "dgx_h100", "--model", "llama_8b"]
    assert main(["init", *told, "--args", "run.sh"]) == 0
    space = load_space(here / "space.yaml")
    assert space.parameters["zero_stage"].values == (3,)
    read = space.parameters.get("tuning")
    assert (read and read.values) == (tuning and (tuning,))
    config = {name: each.values[0] for name, each in space.parameters.items()}
    (written,) = space.files(config, "/t").values()
    assert yaml.safe_load(written)["checkpoint_dir"] == "checkpoints/a"
    assert "epochs" not in yaml.safe_load(written)["train"]
    command = space.command(config, "/t")
    assert command[:4] == ("litgpt", entry, "--config", "run.yaml")
    assert command.count("--train.micro_batch_size") == command.count("--config") == 1
