"""From an adapter's record to the command, the file and the environment of a trial."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search_spaces import SearchSpace, SpaceError, load_space, notes
from search_spaces.trainers import options

Load = Callable[[str], SearchSpace]
SPACE = """\
version: 1
cluster: dgx_h100
model: {{num_layers: 4, hidden_size: 256, num_heads: 8, vocab_size: 1000, seq_length: 128}}
trainer:
  adapter: mine.yaml
  {more}
parameters:
  tp: [1, 2, 4]
  pp: [1, 2]
  mbs: [1, 2]
  gas: [4]
  recompute: [none, full]
objective: {{maximize: tokens_per_second}}
"""
MODEL_LINE = next(line for line in SPACE.format(more="").splitlines(True) if line[:5] == "model")
CONFIG = {"tp": 2, "pp": 1, "mbs": 1, "gas": 4, "recompute": "none"}
ADAPTER = """\
name: mine
source: this test
framework: fsdp
log: torchtitan
command: [python, "{entry}"]
entry: train.py
options: --key=value
file: {name: run.json, arguments: [--config, run.json]}
settings:
  tp: {arguments: {tp: "{tp}"}}
  pp: {file: {parallel.pp: "{pp}"}}
  mbs: {arguments: {mbs: "{mbs}"}, environment: {BATCH: "{mbs * gas}"}}
  global_batch_size: {arguments: {batch: "{global_batch_size}"}}
  sequence_parallel: {when: sequence_parallel, arguments: {sp: true}}
  recompute:
    - {when: recompute == 'full', file: {checkpointing.mode: full}}
conditions: {sequence_parallel: tp > 1}
constraints: {tp: [tp <= 2]}
always:
  - arguments: {steps: "{warmup_steps + measured_steps}"}
  - {unless: [data], arguments: {fake: true}}
dropped: [save, checkpoint.folder]
model_in: file
model:
  num_layers: model.layers
  hidden_size: model.width
  num_heads: model.heads
  vocab_size: model.vocab
  seq_length: {key: model.length, also: {model.positions: 2048}}
  norm: {key: model.norm, values: {layernorm: LN, rmsnorm: RMS}, default: layernorm}
  linear_bias: {key: model.bias, values: {"true": 1, "false": 0}, default: true}
