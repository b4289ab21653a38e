"""Every shipped adapter keeps the same promises: what it maps is written, read again and frozen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from foundation.documents import read_document
from foundation.records import validate
from search_spaces import SearchSpace, SpaceError, load_space, shipped_records
from search_spaces.language.adapter_schema import AdapterFile
from search_spaces.language.schema import ModelFile
from search_spaces.rules.facts import DERIVED
from search_spaces.shipped import known_file, read_named
from search_spaces.trainers import config_files, model_keys, options
from trainer.plan.model import ModelConfig

Load = Callable[[str], SearchSpace]
ADAPTERS = [*shipped_records("adapter")]
MODELS = ("gpt_22b", "llama_8b", "llama_70b", "tiny", "mixtral_8x7b", "deepseek_v3", "gpt_oss_120b")
# Of the parameters that meshtune knows; those of an adapter's own have what its record names.
VALUES: dict[str, list[Any]] = {
    **{name: [1, 2] for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "gas")},
    **{name: [True, False] for name in ("sequence_parallel", "overlap_grad_reduce")},
    **{name: [True, False] for name in ("account_for_embedding", "account_for_loss")},
    "zero_stage": [1, 0, 2, 3],
    "recompute": ["none", "selective", "full"],
    "recompute_modules": ["none", "mlp", "mla_up_proj,moe_act"],
    **{name: [False, True] for name in ("overlap_param_gather", "moe_comm_overlap")},
    **{name: [False, True] for name in ("packing", "compile")},
    "precision": ["bf16", "fp16", "fp32"],
    "cuda_graphs": ["none", "layers", "step"],
    "tuning": ["lora", "full", "qlora"],
    "lora_rank": [8, 16],
    "max_length": [4096, 8192],
    "fsdp_version": [2, 1],
    "lora_dropout": [0.0, 0.05],
    "lora_targets": ["linear", "attention", "qv"],
    **{f"offload_{what}": [False, True] for what in ("activations", "optimizer", "parameters")},
    "partition_activations": [False, True],
    "rank_order": ["tp-cp-dp-pp", "tp-pp-cp-dp"],
    "pipeline_layout": ["none", "Et*8|(t*8|)*2t*8L"],
}
PASTED = ("tp", "pp", "cp", "mbs", "zero_stage")


def record_of(name: str) -> AdapterFile:
    return validate(AdapterFile, read_document(known_file(name), SpaceError))


def model_named(name: str) -> ModelConfig:
    return read_named(ModelFile, "model", name).config()


def values_of(adapter: AdapterFile) -> dict[str, list[Any]]:
    """Values for every parameter that an adapter has settings of."""
    found: dict[str, list[Any]] = {"mbs": [1, 2], "gas": [4, 8]}
    for name, settings in adapter.settings.items():
        whens = " ".join(setting.when or "" for setting in settings)
        named = re.findall(rf"\b{name} == '(\w+)'", whens)
        if name in DERIVED:
            continue
        if name in VALUES:
            found[name] = VALUES[name] + ["fp8"] * ("fp8" in named)
        elif re.search(rf"\b{name} [<>]", whens):
            found[name] = [0, 3]
        elif any(setting.when in (name, f"not {name}") for setting in settings):
            found[name] = [False, True]
        else:
            found[name] = [*named, "other"] if named else ["one", "two"]
    return found | {"gas": [4, 8]}


def space_text(adapter: AdapterFile, parameters: dict[str, Any], folder: Path, more: str) -> str:
    trainer: dict[str, Any] = {"adapter": adapter.name, "entry": "train.py"}
    if adapter.file is not None and "config" not in more:
        base = folder / ("base" + Path(adapter.file.name).suffix)
        base.write_text("" if base.suffix == ".toml" else "{}")
        trainer["config"] = base.name
    if adapter.log is None:
        trainer["result"] = {"patterns": {"tokens_per_second": "tps: ([0-9]+)"}}
    trainer |= json.loads(more)
    space = {
        "version": 1,
        "cluster": "dgx_h100",
        "model": "llama_8b",
        "trainer": trainer,
        "parameters": {"num_nodes": [2], **parameters},
        "objective": {"maximize": "samples_per_second"},
    }
    return json.dumps(space)


def rendered(space: SearchSpace, config: dict[str, Any]) -> tuple[Any, ...]:
    config = space.canonical(config)
    return space.command(config, "/t"), space.files(config, "/t"), space.environment(config, "/t")


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_value_of_every_parameter_reaches_the_trainer(
    name: str, load: Load, tmp_path: Path
) -> None:
    adapter = record_of(name)
    values = values_of(adapter)
    space = load(space_text(adapter, values, tmp_path, "{}"))
    # A parameter may be heeded only beside others: it need not matter in each of these.
    bases = [
        {key: each[index] for key, each in values.items()} | {"num_nodes": 2}
        for index in (0, 1, -1)
    ]
    enabling = {"zero_stage": 1, "sequence_parallel": True, "overlap_grad_reduce": True}
    bases.append(bases[1] | {key: value for key, value in enabling.items() if key in values})
    for parameter, each in values.items():
        if all(setting.given for setting in adapter.settings.get(parameter, [])):
            continue  # heeded beside certain options of the user's own alone
        assert any(
            len({repr(rendered(space, base | {parameter: value})) for value in each}) > 1
            for base in bases
        ), parameter
    frozen = tmp_path / "frozen.yaml"
    frozen.write_text(space.frozen())
    again = load_space(frozen)
    assert again.fingerprint == space.fingerprint
    assert rendered(again, bases[1]) == rendered(space, bases[1])


@pytest.mark.parametrize("name", ADAPTERS)
def test_what_was_written_says_the_parameters_when_it_is_pasted(
    name: str, load: Load, tmp_path: Path
) -> None:
    adapter = record_of(name)
    values = {key: each[:2] for key, each in values_of(adapter).items()}
    space = load(space_text(adapter, values, tmp_path, "{}"))
    config = {key: each[-1] for key, each in values.items()} | {"num_nodes": 2}
    config |= {"zero_stage": 1} if "zero_stage" in values else {}
    command, files, _ = rendered(space, config)
    more: dict[str, Any] = {"args": [str(text) for text in command[len(adapter.command) :]]}
    for file, text in files.items():
        (tmp_path / file).write_text(text)
        more["config"] = file
    pasted = load(space_text(adapter, {"mbs": [config["mbs"]], "gas": [8]}, tmp_path,
                             json.dumps(more)))  # fmt: skip
    for parameter in PASTED:
        read = [parameter] if parameter in pasted.parameters else []
        said = [
            {**each.arguments, **each.file}.values()
            for each in adapter.settings.get(parameter, [])
            if not each.given
        ]
        needed = [parameter] if any(f"{{{parameter}}}" in each for each in said) else []
        for found in {*read, *needed}:
            assert pasted.parameters[found].values == (config[found],), found


@pytest.mark.parametrize("name", ADAPTERS)
def test_what_a_user_keeps_is_neither_resumed_nor_written_over(
    name: str, load: Load, tmp_path: Path
) -> None:
    """Nor is one trial's folder another's, and an option is not switched off by leaving it out."""
    adapter = record_of(name)
    own = "{trial_dir}/output"
    always = {key: v for each in adapter.always for key, v in each.arguments.items()}
    assert adapter.options == "key=value" or not any(each is False for each in always.values())
    options_of_mine = {key: "/mine" for key, value in always.items() if value == own}
    version = {s.given[0]: "x" for s in adapter.always if s.given and own in s.arguments.values()}
    args = options.written({**version, **options_of_mine}, adapter.options)
    more: dict[str, Any] = {"args": args}
    kept = [key for each in adapter.always for key, v in each.file.items() if v == own]
    if kept:
        content: dict[str, Any] = {}
        for key in kept:
            section, _, last = key.rpartition(".")
            (content.setdefault(section, {}) if section else content)[last] = "/mine"
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
        more["config"] = "own.yaml"
    values = {key: each[:1] for key, each in values_of(adapter).items()}
    space = load(space_text(adapter, values, tmp_path, json.dumps(more)))
    text = repr(rendered(space, {key: each[0] for key, each in values.items()} | {"num_nodes": 2}))
    assert "/mine" not in text
    assert text.count("/t/output") == len(options_of_mine) + len(kept)


def told_of(adapter: AdapterFile, model: ModelConfig) -> dict[str, Any]:
    """What a trial's trainer is told of the model."""
    return config_files.filled(model_keys.written(adapter.model, model, {}), model.model_dump())  # type: ignore[no-any-return]


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", [name for name in ADAPTERS if record_of(name).model])
def test_a_model_is_read_as_it_was_written(name: str, model_name: str) -> None:
    adapter, model = record_of(name), model_named(model_name)
    if model_keys.unwritten(adapter.model, model) or model_keys.contradiction(
        adapter.model, {}, model
    ):
        return  # what the trainer is not told is named by `export`; another model is refused
    told = told_of(adapter, model)
    if adapter.model_in == "arguments":
        told = options.read(options.written(told, adapter.options), adapter.options)
    else:
        told = json.loads(json.dumps(told))
    assert "{" not in json.dumps(list(told.values()))
    assert not model_keys.contradiction(adapter.model, told, model)
    needed = {name for name, field in ModelConfig.model_fields.items() if field.is_required()}
    if not needed <= adapter.model.keys():
        return
    if any(key.text and not key.reads and f"{{{field}}}" not in key.text and key.key in told
           for field, key in adapter.model.items()):  # fmt: skip
        with pytest.raises(SpaceError, match="name the space's model"):
            model_keys.read(adapter.model, told)
        return
    again = model_keys.read(adapter.model, told)
    assert again is not None
    assert comparable(again) == comparable(model)


