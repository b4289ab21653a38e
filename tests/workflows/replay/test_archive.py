"""The archive of runs: what is kept of them, who reads it, and what damage does."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from analysis.prediction.pricing import Pricing
from analysis.run.fold import Run, read_run
from analysis.run.lines import FIRST, sealed, unsealed
from foundation.files import FileError
from search_spaces import load_space
from workflows.cli.main import main
from workflows.replay import archive as kept
from workflows.replay.export import export
from workflows.replay.landscapes import recorded

CLUSTER = "nodes=16,model_error=1,misfit=0,noise=0"
SPACE = """\
version: 1
name: seven
description: the secret project
model: gpt_22b
cluster: frontier
trainer:
  command: [python, /home/alice/train.py, --tp, "{tp}", "{pp}", "{mbs}", "{gas}"]
  framework: megatron-deepspeed
  env: {TOKEN: s3cret}
  workdir: /tmp
parameters:
  num_nodes: [4]
  tp: [1, 2, 4, 8]
  pp: [1, 2, 4]
  mbs: [1, 2]
  gas: [8, 16]
  zero_stage: [0, 1]
objective: {maximize: tokens_per_second}
"""
SIMULATE = ["--launcher", "simulate", "--simulate", CLUSTER, "--no-report"]


def searched(folder: Path, text: str = SPACE, trials: int = 6, *more: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "space.yaml").write_text(text)
    arguments = ["search", str(folder / "space.yaml"), *SIMULATE, "--trials", str(trials), *more]
    assert main([*arguments, "--run-dir", str(folder / "run")]) == 0
    return folder / "run"


def as_measured(run: Path, folder: Path) -> Path:
    """A copy of a run whose journal says that a machine has measured it."""
    shutil.copytree(run, folder)
    lines, seal = [], FIRST
    for line in (run / "journal.jsonl").read_bytes().splitlines():
        record, _ = unsealed(line)
        record = {key: value for key, value in record.items() if key not in ("after", "crc")}
        if "launcher" in record:
            record["launcher"] = "local"
        told, seal = sealed(record, seal)
        lines.append(told)
    (folder / "journal.jsonl").write_bytes(b"".join(lines))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHTUNE_ARCHIVE", "/nonexistent/archive")
        return searched(tmp_path_factory.mktemp("archived"))


def answers(of: Run) -> list[tuple[str, str | None, float | None]]:
    told = [(repr(sorted(t.config.items())), t.kind, t.objective) for t in of.trials.values()]
    return sorted(told, key=repr)


def test_an_entry_has_the_trials_and_no_command_path_or_host(run: Path, tmp_path: Path) -> None:
    entry = kept.add(tmp_path / "team", run)
    text = "".join(file.read_text() for file in entry.iterdir())
    for secret in ("alice", "train.py", "s3cret", "secret project", str(run), "/tmp", "sim0"):
        assert secret not in text
    assert answers(kept.run_in(entry)) == answers(read_run(run))
    again = kept.add(tmp_path / "team", run)
    assert again == entry and [e for e, _ in kept.entries(tmp_path / "team")] == [entry]


def test_a_whole_entry_has_everything_and_reads_the_same(run: Path, tmp_path: Path) -> None:
    entry = kept.add(tmp_path, run, whole=True)
    assert (entry / "space.yaml").read_bytes() == (run / "space.yaml").read_bytes()
    assert (entry / "journal.jsonl").read_bytes() == (run / "journal.jsonl").read_bytes()
    assert answers(kept.run_in(entry)) == answers(read_run(run))


def test_peaks_and_times_teach_the_cost_model_what_the_run_itself_does(
    run: Path, tmp_path: Path
) -> None:
    entry = kept.add(tmp_path, run)
    direct, read = (Pricing(load_space(str(run / "space.yaml"), frozen=True)) for _ in range(2))
    direct.learn(read_run(run))
    read.learn(kept.run_in(entry))
    logs = [each.model.constants.logs() for each in (direct, read)]
    np.testing.assert_allclose(logs[0], logs[1], rtol=1e-6)


def test_values_that_are_paths_are_kept_only_if_asked(tmp_path: Path, run: Path) -> None:
    text = SPACE.replace("  zero_stage:", "  recipe: [/home/alice/a.yaml]\n  zero_stage:")
    made = searched(tmp_path, text.replace('"{gas}"', '"{gas}", "{recipe}"'), 2, "--no-archive")
    with pytest.raises(FileError, match="values of recipe look like paths; --whole"):
        kept.add(tmp_path / "team", made)
    assert not (tmp_path / "team").exists()
    assert kept.add(tmp_path / "team", made, whole=True).is_dir()


def test_a_search_is_offered_what_fits_and_says_what_it_started_from(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    team = tmp_path / "team"
    monkeypatch.setenv("MESHTUNE_ARCHIVE", str(team))
    entry = kept.add(team, run)
    other = kept.add(tmp_path / "other", run)
    text = (other / "space.yaml").read_text().replace("megatron-deepspeed", "nanotron")
    (other / "space.yaml").write_text(text)
    shutil.copytree(other, team / "another-framework")
    (team / "damaged").mkdir()
    (team / "damaged/space.yaml").write_text("version: [")
    (team / "link").symlink_to(other)
    text = SPACE.replace("gpt_22b", "gpt_175b").replace("num_nodes: [4]", "num_nodes: [16]")
    own = searched(tmp_path / "own", text.replace("pp: [1, 2, 4]", "pp: [4, 8, 16]"), 3)
    printed = capsys.readouterr()
    said = printed.err
    assert "archive: " not in printed.out
    assert f"archive: {entry.name} is of the same framework, GPU and network" in said
    assert "another-framework" not in said
    assert "link is left out: a symbolic link" in said and "damaged is left out: " in said
    whys = [trial.why for trial in read_run(own).trials.values()]
    assert "started from" not in whys[0] and whys[-1].endswith(f"started from {entry.name}")
    capsys.readouterr()
    assert main(["archive", "list"]) == 0
    listed = capsys.readouterr().out
    assert f"{entry.name}: seven, megatron-deepspeed, " in listed and "damaged: " in listed


def test_trials_choose_the_model_that_foretells_them(run: Path, tmp_path: Path) -> None:
    """The run's own machine, whose constants are off, against one that is as expected."""
    space = load_space(str(run / "space.yaml"), frozen=True)
    pricing = Pricing(space)
    truth, wrong = read_run(run), read_run(run)
    for trial in wrong.trials.values():
        if trial.objective is not None:
            trial.objective /= 9
            trial.result = {"tokens_per_second": trial.objective}
    for name, lesson in (("right", truth), ("wrong", wrong)):
        pricing.offer(name, lesson, Pricing(space))
    pricing.calibrated([])
    assert pricing.start == ""
    pricing.calibrated([t for t in truth.trials.values() if t.ok])
    assert pricing.start == "right"