"""


@pytest.fixture(autouse=True)
def adapter(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(ADAPTER)


def space_of(load: Load, more: str = "args: []", old: str = "", new: str = "") -> SearchSpace:
    return load(SPACE.format(more=more).replace(old, new) if old else SPACE.format(more=more))


def test_a_configuration_becomes_arguments_file_and_environment(load: Load) -> None:
    space = space_of(load)
    assert space.command(CONFIG, "/t") == (
        "python", "train.py", "--config", "run.json",
        "--steps=7", "--fake", "--tp=2", "--mbs=1", "--batch=16",
    )  # fmt: skip
    assert space.environment(CONFIG, "/t") == {"BATCH": "4"}
    written = json.loads(space.files(CONFIG, "/t")["run.json"])
    assert written == {
        "model": {"layers": 4, "width": 256, "heads": 8, "vocab": 1000, "length": 128,
                  "positions": 2048},
        "parallel": {"pp": 1},
    }  # fmt: skip
    full = json.loads(space.files(CONFIG | {"recompute": "full"}, "/t")["run.json"])
    assert full["checkpointing"] == {"mode": "full"}
    assert space.program.framework == "fsdp"
    assert "tokens_per_second_per_gpu" in space.program.log.patterns
    assert space.first_violation(CONFIG | {"tp": 4}) == "constraint_1: tp <= 2 (tp 4)"


def test_what_a_space_says_of_its_tokens_joins_the_adapters_log(load: Load) -> None:
    said = "padded_by: mbs, real_if: unpadded, rows_vary: true, patterns: {loss: 'loss (\\d+)'}"
    objective = "objective: {minimize: loss}"  # none of tokens, which this log cannot count
    log = space_of(
        load, "result: {" + said + "}", "objective: {maximize: tokens_per_second}", objective
    ).program.log
    assert (log.padded_by, log.real_if, log.rows_vary) == ("mbs", "unpadded", True)
    assert "tokens_per_second_per_gpu" in log.patterns


def test_the_file_is_named_once_where_the_pasted_command_line_names_it(load: Load) -> None:
    space = space_of(load, "args: [--config, /home/me/own.json, --lr=1]")
    command = space.command(CONFIG, "/t")
    assert command[2:5] == ("--config", "run.json", "--lr=1")
    assert "/home/me/own.json" not in command


def test_the_frozen_space_needs_the_adapter_no_more(load: Load, tmp_path: Path) -> None:
    space = space_of(load)
    (tmp_path / "mine.yaml").unlink()
    frozen = tmp_path / "frozen.yaml"
    frozen.write_text(space.frozen())
    again = load_space(frozen)
    assert again.fingerprint == space.fingerprint
    assert again.command(CONFIG, "/t") == space.command(CONFIG, "/t")
    assert again.files(CONFIG, "/t") == space.files(CONFIG, "/t")


def test_a_pasted_command_line_keeps_what_the_search_does_not_set(load: Load) -> None:
    pasted = (
        "args: [--lr=1, --tp=4, --mbs=2, --batch=64, --steps=100000, --save=/c, --data, a, b, --sp]"
    )
    space = space_of(load, pasted, "  mbs: [1, 2]\n  gas: [4]\n", "")
    # What it fixes is a parameter of one value, and gas what the batch leaves it.
    assert space.parameters["mbs"].values == (2,)
    assert space.parameters["sequence_parallel"].values == (True,)
    assert space.parameters["gas"].values == (1, 2, 4, 8, 16, 32, 64)
    config = {"tp": 2, "pp": 1, "mbs": 2, "gas": 8, "recompute": "none", "sequence_parallel": True}
    assert space.command(config, "/t") == (
        "python", "train.py", "--config", "run.json", "--lr=1", "--data", "a", "b",
        "--steps=7", "--tp=2", "--mbs=2", "--batch=64", "--sp",
    )  # fmt: skip
    assert space.first_violation(config) is None
    assert "global_batch_size == 64" in str(space.first_violation(config | {"gas": 4}))
    alone = {name: v for name, v in config.items() if name != "sequence_parallel"} | {"tp": 1}
    assert "--sp" not in space.command(alone | {"gas": 4}, "/t")


def test_a_command_line_may_be_one_text(load: Load) -> None:
    space = space_of(
        load,
        """args: >
    --lr=1e-4 --data 'a b' \\
    --seed 7   # the third try""",
    )
    listed = space_of(load, "args: [--lr=1e-4, --data, 'a b', --seed, 7]")
    assert space.trainer.command == listed.trainer.command
    with pytest.raises(SpaceError, match="accepted a command line"):
        space_of(load, 'args: "--data \'a"')


def test_the_users_own_file_is_the_base_and_says_the_model(load: Load, tmp_path: Path) -> None:
    own = {
        "model": {"layers": 2, "width": 64, "heads": 4, "vocab": 99, "length": 32, "norm": "RMS",
                  "bias": 0},
        "parallel": {"pp": 7},
        "checkpoint": {"folder": "/c", "every": 5},
    }  # fmt: skip
    (tmp_path / "own.json").write_text(json.dumps(own))
    space = space_of(load, "config: own.json", MODEL_LINE, "")
    assert space.model is not None
    assert (space.model.num_layers, space.model.norm, space.model.linear_bias) == (
        2,
        "rmsnorm",
        False,
    )
    written = json.loads(space.files(CONFIG, "/t")["run.json"])
    assert written == own | {"parallel": {"pp": 1}, "checkpoint": {"every": 5}}


