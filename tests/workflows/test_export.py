"""``meshtune export``: the best of a run, as another trainer takes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import RunFolder
from search_spaces import AdapterFile, load_space, shipped_records
from workflows.cli.main import main
from workflows.export import of_best

SPACE = """\
version: 1
name: pasted
cluster: dgx_h100
model: llama_8b
trainer: {adapter: megatron-lm, args: [--lr, "3e-4"]}
parameters:
  num_nodes: [1]
  tp: [2, 4]
  pp: [1, 2]
  mbs: [1]
  gas: [8]
  zero_stage: [2]
  workers: [1, 2]
constraints: [zero_stage > 0]
objective: {maximize: tokens_per_second}
finalists: false
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    # The adapter refuses a stage that Megatron-LM does not have; another command may have it.
    text = SPACE.replace(
        '{adapter: megatron-lm, args: [--lr, "3e-4"]}',
        '{command: [train, --lr, "3e-4", "{tp}{pp}{mbs}{gas}{zero_stage}{workers}"]}',
    )
    (folder / "space.yaml").write_text(text)
    arguments = ["search", str(folder / "space.yaml"), "--launcher", "simulate", "--trials", "2"]
    assert main([*arguments, "--run-dir", str(folder / "run"), "--policy", "random"]) == 0
    return folder / "run"


def test_a_runs_best_is_printed_with_what_is_not_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--to", "megatron-lm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# pasted: num_nodes=1 tp=")
    assert lines[0].endswith("1 node of 8 ranks of a simulated search")
    assert "# not exported: zero_stage: 2: megatron-lm demands zero_stage != 2" in lines
    assert [line for line in lines if line.startswith("# not exported: workers: ")]
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in lines
    assert "--num-query-groups 8 \\" in lines
    assert "--micro-batch-size 1 \\" in lines


def test_a_best_yaml_is_written_into_a_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = run / "report" / "best.yaml"
    assert main(["export", str(best), "--to", "megatron-lm", "--out", str(tmp_path / "out")]) == 0
    assert "arguments.txt, environment.sh" in capsys.readouterr().out
    assert "--hidden-size 4096\n" in (tmp_path / "out" / "arguments.txt").read_text()


@pytest.mark.parametrize(
    ("source", "name", "told"),
    [
        ("", "megatron", "--to: found 'megatron', accepted a file (*.yaml), or one of "),
        ("space.yaml", "megatron-lm", "accepted a run's folder, or the best.yaml"),
        ("nothing", "megatron-lm", "accepted a run's folder, or the best.yaml"),
    ],
)
def test_what_cannot_be_exported_is_told(
    run: Path, source: str, name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run / source if source else run), "--to", name]) == 2
    assert told in capsys.readouterr().err


def test_by_default_the_runs_own_trainer_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = SPACE.replace("  zero_stage: [2]\n  workers: [1, 2]\nconstraints: [zero_stage > 0]\n", "")
    (tmp_path / "own.yaml").write_text(own)
    search = ["search", str(tmp_path / "own.yaml"), "--launcher", "simulate", "--trials", "1"]
    search += ["--policy", "random", "--no-report"]
    assert main([*search, "--run-dir", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run")]) == 0
    assert "--tensor-model-parallel-size" in capsys.readouterr().out


def test_a_command_of_the_users_own_is_printed_as_the_best_trial_ran_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run)]) == 0
    title, command = capsys.readouterr().out.splitlines()
    assert title.endswith("of a simulated search; as a trial ran it")
    assert command.startswith("train --lr 3e-4 ") and not command.endswith("\\")


def test_what_is_around_a_command_of_the_users_own_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = "workdir: /opt/code, container: {image: /images/own.sqsh}"
    best = frozen(tmp_path, f"{{command: [train, '{{trial_dir}}/out', '{{mbs}}'], {place}}}")
    assert main(["export", str(best)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "# own: num_nodes=1 mbs=1 gas=8; 1 node of 8 ranks; as a trial ran it",
        "# not exported: workdir: /opt/code",
        "# not exported: container: /images/own.sqsh",
        "# not exported: {trial_dir}: written as .",
        "train ./out 1",
    ]
    (tmp_path / "launch.sh").write_text("train --lr 1\n")
    assert main(["export", str(best), "--args", str(tmp_path / "launch.sh")]) == 2
    assert "--args goes with --to: " in capsys.readouterr().err


def frozen(folder: Path, trainer: str) -> Path:
    """The best.yaml of a run whose space is this one, frozen."""
    for ending, empty in ((".yaml", "{}"), (".json", "{}"), (".toml", "")):
        (folder / f"base{ending}").write_text(empty)
    keys = "version: 1\ncluster: dgx_h100\nmodel: llama_8b\nobjective: {maximize: x}\n"
    text = f"{keys}trainer: {trainer}\nparameters: {{num_nodes: [1], mbs: [1], gas: [8]}}\n"
    (folder / "own.yaml").write_text(text)
    RunFolder(folder / "run").create(load_space(folder / "own.yaml"))
    best = folder / "run" / "report" / "best.yaml"
    best.parent.mkdir(parents=True)
    best.write_text(
        "meshtune_best: 1\nnum_nodes: 1\nranks_per_node: 8\ncommand: [train]\n"
        "parameters: {num_nodes: 1, mbs: 1, gas: 8}\n"
    )
    return best


@pytest.mark.parametrize("adapter", shipped_records("adapter"))
def test_by_default_it_is_the_adapter_of_the_space_that_takes_it(
    adapter: str, tmp_path: Path
) -> None:
    file = AdapterFile.named(adapter).file
    config = f", config: base{Path(file.name).suffix.replace('yml', 'yaml')}" if file else ""
    more = f"entry: train.py{config}, result: {{patterns: {{x: 'x=(.)'}}}}"
    best = frozen(tmp_path, f"{{adapter: {adapter}, {more}}}")
    assert of_best(best, None) == of_best(best, adapter)


def test_an_adapter_of_ones_own_takes_it_and_not_the_trainer_that_logs_alike(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "{name: mine, description: x, source: x, framework: fsdp, log: megatron-lm, "
        "command: [train], settings: {mbs: {arguments: {rows: '{mbs}'}}}}"
    )
    best = frozen(tmp_path, "{adapter: mine.yaml, result: {patterns: {x: 'x=(.)'}}}")
    assert ("--rows", "1") in of_best(best, None)[0].arguments
