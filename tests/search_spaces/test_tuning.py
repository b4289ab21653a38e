"""The section ``tuning`` of a space, and a trainer's own words for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.prediction.pricing import NotPricedError, Pricing
from search_spaces import SearchSpace, SpaceError

SPACE = """\
version: 1
model: llama_70b
cluster: dgx_h100
trainer: {adapter: trl, args: --model_name_or_path m --dataset_name d}
tuning: {method: [full, lora], rank: 16, packing: [false, true]}
parameters: {mbs: [1], gas: [4], zero_stage: [3]}
objective: {maximize: tokens_per_second}
"""
BASE = {"mbs": 1, "gas": 4, "zero_stage": 3, "lora_rank": 16}


def test_a_section_of_a_space_stands_for_parameters(load: Callable[[str], SearchSpace]) -> None:
    space = load(SPACE)
    assert space.parameters["tuning"].values == ("full", "lora")
    assert "lora_rank" not in space.canonical({**BASE, "tuning": "full", "packing": False})
    lora = space.command({**BASE, "tuning": "lora", "packing": True}, "/t")
    assert " ".join(lora).endswith("--packing true --use_peft --lora_r 16")
    again = load(space.frozen())
    assert again.fingerprint == space.fingerprint
    with pytest.raises(SpaceError, match="found here and under tuning"):
        load(SPACE.replace("{mbs: [1]", "{lora_rank: [8], mbs: [1]"))
    with pytest.raises(SpaceError, match=r"parameters.tuning\[1\].*'qlora'"):
        load(SPACE.replace("[full, lora]", "[full, dora]"))


@pytest.mark.parametrize(
    ("stated", "meant"),
    [
        ("--use_peft", {"tuning": "lora"}),
        ("--use_peft --load_in_4bit --lora_r 32", {"tuning": "qlora", "lora_rank": 32}),
        ("--use_peft --lora_target_modules all-linear", {"lora_targets": "linear"}),
    ],
)
def test_a_trainers_own_arguments_say_what_is_tuned(
    load: Callable[[str], SearchSpace], stated: str, meant: dict[str, Any]
) -> None:
    text = "".join(line for line in SPACE.splitlines(True) if not line.startswith("tuning"))
    space = load(text.replace("--dataset_name d", f"--dataset_name d {stated}"))
    found = {name: space.parameters[name].values for name in meant}
    assert found == {name: (value,) for name, value in meant.items()}


@pytest.mark.parametrize(
    ("adapter", "entry", "tuning"),
    [
        ("transformers", "exploration/lora/train.py", None),  # has no such setting
        ("trl", "exploration/train.py", None),
        ("trl", "my_qlora_recipe.py", ("qlora",)),
    ],
)
def test_a_scripts_name_says_lora_only_as_a_word(
    load: Callable[[str], SearchSpace], adapter: str, entry: str, tuning: Any
) -> None:
    text = SPACE.replace("adapter: trl", f"adapter: {adapter}, entry: {entry}")
    text = text.replace("tuning: {method: [full, lora], rank: 16, packing: [false, true]}\n", "")
    parameter = load(text).parameters.get("tuning")
    assert (parameter and parameter.values) == tuning


@pytest.mark.parametrize(
    ("adapter", "content", "meant"),
    [
        (
            "llama-factory",
            "finetuning_type: lora\nlora_rank: 8",
            {"tuning": "lora", "lora_rank": 8},
        ),
        ("llama-factory", "{finetuning_type: lora, quantization_bit: 4}", {"tuning": "qlora"}),
        (
            "llama-factory",
            "{finetuning_type: full, packing: true}",
            {"tuning": "full", "packing": True},
        ),
        ("axolotl", "{adapter: qlora, load_in_4bit: true, lora_r: 32}", {"tuning": "qlora"}),
        ("axolotl", "{adapter: lora, sample_packing: true}", {"tuning": "lora", "packing": True}),
        (
            "torchtune",
            "{model: {lora_rank: 8, lora_dropout: 0.1}, dataset: {packed: true}}",
            {"packing": True, "tuning": "lora", "lora_rank": 8, "lora_dropout": 0.1},
        ),
        ("torchtune", "{model: {_component_: torchtune.models.qlora_x}}", {"tuning": "qlora"}),
        ("torchtune", "{model: {quantize_base: true}}", {"tuning": "qlora"}),
        (
            "torchtune",
            "{model: {lora_attn_modules: [q_proj, v_proj, output_proj], apply_lora_to_mlp: true}}",
            {"lora_targets": "linear"},
        ),
        (
            "torchtune",
            "{model: {lora_attn_modules: [q_proj, v_proj], apply_lora_to_mlp: false}}",
            {"lora_targets": "qv"},
        ),
        (
            "torchtune",
            "{model: {lora_attn_modules: [q_proj, k_proj, v_proj, output_proj]}}",
            {"lora_targets": "attention"},
        ),
    ],
)
def test_a_trainers_own_file_says_what_is_tuned(
    load: Callable[[str], SearchSpace],
    tmp_path: Path,
    adapter: str,
    content: str,
    meant: dict[str, Any],
) -> None:
    (tmp_path / "job.yaml").write_text(content)
    trainer = f"trainer: {{adapter: {adapter}, config: job.yaml}}"
    lines = [line for line in SPACE.splitlines() if not line.startswith(("tuning", "trainer"))]
    text = "\n".join([*lines, trainer]).replace(", zero_stage: [3]", "")
    space = load(text.replace("tokens_per_second", "samples_per_second"))
    found = {name: space.parameters[name].values for name in meant}
    assert found == {name: (value,) for name, value in meant.items()}


VERL = """\
version: 1
model: llama_8b
cluster: dgx_h100
trainer: {command: [train, "{mbs}", "{num_nodes}"], result: {format: verl}}
trial: {ranks_per_node: 1}
parameters: {num_nodes: [1, 2], mbs: [1, 2], gas: [4]}
objective: {maximize: tokens_per_second_per_gpu}
"""


def test_a_trainer_that_starts_its_own_processes_has_one_per_node_and_no_prices(
    load: Callable[[str], SearchSpace],
) -> None:
    space = load(VERL)
    config = {"num_nodes": 2, "mbs": 1, "gas": 4}
    assert space.ranks_per_node == 1 and space.starts_its_own
    assert space.facts(config)["world_size"] == 16  # GPUs
    assert load(space.frozen()).fingerprint == space.fingerprint
    with pytest.raises(NotPricedError, match="starts its own processes"):
        Pricing(space)
    assert not load(VERL.replace("trial: {ranks_per_node: 1}\n", "")).starts_its_own


@pytest.mark.parametrize(("stated", "of_a_weight"), [("true", 0.5159), ("false", 0.5625)])
def test_a_trainers_own_file_says_whether_the_scales_of_nf4_are_quantized(
    load: Callable[[str], SearchSpace], tmp_path: Path, stated: str, of_a_weight: float
) -> None:
    """0.5 + 1/64 + 4/16384 bytes a parameter, or 0.5 + 4/64."""
    (tmp_path / "job.yaml").write_text(f"double_quantization: {stated}")
    text = SPACE.replace("adapter: trl, args: --model_name_or_path m --dataset_name d",
                         "adapter: llama-factory, config: job.yaml")  # fmt: skip
    text = text.replace(", zero_stage: [3]", "").replace("packing: [false, true]", "packing: false")
    space = load(text.replace("[full, lora]", "[lora, qlora]"))
    assert space.program.habits.quantized_bytes == of_a_weight