def comparable(model: ModelConfig) -> dict[str, Any]:
    """A model's record, with what its open fields come to."""
    resolved = {"num_kv_heads": model.kv_heads, "ffn_hidden_size": model.ffn_size}
    return {**model.model_dump(), **resolved}


def test_a_gated_model_of_unnamed_width_has_megatrons_own() -> None:
    keys = record_of("megatron-lm").model
    told = {"num-layers": 2, "hidden-size": 4096, "num-attention-heads": 32, "vocab-size": 1000,
            "seq-length": 128}  # fmt: skip
    plain, gated = model_keys.read(keys, told), model_keys.read(keys, {**told, "swiglu": True})
    assert plain is not None and gated is not None
    assert (plain.ffn_size, gated.ffn_size) == (16384, 10880)  # 4 h; 8/3 h in whole 64s
    model = ModelConfig(
        num_layers=2, hidden_size=64, num_heads=4, vocab_size=99, seq_length=32, activation="swiglu"
    )
    assert model_keys.written(keys, model, {})["ffn-hidden-size"] == 256


def test_megatrons_list_of_layers_with_experts_is_read() -> None:
    keys = record_of("megatron-lm").model
    model = model_named("deepseek_v3")
    told = told_of(record_of("megatron-lm"), model)
    assert told["moe-layer-freq"] == "([0]*3+[1]*58)"
    assert model_keys.read(keys, {**told, "moe-layer-freq": 1}).dense_layers == 0  # type: ignore[union-attr]
    for text, dense in (("([1]*61)", 0), ("[0]+[1]*60", 1)):
        told_so = model_keys.read(keys, {**told, "moe-layer-freq": text})
        assert told_so is not None and told_so.dense_layers == dense
    # As examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh of NVIDIA/Megatron-LM has it (d98e8a6).
    bare = model_keys.read(keys, {**told, "moe-layer-freq": "[0]*3+[1]*58"})
    assert bare is not None and bare.dense_layers == 3
    with pytest.raises(SpaceError, match="cannot be read: name the space's model"):
        model_keys.read(keys, {**told, "moe-layer-freq": "[0,1]*30"})
    assert "moe-layer-freq" in model_keys.contradiction(
        keys, {"moe-layer-freq": "([0]*1+[1]*60)"}, model
    )


