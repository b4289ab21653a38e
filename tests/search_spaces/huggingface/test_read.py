"""A Hugging Face ``config.json`` read as a model: its sizes, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from search_spaces import SpaceError
from search_spaces.huggingface.architectures import architectures
from search_spaces.huggingface.read import read_config
from search_spaces.language.schema import ModelFile
from support.llama_config import LLAMA
from trainer.huggingface.names import check_config
from trainer.plan.limits import ConfigError
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import model_weights, table_weights

PUBLISHED: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text())


def read(folder: Path, config: dict[str, Any], seq_length: int | None = None) -> ModelFile:
    file = folder / "config.json"
    file.write_text(json.dumps(config, indent=2))
    return read_config(file, seq_length)


def matrices(model: ModelFile) -> int:
    tables = 1 if model.tied_embeddings else 2
    return int(model_weights(model) + tables * table_weights(model))


def stated(said: str) -> tuple[float, float]:
    """A number of parameters as it is written, and what its last digit is worth."""
    digits, unit = re.fullmatch(r"([0-9.]+)([MB]?)", said).groups()  # type: ignore[union-attr]
    scale = {"": 1.0, "M": 1e6, "B": 1e9}[unit]
    zeros = len(digits) - len(digits.rstrip("0")) if "." not in digits else 0
    decimals = len(digits.partition(".")[2])
    return float(digits) * scale, max(10.0 ** (zeros - decimals) * scale, float(digits) * 5e-4)


def test_every_architecture_has_a_published_model_and_its_defaults_in_the_table() -> None:
    kinds = {entry["config"]["model_type"] for entry in PUBLISHED.values()}
    beside = {"gemma3", "qwen3_vl", "qwen3_vl_text", "kimi_k2", "qwen3_next", "gemma3n"}
    beside |= {"gemma3n_text", "minimax", "minimax_text_01", "minimax_m1"}  # counted below
    assert kinds == architectures().keys() - beside
    assert {f"default {kind}" for kind in kinds} <= PUBLISHED.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_transformers_and_the_authors_count(
    name: str, tmp_path: Path
) -> None:
    entry = PUBLISHED[name]
    model = read(tmp_path, entry["config"])
    assert matrices(model) == entry["matrices"] - entry.get("left_out", 0)
    # A record has no norm of queries, keys or embeddings, and no bias of some products only.
    assert model.num_parameters == pytest.approx(entry["total"], rel=5e-4)
    if "said" in entry:
        said, digit = stated(entry["said"])
        assert abs(model.num_parameters - said) <= digit


TOWERS = {
    "Qwen/Qwen3-VL-8B-Instruct": (
        8_767_123_696,
        {"model_type": "qwen3_vl_text", "hidden_size": 4096, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
         "intermediate_size": 12288, "vocab_size": 151936},
        {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "spatial_merge_size": 2,
         "deepstack_visual_indexes": [8, 16, 24]},
    ),
    "meta-llama/Llama-4-Scout-17B-16E": (
        108_641_793_536,
        {"model_type": "llama4_text"},
        {"num_hidden_layers": 34, "hidden_size": 1408, "intermediate_size": 5632},
    ),
    "google/gemma-3n-E4B": (
        7_849_978_192,
        {"model_type": "gemma3n_text", "intermediate_size": [16384] * 35, "num_hidden_layers": 35},
        {"model_type": "gemma3n_vision", "hidden_size": 2048},
    ),
    "google/gemma-3n-E2B": (
        5_439_438_272,
        {"model_type": "gemma3n_text", "intermediate_size": [8192] * 30, "num_hidden_layers": 30},
        {"model_type": "gemma3n_vision", "hidden_size": 2048},
    ),
    "mistralai/Mistral-Small-3.1-24B-Base-2503": (
        24_011_361_280,
        {"model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40, "head_dim": 128,
         "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 32768,
         "vocab_size": 131072},
        {"model_type": "pixtral", "num_hidden_layers": 24, "hidden_size": 1024,
         "intermediate_size": 4096},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOWERS)
def test_what_reads_pictures_counts(name: str, tmp_path: Path) -> None:
    published, text, tower = TOWERS[name]
    model = read(tmp_path, {"model_type": "x", "text_config": text, "vision_config": tower})
    assert model.num_parameters == pytest.approx(published, rel=5e-3)
    alone = read(tmp_path, {"model_type": "x", "text_config": text})
    further = model.further_parameters - alone.further_parameters
    assert further == model.num_parameters - alone.num_parameters > 4e8


def test_heads_for_further_tokens_count_and_kimi_is_deepseeks_shape(tmp_path: Path) -> None:
    glm = {"model_type": "glm4_moe", "hidden_size": 5120, "num_hidden_layers": 92}
    glm |= {"intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160}
    glm |= {"first_k_dense_replace": 3, "num_nextn_predict_layers": 1}
    model = read(tmp_path, glm)
    assert model.num_parameters == pytest.approx(358_337_791_296, rel=1e-4)
    assert model.config().num_parameters == model.num_parameters
    following = read(tmp_path, {"model_type": "qwen3_next"})
    assert following.num_parameters == pytest.approx(81_324_862_720, rel=5e-3)
    kimi = PUBLISHED["moonshotai/Kimi-K2-Base"]
    renamed = read(tmp_path, {**kimi["config"], "model_type": "kimi_k2"})
    assert matrices(renamed) == kimi["matrices"]


def test_linear_attention_counts_in_the_layers_that_a_file_lists(tmp_path: Path) -> None:
    """MiniMax-Text-01, by transformers' names and by its authors'; and transformers' default."""
    sizes = {"hidden_size": 6144, "num_hidden_layers": 80, "num_attention_heads": 64}
    sizes |= {"head_dim": 128, "intermediate_size": 9216, "num_local_experts": 32}
    sizes |= {"vocab_size": 200064, "max_position_embeddings": 10240000}
    kinds = [*7 * ["linear_attention"], "full_attention"] * 10
    for named in (
        {"model_type": "minimax", "layer_types": kinds},
        {"model_type": "minimax_text_01", "attn_type_list": [*7 * [0], 1] * 10},
    ):
        model = read(tmp_path, {**sizes, **named})
        assert model.num_parameters == pytest.approx(456_089_655_296, rel=1e-5)
        assert model.windowed_layers == 70
    default = read(tmp_path, {"model_type": "minimax"})
    assert default.num_parameters == pytest.approx(47_373_946_880, rel=1e-5)