@pytest.mark.parametrize(
    ("more", "old", "new", "told"),
    [
        ("args: []", "mine.yaml", "megatron-lmm", "did you mean 'megatron-lm'"),
        ("args: []", "mine.yaml", "none.yaml", "none.yaml"),
        ("config: none.json", "", "", "none.json"),
        ("command: [x]", "", "", "exactly one of: builtin, adapter, command, use"),
        ("options: {a: 1}", "", "", "'options' goes with 'use'"),
        ("args: []", "  gas: [4]\n", "", "told mbs by gas: add the space's parameter gas"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(load: Load, more: str, old: str, new: str, told: str) -> None:
    with pytest.raises(SpaceError) as error:
        space_of(load, more, old, new)
    assert told in str(error.value)
    assert "space.yaml:" in str(error.value)


def test_two_models_are_told(load: Load, tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"model": {"layers": 5}}')
    with pytest.raises(SpaceError, match=r"model\.layers 5, the space's model has num_layers 4"):
        space_of(load, "config: own.json")


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ("block", "{when: 'recompute == \"block\"', file: {mode: block}}"),
        ("per-block", "{when: recompute == 'per-block', file: {mode: block}}"),
        ("mine", "{when: recompute != 'none', file: {mode: full}}"),
        ("mine", "{file: {mode: \"{1 if recompute == 'mine' else 0}\"}}"),
    ],
)
def test_words_of_a_trainer_of_ones_own_are_ones_own(
    load: Load, tmp_path: Path, words: str, setting: str
) -> None:
    """Nobody else knows what they mean."""
    usual = "{when: recompute == 'full', file: {checkpointing.mode: full}}"
    record = (tmp_path / "mine.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(record.replace(usual, setting))
    assert usual in record
    space = load(SPACE.format(more="").replace("[none, full]", f"[none, {words}]"))
    assert space.parameters["recompute"].values == ("none", words)


def test_litgpt_in_fp16_is_told_so(load: Load) -> None:
    text = SPACE.format(more="entry: pretrain").replace("mine.yaml", "litgpt")
    text = text.replace("  tp: [1, 2, 4]\n  pp: [1, 2]\n", "").replace("[none, full]", "none")
    space = load(text.replace("recompute: none", "precision: [bf16, fp16]"))
    command = space.command({"mbs": 1, "gas": 4, "precision": "fp16"}, "/t")
    assert "--precision 16-true" in " ".join(command)


def test_words_that_a_setting_passes_on_are_accepted(load: Load) -> None:
    accelerate = SPACE.format(more="entry: train.py").replace("mine.yaml", "accelerate")
    passed = accelerate.replace("recompute: [none, full]", "precision: [bf16, fp8]")
    assert load(passed).parameters["precision"].values == ("bf16", "fp8")


def test_a_setting_follows_the_version_that_the_users_own_are_of(
    load: Load, tmp_path: Path
) -> None:
    text = ADAPTER.replace(
        '  mbs: {arguments: {mbs: "{mbs}"}, environment: {BATCH: "{mbs * gas}"}}',
        """\
  mbs:
    - {given: [old], file: {old.batch: "{mbs}"}}
    - {unless: [old], when: pp == 1, file: {new.batch: "{mbs}"}}
    - {unless: [old], when: pp > 1, file: {new.batch: "{mbs * gas}"}}""",
    )
    (tmp_path / "mine.yaml").write_text(text)

    def written(own: dict[str, Any], **changes: Any) -> Any:
        (tmp_path / "own.json").write_text(json.dumps(own))
        space = space_of(load, "config: own.json", "  mbs: [1, 2]\n", "")
        assert space.parameters["mbs"].values == (2,)
        return json.loads(space.files(CONFIG | {"mbs": 2} | changes, "/t")["run.json"])

    assert written({"old": {"batch": 2}})["old"] == {"batch": 2}
    assert "new" not in written({"old": {"batch": 2}})
    assert written({"new": {"batch": 2}})["new"] == {"batch": 2}
    assert written({"new": {"batch": 2}}, pp=2)["new"] == {"batch": 8}


def test_a_file_whose_paths_are_options_is_written_where_there_is_one(
    load: Load, tmp_path: Path
) -> None:
    text = ADAPTER.replace("arguments: [--config, run.json]}", "arguments: [-c, f], options: true}")
    text = text.replace('pp: {file: {parallel.pp: "{pp}"}}', 'pp: {arguments: {pp: "{pp}"}}')
    text = text[: text.index("model_in")].replace(
        "- {when: recompute == 'full', file: {checkpointing.mode: full}}",
        "- {when: recompute == 'full', arguments: {mode: full}}",
    )
    (tmp_path / "mine.yaml").write_text(text)
    without = space_of(load, "args: [fit]")
    assert without.files(CONFIG, "/t") == {}
    assert without.command(CONFIG, "/t")[1:4] == ("train.py", "fit", "--steps=7")
    (tmp_path / "own.json").write_text('{"mbs": 2, "x": 1}')
    more = "config: own.json\n  args: [fit, --x=3]"
    space = space_of(load, more, "  mbs: [1, 2]\n", "")
    assert space.parameters["mbs"].values == (2,)
    assert space.command(CONFIG | {"mbs": 2}, "/t")[1:7] == (
        "train.py", "fit", "-c", "f", "--x=3", "--steps=7",
    )  # fmt: skip


def test_a_model_is_known_by_its_name(load: Load, tmp_path: Path) -> None:
    names = """
models: {keys: [family, flavor], names: {llama3 8B: llama_8b}}
"""
    more = ADAPTER.replace("  positions: 2048}}", "").replace("model_in: file\n", names)
    more = more.replace("options: --key=value", "options: --key value")
    more = more.replace('  norm: {key: model.norm, values: {layernorm: LN, rmsnorm: RMS}, default: '
                        'layernorm}', '  norm: {default: rmsnorm}')  # fmt: skip
    (tmp_path / "mine.yaml").write_text(more)
    text = "args: [--family, llama3, --flavor, 8B, --model.length, '4096']"
    space = space_of(load, text, MODEL_LINE, "")
    assert space.model is not None
    assert (space.model.num_layers, space.model.seq_length) == (32, 4096)
    assert space_of(load, text.replace("8B", "9B"), MODEL_LINE, "").model is None
    with pytest.raises(SpaceError, match=r"norm rmsnorm alone, the space's model has layernorm"):
        space_of(load, text.replace(", --model.length, '4096'", ""))


def test_a_model_that_is_named_and_another_of_the_space_are_told(
    load: Load, tmp_path: Path
) -> None:
    toml = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n'
    (tmp_path / "run.toml").write_text(toml)
    text = """
version: 1
cluster: dgx_h100
model: {}
trainer: {{adapter: torchtitan, config: run.toml}}
parameters: {{mbs: 1, gas: 8}}
objective: {{maximize: tokens_per_second}}
"""
    told = "model.name, model.flavor of a model with hidden_size 4096, the space's model has 8192"
    with pytest.raises(SpaceError, match=told):
        load(text.format("llama_70b"))
    assert load(text.format("llama_8b")).model


@pytest.mark.parametrize("style", ["--key value", "--key=value", "key=value"])
def test_options_are_read_as_they_are_written(style: str) -> None:
    given = {"a": 1, "b.c": "text", "d": 0.5, "e": 3}
    assert options.read(options.written(given, style), style) == given
    arguments = options.written(given, style)
    assert options.read(options.without(arguments, {"b.c", "e"}, style), style) == {
        "a": 1,
        "d": 0.5,
    }


def test_the_written_file_is_found_from_another_folder(load: Load, tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    space = space_of(load, "workdir: repository")
    assert space.workdir == tmp_path / "repository"
    command = space.command(CONFIG, "/t")
    assert command[command.index("--config") + 1] == "/t/run.json"


def test_habits_are_those_of_the_case_that_the_users_own_words_are_of(
    load: Load, tmp_path: Path
) -> None:
    case = "framework: fsdp\nframeworks: {zero_optimization: deepspeed-bf16, USE_IT: megatron-lm}\n"
    (tmp_path / "mine.yaml").write_text(ADAPTER.replace("framework: fsdp\n", case))
    (tmp_path / "own.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert space_of(load).program.framework == "fsdp"
    assert space_of(load, "config: own.json").program.framework == "deepspeed-bf16"
    assert space_of(load, 'env: {USE_IT: "true"}').program.framework == "megatron-lm"
    assert space_of(load, "framework: nanotron").program.framework == "nanotron"


def test_offloading_that_is_priced_has_no_note(load: Load, tmp_path: Path) -> None:
    own = "{when: offload_optimizer, file: {zero.offload_optimizer.device: cpu}}"
    more = f"settings:\n  offload_optimizer: {own}"
    (tmp_path / "mine.yaml").write_text(ADAPTER.replace("settings:", more))
    for device, priced in (("cpu", True), ("nvme", False)):
        content = {"zero": {"offload_optimizer": {"device": device}}}
        (tmp_path / "own.json").write_text(json.dumps(content))
        space = space_of(load, "config: own.json")
        assert ("offload_optimizer" in space.parameters) is priced
        assert any("offloading" in note for note in notes(space)) is not priced


@pytest.mark.parametrize(
    ("more", "content", "named"),
    [
        ("args: [--cpu-offload]", {}, "--cpu-offload"),
        ("config: own.json", {"zero": {"offload_optimizer": {"device": "cpu"}}}, "zero.offload"),
        ("config: own.json", {"zero": {"offload_optimizer": {"device": "none"}}}, ""),
        ("env: {FSDP_OFFLOAD_PARAMS: 'true'}", {}, "FSDP_OFFLOAD_PARAMS"),
    ],
)
def test_offloading_is_said_to_have_no_price(
    load: Load, tmp_path: Path, more: str, content: dict[str, object], named: str
) -> None:
    (tmp_path / "own.json").write_text(json.dumps(content))
    told = [note for note in notes(space_of(load, more)) if "offloading" in note]
    assert bool(told) == bool(named)
    assert named in "".join(told)
