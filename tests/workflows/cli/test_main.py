from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

import slurm
from analysis.run.folder import RunFolder
from analysis.run.journal import Journal
from foundation.documents import read_document
from foundation.energy import Meter
from search_spaces import load_space
from slurm.launcher import LauncherOptions
from slurm.local.launcher import LocalLauncher
from support.small_search import QUICK
from workflows import launching
from workflows.cli.listing import KINDS
from workflows.cli.main import COMMANDS, find_python, main, parser
from workflows.cli.search import resume_flags


def test_help_imports_nothing_heavy_and_a_refusal_only_what_reads_a_space(tmp_path: Path) -> None:
    code = (
        "import sys; from workflows.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'pandas', 'deephyper', 'rich'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
        "assert main(['search', 'no_such_space']) == 2\n"
        "heavy = {'torch', 'scipy', 'sklearn', 'pandas', 'matplotlib', 'deephyper'}\n"
        "print('REFUSED', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert "HEAVY []" in done.stdout
    assert "REFUSED []" in done.stdout


def test_every_command_names_a_function_and_list_all_kinds_of_names() -> None:
    commands = read_document(COMMANDS).root.plain()["commands"]
    for told in commands.values():
        module, function = told["runs"].split(".")
        assert callable(getattr(import_module(f"workflows.cli.{module}"), function))
    [kind] = [each["kind"] for each in commands["list"]["arguments"] if "kind" in each]
    assert kind["choices"] == sorted(KINDS)


def test_check_counts_table_iv(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "gpt_175b_frontier_table4"]) == 0
    output = capsys.readouterr().out
    assert "3,264 raw configurations, 2,788 valid" in output
    assert re.search(r"world_by_tp_pp +476", output)


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "object"


def test_energy_that_this_machine_cannot_measure_can_be_checked_but_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if Meter().source:
        pytest.skip("this machine has a counter")
    monkeypatch.chdir(tmp_path)
    Path("space.yaml").write_text(
        "version: 1\nmodel: tiny\ncluster: tiny_cpu\ntrainer: {builtin: {data: python-source}}\n"
        "parameters: {tp: [1, 2]}\nobjective: {minimize: energy_joules}\n"
    )
    assert main(["check", "space.yaml"]) == 0
    assert main(["search", "space.yaml"]) == 2
    said = capsys.readouterr().err
    assert "this machine cannot measure energy_joules: no counter of energy" in said
    assert "powercap" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["search", "no_such_space"], "no_such_space"),
        (["check", "tiny_cpuu"], "tiny_cpu"),
        (["search", "gpt_20b_zero_topo_frontier"], "a trial has up to 384 ranks"),
        (["search", "tiny_cpu", "--site", "nowhere", "--launcher", "srun"], "no site 'nowhere'"),
        (["search", "tiny_cpu", "--launcher", "slrm"], "there are local, srun"),
        (["search", "gpt_175b_frontier", "--policy", "nonsense"], "no policy 'nonsense'"),
        (["preflight", "--launcher", "simulate"], "no launcher 'simulate'"),
        (["submit", "tiny_cpu", "--nodes", "1", "--time", "soon"], "not a time limit"),
    ],
)
def test_a_wrong_argument_is_one_clear_error_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_srun_outside_an_allocation_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["search", "tiny_cpu", "--launcher", "srun"]) == 1
    assert "meshtune submit" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_token_file_that_is_not_there_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    space = tmp_path / "space.yaml"
    space.write_text(
        "version: 1\nmodel: tiny\ncluster: tiny_cpu\ntrainer: {builtin: {data: tokens/code}}\n"
        "parameters: {num_nodes: [1, 2], tp: [1, 2]}\nobjective: {maximize: tokens_per_second}\n"
    )
    assert main(["search", str(space)]) == 2
    said = capsys.readouterr().err
    assert "tokens/code.idx" in said and "prepare-data" in said
    assert [p.name for p in tmp_path.iterdir()] == ["space.yaml"]