YARN = {"type": "yarn", "beta_slow": 1, "original_max_position_embeddings": 4096}
LATENT = {
    "hidden_act": "silu", "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "v_head_dim": 128,
}  # fmt: skip
MIXTURES = {
    "deepseek-ai/DeepSeek-V2-Lite": {
        **LATENT, "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_group": 1,
        "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False,
        "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
        "num_key_value_heads": 16, "q_lora_rank": None, "rope_theta": 10000,
        "rope_scaling": {
            **YARN, "beta_fast": 32, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707
        },
        "routed_scaling_factor": 1.0, "scoring_func": "softmax", "topk_group": 1,
        "topk_method": "greedy", "vocab_size": 102400,
    },
    "deepseek-ai/DeepSeek-V3": {
        **LATENT, "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 128, "q_lora_rank": 1536, "rope_theta": 10000,
        "rope_scaling": {
            **YARN, "beta_fast": 32, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0
        },
        "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4,
        "topk_method": "noaux_tc", "vocab_size": 129280,
    },
    "moonshotai/Kimi-K2-Base": {
        **LATENT, "model_type": "kimi_k2", "first_k_dense_replace": 1, "hidden_size": 7168,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_group": 1,
        "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 64, "q_lora_rank": 1536, "rope_theta": 50000.0,
        "rope_scaling": {
            **YARN, "beta_fast": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0
        },
        "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "topk_group": 1,
        "topk_method": "noaux_tc", "vocab_size": 163840,
    },
    "allenai/OLMoE-1B-7B-0924": {
        "model_type": "olmoe", "clip_qkv": None, "hidden_size": 2048, "intermediate_size": 1024,
        "max_position_embeddings": 4096, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
        "num_key_value_heads": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "vocab_size": 50304,
    },
    "Qwen/Qwen1.5-MoE-A2.7B": {
        "model_type": "qwen2_moe", "decoder_sparse_step": 1, "hidden_size": 2048,
        "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21,
        "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 16, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
        "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
def test_the_built_in_trainer_takes_the_weights_of_a_model_that_is_read(
    name: str, tmp_path: Path
) -> None:
    """Each key that decides what is computed is in the record, and is compared."""
    given = MIXTURES[name]
    model = read(tmp_path, given).config()
    assert type(model) is ModelConfig
    check_config(model, given)
    for key, other in (("routed_scaling_factor", 3.0), ("norm_topk_prob", None), ("n_group", 2)):
        changed = {**given, key: not given[key] if other is None else other}
        if key in given:
            with pytest.raises(ConfigError, match=f"{key} is"):
                check_config(model, changed)


@pytest.mark.heavy
def test_the_table_has_what_transformers_counts() -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers, which is not a dependency, counts the table anew"
    )
    counted = {name: _counted(transformers, entry["config"]) for name, entry in PUBLISHED.items()}
    assert counted == {name: (e["matrices"], e["total"]) for name, e in PUBLISHED.items()}


def _counted(transformers: Any, config: dict[str, Any]) -> tuple[int, int]:
    """Elements of matrices, and all that is trained, as transformers builds the model."""
    import torch

    with torch.device("meta"):
        made = transformers.AutoConfig.for_model(**config)
        model = transformers.AutoModelForCausalLM.from_config(made)
    every = dict(model.named_parameters())
    left_out = ("bias", "wpe", "embed_positions")
    matrices = [
        parameter
        for name, parameter in every.items()
        if parameter.dim() > 1 and not any(part in name for part in left_out)
    ]
    return sum(p.numel() for p in matrices), sum(p.numel() for p in every.values())


def test_a_sequence_is_as_long_as_training_usually_has_it(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA).seq_length == 8192
    assert read(tmp_path, LLAMA, 131072).seq_length == 131072
    assert read(tmp_path, {**LLAMA, "max_position_embeddings": 2048}).seq_length == 2048
    stretched = {"rope_type": "yarn", "original_max_position_embeddings": 4096}
    assert read(tmp_path, {**LLAMA, "rope_scaling": stretched}).seq_length == 4096
    assert read(tmp_path, {**LLAMA, "rope_parameters": stretched}).seq_length == 4096


def test_yarn_is_read_where_the_built_in_trainer_has_it(tmp_path: Path) -> None:
    lite = MIXTURES["deepseek-ai/DeepSeek-V2-Lite"]
    stated = {**YARN, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707}
    del stated["beta_slow"]
    model = read(tmp_path, {**lite, "rope_scaling": stated})
    assert (model.rope_type, model.rope_mscale) == ("yarn", 0.707)
    assert (model.rope_low_freq_factor, model.rope_high_freq_factor) == (1, 32)
    check_config(model.config(), {**lite, "rope_scaling": stated})
    for scales in ({"mscale": 0.5}, {"mscale": None}, {"mscale": 0, "mscale_all_dim": 0}):
        file = {**lite, "rope_scaling": {**stated, **scales}}
        model = read(tmp_path, file)
        assert model.rope_factor == 1
        with pytest.raises(ConfigError, match="rope_type is 'yarn' there"):
            check_config(model.config(), file)


@pytest.mark.parametrize(("kind", "eps"), [("llama", 1e-6), ("mistral", 1e-6), ("mixtral", 1e-5)])
def test_what_norms_add_is_the_architectures_where_a_file_does_not_say(
    kind: str, eps: float, tmp_path: Path
) -> None:
    assert read(tmp_path, {"model_type": kind}).norm_eps == eps
    assert read(tmp_path, {"model_type": kind, "rms_norm_eps": 2e-5}).norm_eps == 2e-5


def test_both_places_of_the_rotary_base_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, {**LLAMA, "rope_theta": 500000}).rope_theta == 5e5
    since_5 = {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    assert read(tmp_path, {**LLAMA, **since_5}).rope_theta == 1e6


def test_windows_count_where_a_sequence_is_longer(tmp_path: Path) -> None:
    mistral = {"model_type": "mistral", "sliding_window": 4096}
    long, short = read(tmp_path, mistral, 8192), read(tmp_path, mistral, 4096)
    assert (long.windowed_layers, long.window_size) == (32, 4096)
    assert short.windowed_layers == 0 and not short.beyond_trainer
    gemma2 = read(tmp_path, {"model_type": "gemma2", "sliding_window": 4096})
    assert gemma2.windowed_layers == 13  # of 26
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    listed = {"model_type": "gemma3_text", "num_hidden_layers": 4, "layer_types": kinds}
    assert read(tmp_path, listed).windowed_layers == 3
    qwen = {"model_type": "qwen2", "sliding_window": 1024, "max_window_layers": 28}
    assert read(tmp_path, qwen).windowed_layers == 0
    assert read(tmp_path, {**qwen, "use_sliding_window": True}).windowed_layers == 4
    assert read(tmp_path, {**qwen, "use_sliding_window": None}).windowed_layers == 0
    assert read(tmp_path, {**mistral, "use_sliding_window": False}, 8192).windowed_layers == 32


def test_the_language_model_of_one_that_reads_pictures_is_read(tmp_path: Path) -> None:
    inside = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    pictures = {"model_type": "gemma3", "text_config": inside, "vision_config": {"hidden_size": 9}}
    assert read(tmp_path, pictures).hidden_size == 2560
    wrong = {**pictures, "text_config": {**inside, "hidden_size": 0}}
    with pytest.raises(SpaceError, match=r"config.json:5:\d+: key 'text_config.hidden_size'"):
        read(tmp_path, wrong)


def test_some_layers_of_a_mixture_are_dense(tmp_path: Path) -> None:
    qwen = {"model_type": "qwen3_moe", "num_hidden_layers": 8}
    assert read(tmp_path, {**qwen, "mlp_only_layers": [0, 3]}).dense_layers == 2
    assert read(tmp_path, {**qwen, "decoder_sparse_step": 2}).dense_layers == 4
    deepseek = read(tmp_path, {"model_type": "deepseek_v3", "n_shared_experts": 2})
    assert (deepseek.dense_layers, deepseek.shared_ffn_hidden_size) == (3, 4096)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"hidden_size": 64}, r":1:1: key 'model_type': found nothing"),
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            r":2:17: key 'model_type': found 't5' of 'T5For\w+', accepted bloom, .*\(\*\.yaml\)",
        ),
        ({**LLAMA, "model_type": "lama"}, "did you mean 'llama'"),
        ({**LLAMA, "hidden_size": "2048"}, r":6:18: key 'hidden_size': found '2048', accepted a w"),
        ({**LLAMA, "hidden_size": True}, "found true, accepted a whole number"),
        ({**LLAMA, "hidden_size": None}, "found nothing, accepted a whole number"),
        ({**LLAMA, "vocab_size": 1}, "found 1, accepted a whole number from 2"),
        ({**LLAMA, "hidden_size": 10**12}, "accepted a whole number"),
        ({**LLAMA, "tie_word_embeddings": 1}, "found 1, accepted true or false"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_heads 32 is not divisible by num_kv_heads 5"),
        ({**LLAMA, "num_hidden_layers": 10**6}, "accepted a whole number from 1 to 100,000"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "found 512, accepted hidden_size, 768"),
        ({"model_type": "gemma3_text", "layer_types": [1]}, "accepted a list of texts"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": 3}, "found 3, accepted a list of layers"),
    ],
)
def test_what_describes_no_model_is_one_clear_error(
    config: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(SpaceError, match=complaint) as caught:
        read(tmp_path, config)
    assert str(caught.value).startswith(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{'model_type': 'llama'}", ":1:2: not JSON"),
        ("", ":1:1: not JSON"),
        ("[]", "key 'model_type': found nothing"),
        ('{"model_type": "llama", "model_type": "gpt2"}', "found twice"),
    ],
)
def test_a_file_that_is_no_json_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(SpaceError, match=complaint):
        read_config(file)


@pytest.mark.heavy
def test_transformers_counts_what_has_no_record(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers counts it")
    helium = {"model_type": "helium", "hidden_size": 2560, "num_hidden_layers": 24}
    helium |= {"num_attention_heads": 20, "intermediate_size": 7040, "vocab_size": 48000}
    helium |= {"max_position_embeddings": 4096, "num_key_value_heads": 20}
    model = read(tmp_path, helium)
    assert model.num_parameters == _counted(pytest.importorskip("transformers"), helium)[1]
    mamba = {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64}
    with pytest.raises(SpaceError, match="num_attention_heads"):
        read(tmp_path, mamba)
