"""Every kind of mistake gives one clear SpaceError: place, key, value, what is accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.refused_spaces import message

# id, what to replace in the good space, by what, line:column (None: the file only), fragments
EDITS = [
    ("unknown_key", "cluster: dgx", "clutser: dgx", "3:1", ["'clutser'", "did you mean 'cluster'"]),
    ("unknown_key_below", "    precision:", "    precison:", "7:5",
     ["trainer.builtin.precison", "data, optimizer", "did you mean 'precision'"]),
    ("searched_key_under_builtin", "    precision: fp32", "    tp: 2", "7:5",
     ["trainer.builtin.tp", "unknown key"]),
    ("duplicate_key", "cluster: dgx_h100", "version: 1", "3:1", ["'version'", "twice", "line 1"]),
    ("duplicate_parameter", "  gas:", "  tp: [1]\n  gas:", "13:3", ["'tp'", "twice"]),
    ("tab_indent", "    data:", "\tdata:", "6:", ["spaces, not tabs"]),
    ("wrong_version", "version: 1", "version: 2", "1:10", ["'version'", "found 2", "accepted 1"]),
    ("version_as_text", "version: 1", "version: '1'", "1:10", ["found '1'", "accepted 1"]),
    ("missing_version", "version: 1\n", "", "1:1", ["'version' is missing"]),
    ("missing_cluster", "cluster: dgx_h100\n", "", "1:1", ["'cluster' is missing"]),
    ("missing_model", "model: tiny\n", "", "1:1", ["'model' is missing", "built-in trainer"]),
    ("missing_objective", "objective:\n  maximize: tflops_per_gpu\n", "", "1:1",
     ["'objective' is missing"]),
    ("objective_without_direction", "  maximize: tflops_per_gpu", "  {}", "21:3",
     ["'objective'", "maximize, minimize"]),
    ("both_directions", "maximize: tflops_per_gpu", "maximize: a\n  minimize: b", "21:3",
     ["exactly one of", "are a list"]),
    ("objective_as_text", "  maximize: tflops_per_gpu", "  tflops_per_gpu", "21:3",
     ["found 'tflops_per_gpu', accepted a mapping of keys: maximize, minimize"]),
    ("objective_list_of_one", "  maximize: tflops_per_gpu", "  [maximize: a]", "21:3",
     ["'objective'", "at least 2 items"]),
    ("objective_list_of_four", "  maximize: tflops_per_gpu",
     "  [maximize: a, maximize: b, maximize: c, maximize: d]", "21:3", ["at most 3 items"]),
    ("bounds_in_objective", "maximize: tflops_per_gpu",
     "maximize: tflops_per_gpu\n  subject_to: [loss < 2]", "22:3",
     ["'objective.subject_to'", "is a key of the file itself, beside 'objective'"]),
    ("bound_of_few_bytes", "version: 1", "version: 1\nsubject_to: [peak_memory_bytes < 70]", "2:14",
     ["'subject_to[0]'", "< 70': write its unit, such as GiB or B"]),
    ("no_as_in_yaml_1_1", "version: 1", "version: 1\nfinalists: no", "2:12",
     ["found 'no'", "that is text, the boolean is false"]),
    ("on_as_in_yaml_1_1", "version: 1", "version: 1\ntrial: {early_stop: On}", "2:21",
     ["found 'On'", "accepted true or false; that is text, the boolean is true"]),
    ("objective_twice", "  maximize: tflops_per_gpu", "  [maximize: dp, minimize: dp]", "21:18",
     ["'objective[1]'", "found 'dp' twice"]),
    ("objective_misspelt_in_list", "  maximize: tflops_per_gpu", "  [maximize: a, minimise: b]",
     "21:17", ["'objective[1].minimise'", "did you mean 'minimize'"]),
    ("objective_that_never_varies", "  maximize: tflops_per_gpu",
     "  [maximize: dp, minimize: num_nodes]", "21:18",
     ["'objective[1]'", "num_nodes is the same", "under parameters"]),
    ("objective_unknown", "maximize: tflops_per_gpu", "maximize: tokens_per_secnd", "21:13",
     ["'objective.maximize'", "found 'tokens_per_secnd'", "did you mean 'tokens_per_second'"]),
    ("objective_no_number", "maximize: tflops_per_gpu", "minimize: step_time_s", "21:13",
     ["'objective.minimize'", "did you mean 'step_time_s.median'"]),
    ("objective_unknown_in_list", "  maximize: tflops_per_gpu",
     "  [maximize: dp, minimize: joules]", "21:28",
     ["'objective[1].minimize'", "found 'joules'", "accepted a figure of the built-in trainer"]),
    ("unknown_model", "model: tiny", "model: gpt_175", "2:8",
     ["'gpt_175'", "did you mean 'gpt_175b'"]),
    ("model_file_missing", "model: tiny", "model: my.yaml", "2:8",
     ["my.yaml", "there is no such file"]),
    ("unknown_cluster", "dgx_h100", "dgx_h1000", "3:10",
     ["'dgx_h1000'", "did you mean 'dgx_h100'"]),
    ("cluster_escapes_folder", "cluster: dgx_h100", "cluster: ../x", "3:10", ["'../x'"]),
    ("cluster_is_a_number", "cluster: dgx_h100", "cluster: 7", "3:10", ["found 7", "text"]),
    ("inline_model_wrong", "model: tiny", "model: {num_layers: 2.5, vocab_size: 10}", "2:1",
     ["model.num_layers", "found 2.5", "whole number", "'hidden_size' is missing"]),
    ("inline_model_indivisible", "model: tiny",
     "model: {num_layers: 2, hidden_size: 10, num_heads: 3, vocab_size: 8, seq_length: 8}",
     "2:8", ["hidden_size 10 is not divisible by num_heads 3"]),
    ("inline_cluster_unknown_key", "cluster: dgx_h100",
     "cluster: {name: c, gpus_per_node: 8, memory_gib: 8, peak_bf16_tflop: 1}", "3:53",
     ["cluster.peak_bf16_tflop", "did you mean 'peak_bf16_tflops'"]),
    ("memory_in_mib", "cluster: dgx_h100",
     "cluster: {name: c, gpus_per_node: 8, memory_gib: 81559, peak_bf16_tflops: 989}", "3:50",
     ["cluster.memory_gib", "found 81559, accepted 8192.0 or less"]),
    ("links_too_narrow", "cluster: dgx_h100",
     "cluster: {name: c, gpus_per_node: 8, memory_gib: 80, peak_bf16_tflops: 500,"
     " links: [{level: node, gpus: 6, gb_per_s: 450}]}", "3:10",
     ["key 'cluster': the outermost link spans 6 GPUs"]),
    ("trainer_is_text", "trainer:\n  builtin:\n    data: python-source\n    precision: fp32",
     "trainer: builtin", "4:10", ["'trainer'", "'builtin'", "mapping"]),
    ("two_trainers", "  builtin:", "  command: [x]\n  builtin:", "5:3",
     ["exactly one of: builtin, adapter, command"]),
    ("no_data", "    data: python-source\n", "", "5:3", ["'data' is missing"]),
    ("wrong_literal", "precision: fp32", "precision: bf61", "7:16",
     ["'bf61'", "'fp32', 'bf16' or 'fp16'", "did you mean 'bf16'"]),
    ("saved_nowhere", "precision: fp32", "save_interval: 5", "6:5",
     ["key 'trainer.builtin': save_interval 5 needs a folder: set save"]),
    ("no_fp8", "precision: fp32", "precision: fp8", "7:16", ["no FP8; set bf16, or"]),
    ("unknown_parameter", "  mbs:", "  mbz:", "12:3", ["parameters.mbz", "did you mean 'mbs'"]),
    ("derived_parameter", "  mbs:", "  dp: [1, 2]\n  mbs:", "12:3", ["parameters.dp", "derived"]),
    ("fact_as_parameter", "  mbs:", "  num_layers: [1, 2]\n  mbs:", "12:3", ["fact of the model"]),
    ("parameter_not_a_name", "  mbs:", "  m-b-s: 1\n  mbs:", "12:3", ["m-b-s", "letters"]),
    ("no_parameters", "  tp: [1, 2, 4]", "  {}\nx:", "", []),
    ("empty_list", "tp: [1, 2, 4]", "tp: []", "9:7", ["parameters.tp", "empty list", "at least 1"]),
    ("null_parameter", "tp: [1, 2, 4]", "tp:", "9:",
     ["'parameters.tp': found nothing, accepted a number, text, true or false"]),
    ("no_list", "objective:", "allow: uneven_layers\nobjective:", "", ["a list, such as [1,"]),
    ("null_in_list", "tp: [1, 2, 4]", "tp: [1, ~]", "9:11", ["'parameters.tp[1]'", "nothing"]),
    ("duplicate_value", "tp: [1, 2, 4]", "tp: [1, 2, 1]", "9:14", ["parameters.tp[2]", "1 twice"]),
    ("mixed_types", "tp: [1, 2, 4]", "tp: [1, two]", "9:11", ["parameters.tp[1]", "'two'"]),
    ("bool_for_int", "tp: [1, 2, 4]", "tp: [true, 2]", "9:8", ["found true", "whole number"]),
    ("float_for_int", "tp: [1, 2, 4]", "tp: [1.5, 2]", "9:8", ["found 1.5", "whole number"]),
    ("int_for_bool", "[false, true]", "[0, 1]", "14:23", ["found 0", "true or false"]),
    ("zero_tp", "tp: [1, 2, 4]", "tp: [0, 1]", "9:8", ["found 0", "1 or more"]),
    ("nan_value", "tp: [1, 2, 4]", "tp: [.nan]", "9:8", ["parameters.tp[0]", "nan"]),
    ("infinite_range", "{range: [1, 3]}", "{range: [1, .inf]}", "12:", ["parameters.mbs", "inf"]),
    ("huge_number", "tp: [1, 2, 4]", "tp: [1, 99999999999999999999]", "9:11", ["2^53"]),
    ("nested_list", "tp: [1, 2, 4]", "tp: [[1], 2]", "9:8", ["parameters.tp[0]"]),
    ("range_reversed", "{range: [1, 3]}", "{range: [3, 1]}", "12:16",
     ["parameters.mbs.range", "[3, 1]", "[1, 3]"]),
    ("range_of_one", "{range: [1, 3]}", "{range: [1]}", "12:16", ["at least 2 items"]),
    ("range_of_text", "{range: [1, 3]}", "{range: [a, b]}", "12:17", ["'a'", "number"]),
    ("tiny_step", "step: 2", "step: 1e-320", "13:8", ["parameters.gas", "at most 10,000"]),
    ("range_beyond_float", "{range: [1, 3]}", "{range: [1, 1" + "0" * 380 + "]}", "12:20",
     ["parameters.mbs.range[1]", "2^53"]),
    ("log2_beyond_float", "log2: [1, 4]", f"log2: [1, {2**1100}]", "10:7",
     ["parameters.pp", "accepted 1073741824 or less"]),
    ("number_beyond_float", "tp: [1, 2, 4]", "tp: 1" + "0" * 380, "9:7", ["2^53"]),
    ("budget_beyond_float", "objective:", "budget: {node_hours: 1" + "0" * 380 + "}\nobjective:",
     "20:22", ["budget.node_hours"]),
    ("model_beyond_float", "model: tiny",
     "model: {num_layers: 1" + "0" * 380 + ", hidden_size: 8, num_heads: 2, vocab_size: 8, "
     "seq_length: 8}", "2:21", ["num_layers", "accepted 100000 or less"]),
    ("version_true", "version: 1", "version: true", "1:10", ["found true", "accepted 1"]),
    ("zero_stage_true", "tp: [1, 2, 4]", "zero_stage: [true]", "9:16", ["found true"]),
    ("zero_stage_fraction", "tp: [1, 2, 4]", "zero_stage: [1.0]", "9:16", ["found 1.0"]),
    ("optimizer_wrong", "    precision:", "    optimizer: {lr: fast}\n    precision:", "7:21",
     ["trainer.builtin.optimizer.lr", "'fast'", "a number"]),
    ("escape_in_key", "model: tiny", '"\\e[31mmodel": tiny', "2:1", ["\\x1b[31mmodel"]),
    ("endless_key", "model: tiny", '"' + "k" * 900 + '": tiny', "2:1", ["kkk..."]),
    ("constraint_escape", "global_batch_size <= 64", '"tp == 1 or \\e[31m"', "19:5", ["control"]),
    ("range_too_long", "{range: [1, 3]}", "{range: [1, 9000000000]}", "12:8", ["at most 10,000"]),
    ("zero_step", "step: 2", "step: 0", "13:30", ["parameters.gas.step", "found 0", "above zero"]),
    ("negative_step", "step: 2", "step: -1", "13:30", ["found -1", "above zero"]),
    ("fraction_without_step", "{range: [1, 3]}", "{range: [0.5, 3]}", "12:8", ["needs 'step'"]),
    ("log2_of_non_power", "log2: [1, 4]", "log2: [1, 6]", "10:18", ["found 6", "powers of two"]),
    ("log2_reversed", "log2: [1, 4]", "log2: [4, 1]", "10:14", ["[4, 1]", "lower end first"]),
    ("log2_with_step", "log2: [1, 4]", "log2: [1, 4], step: 2", "10:22", ["unknown key", "log2"]),
    ("values_as_mapping", "{range: [1, 3]}", "{values: [1, 3]}", "12:8",
     ["key 'parameters.", "found a mapping, accepted a list, such as [1, 2, 4]"]),
    ("range_of_texts", "{range: [1, 3]}", "{range: ['1', 3]}", "12:17",
     [".range[0]': found '1', accepted a number"]),
    ("key_of_hugging_face", "model: tiny",
     "model: {num_layers: 2, hidden_size: 8, num_attention_heads: 2, vocab_size: 8, seq_length: 8}",
     "2:40", ["'model.num_attention_heads': unknown key", "did you mean 'num_heads'?"]),
    ("misspelt_range", "{range: [1, 3]}", "{rnage: [1, 3]}", "12:9", ["did you mean 'range'"]),
    ("set_twice", "  num_nodes: 1", "  precision: [fp32]", "15:3", ["trainer.builtin", "once"]),
    ("condition_on_unknown", "  vpp: pp > 1", "  vvp: pp > 1", "17:3", ["did you mean 'vpp'"]),
    ("condition_names_unknown", "vpp: pp > 1", "vpp: ppp > 1", "17:8",
     ["unknown name 'ppp'", "did you mean 'pp'", "^"]),
    ("condition_on_derived", "vpp: pp > 1", "vpp: dp > 1", "17:8", ["unknown name 'dp'"]),
    ("condition_on_itself", "vpp: pp > 1", "vpp: vpp > 1", "17:3", ["circle", "vpp -> vpp"]),
    ("condition_circle", "vpp: pp > 1", "vpp: mbs > 1\n  mbs: vpp > 1", "", ["circle"]),
    ("condition_is_mapping", "vpp: pp > 1", "vpp: {pp: 1}", "17:8", ["conditions.vpp", "text"]),
    ("constraint_typo", "global_batch_size <=", "global_bach_size <=", "19:5",
     ["constraints[0]", "unknown name 'global_bach_size'", "did you mean 'global_batch_size'"]),
    ("constraint_call", "global_batch_size <= 64", "max(tp, pp) <= 4", "19:5", ["function call"]),
    ("constraint_attribute", "global_batch_size <= 64", "tp.real == 1", "19:5", ["attribute"]),
    ("constraint_import", "global_batch_size <= 64", "__import__('os').system('id') == 0",
     "19:5", ["accepted + - *"]),
    ("constraint_power", "global_batch_size <= 64", "2 ** 99999999999 > tp", "19:5", ["power"]),
    ("constraint_subscript", "global_batch_size <= 64", "tp[0] == 1", "19:5", ["subscript"]),
    ("constraint_lambda", "global_batch_size <= 64", "'(lambda: tp)() == 1'", "19:5", ["call"]),
    ("constraint_assignment", "global_batch_size <= 64", "tp = 2", "19:5", ["'=='"]),
    ("constraint_c_logic", "global_batch_size <= 64", "tp > 1 && pp > 1", "19:5", ["'and', 'or'"]),
    ("constraint_number", "global_batch_size <= 64", "tp + pp", "19:5", ["true or false"]),
    ("constraint_is_bool", "global_batch_size <= 64", "true", "19:5", ["found true", "text"]),
    ("constraint_text_number", "global_batch_size <= 64", "tp == 'x'", "19:5", ["text", "number"]),
    ("constraint_huge_literal", "global_batch_size <= 64", "tp < " + "9" * 300, "19:5", ["2"]),
    ("constraint_too_long", "global_batch_size <= 64", "tp < 1" + " or tp < 1" * 60, "19:5",
     ["at most 500"]),
    ("constraint_deep", "global_batch_size <= 64", "(" * 240 + "tp" + ")" * 240 + " > 0", "19:5",
     ["constraints[0]"]),
    ("constraint_empty", "global_batch_size <= 64", "''", "19:5", ["empty expression"]),
    ("constraint_mapping", "  - global_batch_size <= 64", "  a: b", "19:3", ["list"]),
    ("impossible", "global_batch_size <= 64", "tp * pp > 1000", None,
     ["no configuration is valid", "constraint_1 removes", "100 %", "tp * pp > 1000"]),
    ("batch_that_nothing_divides", "global_batch_size <= 64", "global_batch_size == 63", None,
     ["constraint_1 removes", "global_batch_size == 63; it is mbs * gas * dp: a multiple of the"]),
    ("command_as_text", "trainer:", "trainer:\n  command: python train.py", "5:12",
     ["accepted a list, such as [1, 2, 4] or [python, train.py]"]),
    ("negative_timeout", "objective:", "trial: {timeout: -5m}\nobjective:", "20:18",
     ["trial.timeout", "'-5m'", "20m"]),
    ("timeout_unit", "objective:", "trial: {timeout: 5 minutes}\nobjective:", "20:18",
     ["'5 minutes'", "20m"]),
    ("timeout_nan", "objective:", "trial: {timeout: .nan}\nobjective:", "20:18", ["nan"]),
    ("timeout_zero", "objective:", "trial: {timeout: 0}\nobjective:", "20:18", ["above zero"]),
    ("timeout_bool", "objective:", "trial: {timeout: true}\nobjective:", "20:18", ["duration"]),
    ("quiet_above_timeout", "objective:",
     "trial: {timeout: 5m, no_progress_timeout: 10m}\nobjective:", "20:43", ["at most", "300 s"]),
    ("no_steps", "objective:", "trial: {measured_steps: 0}\nobjective:", "20:25", ["1 or more"]),
    ("budget_negative", "objective:", "budget: {trials: -3}\nobjective:", "20:18", ["1 or more"]),
    ("budget_inf", "objective:", "budget: {node_hours: .inf}\nobjective:", "20:22", ["finite"]),
    ("penalty", "objective:", "failure_penalty: max\nobjective:", "20:18",
     ["'max'", "'min', 'mean' or 'ignore'"]),
    ("allow_unknown", "objective:", "allow: [tp_across_node]\nobjective:", "20:9",
     ["did you mean 'tp_across_nodes'"]),
    ("env_number", "  builtin:", "  env: {A: 1}\n  builtin:", "5:12",
     ["trainer.env.A", "found 1", "quotes"]),
    ("result_for_builtin", "  builtin:", "  result: {patterns: {a: (x)}}\n  builtin:", "5:3",
     ["goes with 'command'"]),
    ("python_tag", "model: tiny", "model: !!python/object/apply:os.system ['id']", "2:8",
     ["tag", "without tags"]),
    ("binary_tag", "model: tiny", "model: !!binary aGk=", "2:8", ["tag"]),
    ("merge_key", "trainer:", "trainer:\n  <<: {builtin: {}}", "5:3", ["merge keys"]),
    ("undefined_alias", "model: tiny", "model: *m", "2:8", ["'*m'"]),
    ("recursive_alias", "tp: [1, 2, 4]", "tp: &a [*a]", "9:11", ["'*a'"]),
    ("deep_nesting", "tp: [1, 2, 4]", "tp: " + "[" * 5000, "9:", ["nested deeper"]),
    ("unlike_indents", "  maximize: tflops", "  subject_to: []\n   maximize: tflops", "22:4",
     ["not YAML: ", "; keys of one mapping begin in the same column"]),
    ("no_break_space", "  maximize: tflops", "  maximize:\xa0tflops\n  a: b", "22:4",
     ["not YAML: ", "; line 21 has a no-break space: write a plain one"]),
    ("unclosed", "tp: [1, 2, 4]", "tp: [1, 2", "", ["not YAML"]),
    ("two_documents", "objective:", "---\nobjective:", "20:1", ["second document"]),
    ("list_key", "  tp:", "  [a]:", "9:3", ["not text"]),
    ("no_name", "model: tiny", "name: 'a/b'\nmodel: tiny", "2:7", ["'a/b'", "letters"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "place", "fragments"), [e[1:] for e in EDITS], ids=[e[0] for e in EDITS]
)
def test_a_mistake_is_reported_where_it_stands(
    tmp_path: Path, good: str, old: str, new: str, place: str | None, fragments: list[str]
) -> None:
    assert old in good
    path = tmp_path / "space.yaml"
    path.write_text(good.replace(old, new, 1))
    text = message(path)
    assert text.startswith(f"{path}:{place}" if place is not None else str(path)), text
    if place is not None:
        assert re.match(r".*:\d+:\d+: ", text), text
    for fragment in fragments:
        assert fragment in text, text


OWN_EDITS = [
    ("placeholder", "{tp}", "{tpp}", "4:37", ["{tpp}", "did you mean 'tp'", "{{tpp}}"]),
    ("command_is_text", '[python, train.py, --tp, "{tp}", --out, "{trial_dir}/result.json"]',
     "python train.py", "4:12", ["trainer.command", "a list"]),
    ("command_number", "--tp,", "8,", "4:31", ["found 8", "quotes"]),
    ("command_empty", '[python, train.py, --tp, "{tp}", --out, "{trial_dir}/result.json"]',
     "[]", "4:12", ["at least 1"]),
    ("bad_regex", "parameters:", '  result: {patterns: {seconds: "([0-9"}}\nparameters:', "5:32",
     ["patterns.seconds", "regular expression"]),
    ("regex_without_group", "parameters:", "  result: {patterns: {seconds: '[0-9]+'}}\nparameters:",
     "5:32", ["group"]),
    ("whole_without_rate", "parameters:", "  result: {patterns: {seconds: {regex: '(.)', whole: "
     "'(.)(?P<seconds>.)'}}}\nparameters:", "5:32", ["groups rate and seconds"]),
    ("pattern_number", "parameters:", "  result: {patterns: {seconds: 3}}\nparameters:", "5:32",
     ["found 3"]),
    ("float_tp", "tp: [1, 2, 4]", "tp: [1.0]", "6:8", ["found 1.0", "whole number"]),
    ("text_tp", "tp: [1, 2, 4]", "tp: [two]", "6:8", ["'two'", "whole number"]),
    ("reserved_word", "zero:", "and:", "7:3", ["grammar"]),
    ("placeholder_name", "zero:", "trial_dir:", "7:3", ["rename"]),
    ("fact_of_absent_model", "objective:", "constraints: [num_heads > 2]\nobjective:", "8:15",
     ["unknown name 'num_heads'"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "place", "fragments"), [e[1:] for e in OWN_EDITS], ids=[e[0] for e in OWN_EDITS]
)
def test_a_mistake_with_a_trainer_of_ones_own_is_reported_where_it_stands(
    tmp_path: Path, own_trainer: str, old: str, new: str, place: str, fragments: list[str]
) -> None:
    assert old in own_trainer
    path = tmp_path / "space.yaml"
    path.write_text(own_trainer.replace(old, new, 1))
    text = message(path)
    assert text.startswith(f"{path}:{place}"), text
    for fragment in fragments:
        assert fragment in text, text


def test_a_mistake_in_a_named_model_file_shows_both_places(tmp_path: Path, good: str) -> None:
    (tmp_path / "my.yaml").write_text("num_layers: 4\nhiden_size: 8\n")
    path = tmp_path / "space.yaml"
    path.write_text(good.replace("model: tiny", "model: my.yaml"))
    text = message(path)
    assert f"{path}:2:8" in text
    assert f"{tmp_path / 'my.yaml'}:2:1" in text
    assert "did you mean 'hidden_size'" in text


def test_several_mistakes_are_reported_in_the_order_of_the_file(tmp_path: Path, good: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(good.replace("version: 1", "version: 3").replace("maximize", "maximise"))
    lines = message(path).splitlines()
    assert lines[0].startswith(f"{path}:1:")
    assert lines[-1].startswith(f"{path}:21:") and "did you mean 'maximize'" in lines[-1]


def test_many_mistakes_are_cut_short(tmp_path: Path, good: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(good + "".join(f"key{i}: 1\n" for i in range(50)))
    lines = message(path).splitlines()
    assert len(lines) == 8 and lines[-1] == "and 43 more"


def test_a_caret_points_at_the_mistake(tmp_path: Path, good: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(good.replace("global_batch_size <= 64", "tp > 0 and ppp > 0"))
    _, expression, caret = message(path).splitlines()
    assert expression[caret.index("^") :].startswith("ppp")