@pytest.mark.parametrize(
    ("setting", "missing"),
    [
        ("loss_mask: tokens/mask", "loss_mask: there is no {here}/tokens/mask.idx"),
        ("validation: {data: tokens/x}", "validation.data: there is no {here}/tokens/x.idx"),
        ("initial_load_path: model", "initial_load_path: there is no {here}/model/config.json"),
    ],
)
def test_every_file_of_the_trainers_is_looked_for_before_anything_is_made(
    setting: str,
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    space = tmp_path / "space.yaml"
    space.write_text(
        "version: 1\nmodel: tiny\ncluster: tiny_cpu\n"
        f"trainer: {{builtin: {{data: python-source, {setting}}}}}\n"
        "parameters: {num_nodes: [1, 2], tp: [1, 2]}\nobjective: {maximize: tokens_per_second}\n"
    )
    assert main(["search", str(space)]) == 2
    assert missing.format(here=tmp_path) in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["space.yaml"]


def test_a_batch_script_can_be_read_before_it_is_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["submit", "tiny_cpu", "--nodes", "2", "--time", "01:00:00", "--dry-run"]
    assert main([*arguments, "--account", "ABC"]) == 0
    script = capsys.readouterr().out
    assert "#SBATCH --account=ABC" in script
    space = shlex.quote(f"{tmp_path}/runs/tiny_cpu/space.yaml")
    assert f"search {space} --run-dir" in script
    assert main([*arguments, "--policy", "deephyper", "--seed", "3", "--trials", "9"]) == 0
    assert "--site generic --seed 3 --policy deephyper &" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_run_whose_file_has_a_difficult_name_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    space = tmp_path / "my spâce.yaml"
    space.write_text(
        "version: 1\ncluster: {name: c, gpus_per_node: 1, memory_gib: 1, peak_fp32_tflops: 1}\n"
        "trainer: {command: [/bin/echo, 'MESHTUNE_RESULT {\"speed\": {mbs}}']}\n"
        "parameters: {mbs: [1, 2, 3, 4]}\nobjective: {maximize: speed}\nbudget: {trials: 1}\n"
        "finalists: false\n"
    )
    assert main(["search", str(space), "--launcher", "local", *QUICK]) == 0
    folder = tmp_path / "runs" / "my_sp_ce"
    again = ["search", str(folder / "space.yaml"), "--launcher", "local", "--trials", "3", *QUICK]
    assert main(again) == 0
    capsys.readouterr()
    assert main(["status", str(folder)]) == 0
    assert "3 of 3 done" in capsys.readouterr().out


class Closing(LocalLauncher):
    """Says that it was closed, and has a node less than was asked for."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__(num_nodes)
        self.closed = False

    def nodes(self) -> Sequence[str]:
        return super().nodes()[1:]

    def close(self) -> None:
        super().close()
        self.closed = True


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["preflight", "--nodes", "2"], "--nodes 2: the allocation has 1"),
        (["search", "space.yaml"], "no.idx"),
    ],
)
def test_a_launcher_is_closed_also_where_an_argument_is_refused_after_it_was_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    complaint: str,
) -> None:
    made: list[Closing] = []

    def make(_: str, options: LauncherOptions, __: object = None) -> Closing:
        made.append(Closing(options.num_nodes))
        return made[-1]

    monkeypatch.setattr(slurm, "make_launcher", make)
    monkeypatch.setattr(launching, "make_launcher", make)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(
        "version: 1\nmodel: tiny\ncluster: tiny_cpu\ntrainer: {builtin: {data: no, device: cpu}}\n"
        "parameters: {num_nodes: [1, 2], tp: [1, 2]}\nobjective: {maximize: tokens_per_second}\n"
    )
    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err
    assert [launcher.closed for launcher in made] == [True]


def test_a_run_that_another_driver_holds_keeps_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "run")
    folder.create(load_space("tiny_cpu"))
    before = folder.space_file.read_text()
    with closing(Journal(folder.path)):
        assert main(["search", "tiny_cpu", "--run-dir", "run", "--trials", "3"]) == 2
    assert "another meshtune" in capsys.readouterr().err
    assert folder.space_file.read_text() == before


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--launcher", "srun", "--site", "./my site.yaml"],
        ["--launcher", "mpiexec", "--hostfile", "my hosts"],
        ["--launcher", "simulate", "--simulate", "nodes=8,seed=1", "--policy", "random"],
        ["--site", "frontier", "--policy", "deephyper", "--warm-start", "runs/a", "runs/b"],
        ["--no-report", "--warm-start", "runs/a"],
    ],
)
def test_the_command_that_resumes_a_run_has_what_it_was_started_with(flags: list[str]) -> None:
    started = parser().parse_args(["search", "space", *flags])
    again = parser().parse_args(["search", "space", *shlex.split(resume_flags(started))])
    assert again == started


@pytest.mark.parametrize(("sink", "code"), [("| true", 0), (">&-", 0), ("> /dev/full", 1)])
def test_output_that_nobody_takes_is_no_traceback(sink: str, code: int) -> None:
    command = f"{sys.executable} -m meshtune check tiny_cpu {sink}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=250)
    assert done.returncode == code
    full = "meshtune: No space left on device; make room there, and run the same command\n"
    assert done.stderr == (full if code else "")


def test_trials_find_a_python_where_the_path_has_none(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    find_python(environ)
    found = shutil.which("python", path=environ["PATH"])
    assert found is not None and Path(found).parent == Path(sys.executable).parent
    before = {"PATH": found.rpartition("/")[0]}
    find_python(environ := dict(before))
    assert environ == before


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["archive", "add", "--archive", "kept", "runs/a"], "run", Path("runs/a")),
        (["report", "x.csv", "--study", "mine", "runs/a"], "runs", ["x.csv", "runs/a"]),
    ],
)
def test_an_option_may_stand_between_the_other_words(
    words: list[str], name: str, value: object
) -> None:
    assert getattr(parser().parse_args(words), name) == value