def test_adders_at_once_lose_nothing(run: Path, tmp_path: Path) -> None:
    team, failures = tmp_path / "team", list[BaseException]()

    def add(number: int) -> None:
        try:
            kept.add(team, runs[number % 2])
        except BaseException as error:
            failures.append(error)

    other = tmp_path / "copy"
    shutil.copytree(run, other)
    text = (other / "space.yaml").read_text()
    (other / "space.yaml").write_text("\n".join(text.splitlines()[1:]).replace("seven", "eight"))
    runs = [run, other]
    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    names = sorted(space.name for _, space in kept.entries(team) if not isinstance(space, str))
    assert names == ["eight", "seven"]
    # Nor is there a lock's file, which would be its first user's and shut out all others.
    assert not [p.name for p in team.iterdir() if p.name.startswith(".")]


def test_a_damaged_table_is_left_out_with_its_line(run: Path, tmp_path: Path) -> None:
    entry = kept.add(tmp_path, run)
    lines = (entry / "results.csv").read_text().splitlines()
    (entry / "results.csv").write_text("\n".join([*lines[:3], lines[3][:9]]))
    pricing = Pricing(load_space(str(run / "space.yaml"), frozen=True))
    [said] = kept.offer(pricing, tmp_path, simulated=True)
    assert "is left out: " in said and "results.csv:4" in said and not pricing.offered


