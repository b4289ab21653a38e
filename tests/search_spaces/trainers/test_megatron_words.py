"""Megatron's words for stages and recomputed modules, from a pasted line to a trial's command."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from search_spaces import SearchSpace, SpaceError
from search_spaces.export import Export

Load = Callable[[str], SearchSpace]
STAGES = """\
version: 1
cluster: dgx_h100
model: {{num_layers: {layers}, hidden_size: 256, num_heads: 8, vocab_size: 1000, seq_length: 128}}
trainer: {{adapter: megatron-lm, args: [{args}]}}
parameters: {{pp: [1, 8], mbs: 1, gas: 64, {more}}}
objective: {{maximize: tokens_per_second}}
"""


def test_megatron_is_told_the_layers_of_its_stages(load: Load) -> None:
    space = load(STAGES.format(layers=70, args="", more="last_stage_layers: [0, 7, 14]"))
    config = {"pp": 8, "mbs": 1, "gas": 64}
    command = " ".join(space.command({**config, "last_stage_layers": 14}, "/t"))
    assert "--decoder-last-pipeline-num-layers 14" in command
    assert "--decoder-last" not in " ".join(space.command({**config, "pp": 1}, "/t"))
    for layers, valid in ((0, False), (7, True), (14, True)):
        assert (space.first_violation({**config, "last_stage_layers": layers}) is None) is valid


def test_what_pasted_arguments_say_of_stages_is_known(load: Load) -> None:
    given = "--decoder-first-pipeline-num-layers, '7'"
    space = load(STAGES.format(layers=70, args=given, more="tp: 1"))
    assert space.parameters["first_stage_layers"].values == (7,)
    config = {"pp": 8, "mbs": 1, "gas": 64, "tp": 1, "first_stage_layers": 7}
    assert space.first_violation(config) is None
    counted = ", ".join(f"--account-for-{end}-in-pipeline-split" for end in ("embedding", "loss"))
    space = load(STAGES.format(layers=126, args=counted, more="vpp: [1, 8]"))
    config = {"pp": 8, "mbs": 1, "gas": 64, "vpp": 8}
    config |= {"account_for_embedding": True, "account_for_loss": True}
    assert space.first_violation(config) is None
    # Two of 128 on each of 64 chunks, of which it takes two for embedding and loss.
    assert "--num-layers-per-virtual-pipeline-stage 2" in " ".join(space.command(config, "/t"))


@pytest.mark.parametrize(
    ("adapter", "given", "said"),
    [
        ("megatron-lm", "--recompute-modules mlp", "mlp"),
        ("megatron-lm", "--recompute-modules mlp moe_act --use-flash-attn", "mlp,moe_act"),
        ("megatron-lm", "--recompute-modules=mlp --use-flash-attn", "mlp"),
        ("megatron-bridge", "model.recompute_modules=[mlp]", "mlp"),
        ("megatron-bridge", "'model.recompute_modules=[mlp, moe_act]'", "mlp,moe_act"),
        ("megatron-bridge", "model.recompute_modules=[]", ""),
        ("megatron-bridge", "model.recompute_modules=null", None),
    ],
)
def test_modules_that_pasted_arguments_repeat_are_known_and_given_on(
    load: Load, adapter: str, given: str, said: str | None
) -> None:
    written = STAGES.format(layers=64, args="", more="tp: 1, recompute: [full, selective]")
    whole = f"{{adapter: {adapter}, entry: train.py, args: {json.dumps(given)}}}"
    space = load(written.replace("{adapter: megatron-lm, args: []}", whole))
    modules = space.parameters.get("recompute_modules")
    assert (modules and modules.values) == (None if said is None else (said,))
    for recompute in ("full", "selective"):
        config = {"pp": 8, "mbs": 1, "gas": 64, "tp": 1, "recompute": recompute}
        config |= {} if said is None else {"recompute_modules": said}
        command = " ".join(space.command(space.canonical(config), "/t"))
        told = f"model.recompute_modules=[{said}]"
        if adapter == "megatron-lm":
            told = f"--recompute-modules {' '.join((said or '').split(','))}"
        assert (told in command) is (recompute == "selective" and said is not None)
        assert command.count("recompute-modules") + command.count("recompute_modules") <= 1
        exported = Export.of(space, config, adapter)
        assert ([*told.split()] in map(list, exported.arguments)) is (told in command)


@pytest.mark.parametrize("text", ["core_attn moe_act", "core_attn, moe_act", "core_attn,moe_atc"])
def test_a_module_that_has_no_price_is_an_error_of_its_line(load: Load, text: str) -> None:
    more = f'tp: 1, recompute: selective, recompute_modules: [none, "{text}"]'
    with pytest.raises(SpaceError) as error:
        load(STAGES.format(layers=64, args="", more=more))
    assert f"found {text!r}" in str(error.value) or f'found "{text}"' in str(error.value)
    assert "accepted none, or some of core_attn, layernorm" in str(error.value)
    assert "parameters.recompute_modules[1]" in str(error.value)


@pytest.mark.parametrize(
    ("given", "stated"),
    [
        ("--optimizer-cpu-offload, --use-precision-aware-optimizer", {"offload_optimizer"}),
        ("--use-torch-fsdp2, --no-gradient-accumulation-fusion", {"zero_stage"}),
        # What goes with another option, but is also stated by itself.
        ("--use-precision-aware-optimizer", set()),
        ("--no-gradient-accumulation-fusion", set()),
        ("--no-check-for-nan-in-loss-and-grad", set()),
    ],
)
def test_an_option_that_goes_with_others_states_nothing_by_itself(
    load: Load, given: str, stated: set[str]
) -> None:
    own = "tp: 1, zero_stage: 1" if "zero_stage" not in stated else "tp: 1"
    space = load(STAGES.format(layers=70, args=given, more=own))
    of_them = {"offload_optimizer", "zero_stage", "cuda_graphs"}
    expected = stated | ({"zero_stage"} if "zero_stage" in own else set())
    assert of_them & space.parameters.keys() == expected


@pytest.mark.parametrize(("option", "gated"), [("--quick-geglu", True), ("--squared-relu", False)])
def test_a_unit_that_another_function_gates_has_three_matrices(
    load: Load, option: str, gated: bool
) -> None:
    sizes = "--num-layers 4 --hidden-size 256 --ffn-hidden-size 512 --num-attention-heads 8"
    given = f"{sizes} --vocab-size 1000 --seq-length 128 {option}"
    text = STAGES.format(layers=4, args=", ".join(given.split()), more="tp: 1")
    space = load("".join(line + "\n" for line in text.splitlines() if line[:6] != "model:"))
    assert space.model is not None
    assert (space.model.activation == "swiglu") == gated
    command = space.command({"pp": 1, "mbs": 1, "gas": 64, "tp": 1}, "/t")
    assert command.count(option) == 1 and "--swiglu" not in command


@pytest.mark.parametrize(("channels", "accepted"), [(32, True), (64, False)])
def test_channels_of_a_head_are_compared_with_the_models(
    load: Load, channels: int, accepted: bool
) -> None:
    text = STAGES.format(layers=4, args=f"--kv-channels, '{channels}'", more="tp: 1")
    if accepted:
        assert load(text).model is not None
    else:
        with pytest.raises(SpaceError, match=r"found kv-channels 64.*head_size 32"):
            load(text)


def test_experts_that_a_record_lacks_are_refused_not_left_out(load: Load) -> None:
    text = STAGES.replace("megatron-lm, ", "megatron-deepspeed, entry: pretrain_gpt.py, ")
    assert load(text.format(layers=4, args="--num-experts, '1'", more="tp: 1")).model is not None
    with pytest.raises(SpaceError, match="found num-experts 128, accepted 1"):
        load(text.format(layers=4, args="--num-experts, '128'", more="tp: 1"))