def test_nanotrons_experts_are_no_dense_model() -> None:
    """Of MoEConfig in nanotron's models_config.py (2411b02), with its defaults."""
    keys = record_of("nanotron").model
    sizes = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 99}
    sizes |= {"intermediate_size": 768, "moe_config.num_experts": 8, "moe_config.top_k": 2}
    told: dict[str, Any] = {f"model.model_config.{name}": size for name, size in sizes.items()}
    told["tokens.sequence_length"] = 128
    model = model_keys.read(keys, told)
    assert model is not None and model.mixture is not None
    assert (model.num_experts, model.experts_per_token) == (8, 2)
    assert (model.expert_ffn_hidden_size, model.shared_ffn_hidden_size) == (1408, 0)
    shared = {**told, "model.model_config.moe_config.enable_shared_expert": True}
    assert model_keys.read(keys, shared).shared_ffn_hidden_size == 5632  # type: ignore[union-attr]


def test_neox_reads_keys_with_dashes_and_the_width_of_gated_units(
    load: Load, tmp_path: Path
) -> None:
    """Its intermediate size is that of all three matrices of a gated unit together."""
    (tmp_path / "own.yml").write_text(
        "pipe-parallel-size: 2\nnum-layers: 32\nactivation: swiglu\nintermediate-size: 43008\n"
        "tokenizer-type: HFTokenizer\nhostfile: /h\nfp16: {enabled: true}\n"
    )
    parameters = {"tp": [2], "mbs": [1], "gas": [4], "zero_stage": [1], "precision": ["bf16"]}
    space = load(space_text(record_of("neox"), parameters, tmp_path, '{"config": "own.yml"}'))
    assert space.parameters["pp"].values == (2,)
    config = {"num_nodes": 2, "pp": 2, **{name: each[0] for name, each in parameters.items()}}
    command, files, environment = rendered(space, config)
    written = yaml.safe_load(files["neox.yml"])
    assert (written["intermediate_size"], written["global_num_gpus"]) == (43008, 16)
    assert (written["pipe_parallel_size"], written["precision"]) == (2, "bfloat16")
    assert written["fp16"] == {"enabled": False}
    assert written["zero_optimization"] == {"stage": 1}
    assert written["train_batch_size"] == 16
    assert not {"hostfile", "pipe-parallel-size"} & written.keys()
    assert (command[-2:], environment["CUDA_DEVICE_MAX_CONNECTIONS"]) == (
        ("train.py", "neox.yml"),
        "1",
    )
    (tmp_path / "own.yml").write_text("num-layers: 40\n")
    with pytest.raises(SpaceError, match="num_layers 40, the space's model has num_layers 32"):
        load(space_text(record_of("neox"), parameters, tmp_path, '{"config": "own.yml"}'))