def test_an_archive_that_cannot_be_written_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["archive", "add", str(run), "--archive", str(tmp_path / "file/team")]) in (1, 2)
    said = capsys.readouterr().err
    assert said.startswith("meshtune: ") and "Traceback" not in said and "file" in said
    assert main(["archive", "add", str(tmp_path), "--archive", str(tmp_path / "team")]) == 2
    assert "journal.jsonl" in capsys.readouterr().err
    assert main(["archive", "list", "--archive", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/none keeps no run")
    assert main(["archive", "list", str(run)]) == 2
    assert main(["archive", "export", str(run)]) == 2
    assert "--license" in capsys.readouterr().err


@pytest.mark.parametrize("of", [lambda run, entry: run, lambda run, entry: entry])
def test_an_exported_landscape_is_read_back_equal(
    run: Path, tmp_path: Path, of: Callable[[Path, Path], Path]
) -> None:
    run = as_measured(run, tmp_path / "measured")
    entry, out = kept.add(tmp_path / "team", run), tmp_path / "open.csv"
    source = of(run, entry)
    arguments = ["archive", "export", str(source), "--license", "CC-BY-4.0", "--out", str(out)]
    assert main(arguments) == 0
    assert out.read_text().startswith("# licence: CC-BY-4.0\n")
    [[ours], _], [[theirs], left_out] = recorded(source), recorded(out)
    assert not left_out and len(theirs.configs) == len(ours.configs)
    for config, other in zip(ours.configs, theirs.configs, strict=True):
        assert {k: other[k] for k in config} == config
        [a], [b] = ours.answers[tuple(config.items())], theirs.answers[tuple(other.items())]
        assert a.ok == b.ok and (not a.ok or b.objective == pytest.approx(a.objective))
    facts = yaml.safe_load(out.with_suffix(".cluster.yaml").read_text())
    assert facts["gpus_per_node"] == 8
    assert theirs.share(theirs.configs[0]) == pytest.approx(ours.share(ours.configs[0]))


def test_a_run_is_replayed_by_its_journal_also_where_its_table_is_missing_or_behind(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, copy := tmp_path / "copy")
    table = copy / "results.csv"
    [[whole], _] = recorded(table)
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:3]))
    for _ in range(2):
        [[landscape], _] = recorded(copy)
        assert landscape.configs == whole.configs and landscape.medians == whole.medians
        table.unlink(missing_ok=True)


def test_what_a_framework_states_is_a_column_of_its_landscape(tmp_path: Path) -> None:
    """As the megatron-lm adapter does, whose runs could not be exported."""
    habits = "{base: megatron-lm, master_bytes: 2, flash_attention: true}"
    made = searched(
        tmp_path, SPACE.replace("framework: megatron-deepspeed", f"framework: {habits}")
    )
    run, out = read_run(as_measured(made, tmp_path / "measured")), tmp_path / "open.csv"
    space = load_space(str(made / "space.yaml"), frozen=True)
    assert export(run, space, "CC0-1.0", out) == 6
    [[theirs], _] = recorded(out)
    read, own = theirs.space.program.habits, space.program.habits
    assert read.stated == own.stated == {"master_bytes", "flash_attention"}
    assert read.master_bytes == 2 and read.flash_attention is True


def test_a_habit_without_a_column_is_refused_by_name(tmp_path: Path) -> None:
    habits = "{base: megatron-deepspeed, adapter_bytes: [2, 4]}"
    made = searched(
        tmp_path, SPACE.replace("framework: megatron-deepspeed", f"framework: {habits}")
    )
    run = read_run(as_measured(made, tmp_path / "measured"))
    space = load_space(str(made / "space.yaml"), frozen=True)
    with pytest.raises(FileError, match="no column for adapter_bytes of seven"):
        export(run, space, "CC0-1.0", tmp_path / "open.csv")


def test_what_the_general_form_cannot_say_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SPACE.replace("zero_stage: [0, 1]", "rank_order: [tp-cp-dp-pp, tp-pp-cp-dp]")
    text = text.replace("tp: [1, 2, 4, 8]", "tp: [4]").replace("pp: [1, 2, 4]", "pp: [4]")
    made = searched(tmp_path, text.replace('"{gas}"', '"{gas}", "{rank_order}"'), 4, "--no-archive")
    out, made = tmp_path / "open.csv", as_measured(made, tmp_path / "measured")
    assert main(["archive", "export", str(made), "--license", "x", "--out", str(out)]) == 2
    assert "the general form cannot say pp_inside of seven" in capsys.readouterr().err
    assert not out.exists()


def test_a_choice_that_the_model_does_not_price_is_not_dropped_from_a_landscape(
    tmp_path: Path,
) -> None:
    text = SPACE.replace("  zero_stage:", "  kernel: [a, b, c]\n  zero_stage:")
    made = searched(tmp_path, text.replace('"{gas}"', '"{gas}", "{kernel}"'), 4, "--no-archive")
    run = read_run(as_measured(made, tmp_path / "measured"))
    space = load_space(str(made / "space.yaml"), frozen=True)
    with pytest.raises(FileError, match="no column for kernel of seven"):
        export(run, space, "CC0-1.0", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_an_entry_that_cannot_be_replaced_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, rename = kept.add(tmp_path, run), Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == entry and (self / "space.yaml").read_text() != before:
            raise OSError("no room")
        return rename(self, target)

    before = (entry / "space.yaml").read_text()
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no room"):
        kept.add(tmp_path, run, whole=True)
    assert [*tmp_path.iterdir()] == [entry] and (entry / "space.yaml").read_text() == before


def test_export_overwrites_nothing(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "open.csv"
    for file in (out, out.with_suffix(".cluster.yaml")):
        file.write_text("mine")
        arguments = ["archive", "export", str(run), "--license", "x", "--out", str(out)]
        assert main(arguments) == 2 and file.read_text() == "mine"
        file.unlink()


def test_a_run_without_a_model_is_no_landscape(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = kept.add(tmp_path, as_measured(run, tmp_path / "measured"))
    space = yaml.safe_load((entry / "space.yaml").read_text())
    del space["model"]
    (entry / "space.yaml").write_text(yaml.safe_dump(space))
    out = str(tmp_path / "open.csv")
    assert main(["archive", "export", str(entry), "--license", "x", "--out", out]) == 2
    assert "the space has no model: a landscape needs it" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["~nobody-of-this-name/archive", __file__])
def test_an_archive_that_cannot_be_read_ends_no_search(
    named: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHTUNE_ARCHIVE", named)
    assert main(["search", str(run / "space.yaml"), "--run-dir", str(run), *SIMULATE]) == 0
    assert "archive: it is left out: " in capsys.readouterr().err


def test_a_run_is_not_offered_its_own_entry(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHTUNE_ARCHIVE", str(tmp_path))
    entry = kept.add(tmp_path, run)
    assert main(["search", str(run / "space.yaml"), "--run-dir", str(run), *SIMULATE]) == 0
    assert entry.name not in capsys.readouterr().err


def test_a_simulated_run_is_no_measurement(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = kept.add(tmp_path / "team", run)
    pricing = Pricing(load_space(str(run / "space.yaml"), frozen=True))
    assert not [*kept.offer(pricing, tmp_path / "team")] and not pricing.offered
    assert [*kept.offer(pricing, tmp_path / "team", simulated=True)] and pricing.offered
    for source in (run, entry):
        out = str(tmp_path / "open.csv")
        assert main(["archive", "export", str(source), "--license", "x", "--out", out]) == 2
        assert "is simulated: only measurements are exported" in capsys.readouterr().err
