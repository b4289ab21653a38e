"""``meshtune status`` and ``repair`` on run folders in every state."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest

from analysis.run.events import Closed, Opened
from analysis.run.folder import FingerprintError, RunFolder
from analysis.run.journal import Journal
from analysis.run.lock import lock
from search_spaces import load_space
from support.run_book import RunBook, resealed
from support.small_search import QUICK
from workflows.cli.main import main
from workflows.search.stopping import CONTINUE, DONE, FAILED


@pytest.fixture
def book(tmp_path: Path) -> RunBook:
    """A run with one success and one trial that a killed driver left behind."""
    book = RunBook(tmp_path / "run")
    space = load_space("tiny_cpu")
    RunFolder(book.directory).create(space)
    book.run_one(1, {"tp": 1}, "ok", 2.5)
    book.propose(2, {"tp": 2})
    book.start(2)
    book.close()
    return book


def status(book: RunBook, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["status", str(book.directory)]) == 0
    return capsys.readouterr().out


def test_status_says_what_became_of_a_run(
    book: RunBook, capsys: pytest.CaptureFixture[str]
) -> None:
    said = status(book, capsys)
    resumes = f"`meshtune search {book.directory}/space.yaml --launcher simulate` resumes it"
    assert said.startswith("run         table4, simulated\n")  # no number is a measurement
    assert f"killed; {resumes}" in said and " done, 1 interrupted" in said
    for closed, state in [
        (Closed(reason="budget: 2 trials", code=DONE), "state       budget: 2 trials\n"),
        (Closed(reason="error: no host", code=FAILED), "state       failed: error: no host\n"),
        (Closed(reason="the allocation ends", code=CONTINUE), f"the allocation ends; {resumes}"),
        (Closed(reason="of an earlier version"), "state       of an earlier version\n"),
    ]:
        journal = Journal(book.directory)
        assert "state       running (" in status(book, capsys)
        journal.write(closed)
        journal.close()
        assert state in status(book, capsys)
    (book.directory / "journal.jsonl").write_bytes(b"")
    assert "no search has begun here yet" in status(book, capsys)


def test_a_submitted_run_waits_for_its_job(
    book: RunBook, capsys: pytest.CaptureFixture[str]
) -> None:
    script = book.directory / "search.sbatch"
    script.write_text("")
    again = f"its job resumes it if squeue still lists the job, else `sbatch {script}`\n"
    assert f"killed; {again}" in status(book, capsys)


def test_a_journal_of_an_older_version_is_refused_also_by_repair(
    book: RunBook, capsys: pytest.CaptureFixture[str]
) -> None:
    resealed(book.directory / "journal.jsonl", '"v": 2', '"v": 1')
    assert main(["status", str(book.directory)]) == 2
    assert ":1: it is of journal version 1, which is no longer read" in capsys.readouterr().err
    assert main(["repair", str(book.directory)]) == 2
    assert "nothing in it is sound; move it away" in capsys.readouterr().err


def test_a_space_that_was_edited_names_what_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
version: 1
trainer:
  command: [python, /home/me/train.py, --batch-size, "{mbs}", --lr, '0.1', --size, small]
  env: {TOKEN: hush}
parameters: {mbs: [1, 2]}
objective: {minimize: loss}
"""
    file, folder = tmp_path / "mine.yaml", RunFolder(tmp_path / "run")
    file.write_text(text)
    folder.create(load_space(file))
    changes = {"[1, 2]": "[1, 2, 4]", "small": "large", "hush": "hush, hush", "loss": "val_loss"}
    for before, after in changes.items():
        text = text.replace(before, f'"{after}"' if before == "hush" else after)
    file.write_text(text)
    assert main(["search", str(file), "--run-dir", str(folder.path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"meshtune: {file}: {folder.path} holds a run of another space:"
    assert sorted(said[1:-1]) == [
        "  objective.minimize: found 'val_loss', the run has 'loss'",
        "  parameters.mbs: found [1, 2, 4], the run has [1, 2]",
        "  trainer.command[7:]: found ['large'], the run has ['small']",
        "  trainer.env.TOKEN: found another value",
    ]


_LONG = "0123456789abcdef"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("width: [1, 2]", "width: [1.0, 2.0]", "  parameters.width: found [1.0, 2.0], the run"),
        ("content: {}", "content: {part: {}}", "  fingerprint: found that of mine ("),
        ("--lr, 1", "--hf-token, " + _LONG, "***"),
        ("set: {key: old}", f"set: {{key: {_LONG}}}", "set.key: found another value"),
    ],
)
def test_every_difference_is_told_and_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, told: str
) -> None:
    text = f"""
version: 1
trainer:
  command: [python, "{tmp_path}/train.py", "{{width}}", "{{trial_dir}}/a.json", --lr, 1]
  files: {{a.json: {{content: {{}}, set: {{key: old}}}}}}
parameters: {{width: [1, 2]}}
objective: {{minimize: loss}}
"""
    text = text.replace("--lr, 1", "--lr, '1'")
    before = before.replace("--lr, 1", "--lr, '1'")
    assert before in text
    file, folder = tmp_path / "mine.yaml", RunFolder(tmp_path / "run")
    file.write_text(text)
    folder.create(load_space(file))
    file.write_text(text.replace(before, after))
    assert main(["search", str(file), "--run-dir", str(folder.path)]) == 2
    error = capsys.readouterr().err
    assert told in error and _LONG not in error


def test_a_run_of_an_allocation_is_not_resumed_on_the_login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    space, folder = load_space("tiny_cpu"), RunFolder(tmp_path / "run")
    folder.create(space)
    journal = Journal(folder.path)
    journal.write(Opened.of(space, "srun", nodes=["n1"]))
    journal.close()
    assert main(["search", "tiny_cpu", "--run-dir", str(folder.path)]) == 2
    assert "resume it with `meshtune submit`, or inside salloc" in capsys.readouterr().err
    assert main(["search", "tiny_cpu", "--run-dir", str(folder.path), "--dry-run"]) == 0
    assert "trainer" in capsys.readouterr().out
    assert main(["status", str(folder.path)]) == 0
    file = folder.space_file
    assert (
        f"killed; `meshtune submit {file} --nodes N --time T`, or, inside an allocation, "
        f"`meshtune search {file} --launcher srun` resumes it"
    ) in capsys.readouterr().out


@pytest.mark.parametrize("name", ["journal.jsonl", "driver.lock", "space.yaml"])
@pytest.mark.parametrize("what", ["pipe", "directory", "loop", "device"])
def test_what_is_no_file_is_refused_at_once(
    book: RunBook, capsys: pytest.CaptureFixture[str], name: str, what: str
) -> None:
    path = book.directory / name
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    else:
        path.symlink_to(path if what == "loop" else "/dev/zero")
    assert main(["status", str(book.directory)]) == 2
    if name != "space.yaml":  # a space that is given takes its place
        simulated = ["--launcher", "simulate", "--trials", "1"]
        assert main(["search", "tiny_cpu", "--run-dir", str(book.directory), *simulated]) == 2
        assert main(["repair", str(book.directory)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert all(name in line for line in said), said
    assert len(said) == (1 if name == "space.yaml" else 3)


def test_a_frozen_space_that_was_edited_is_told_and_frozen_anew(
    book: RunBook, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(book.directory)
    frozen, space = folder.space_file.read_text(), load_space("tiny_cpu")
    for damaged in (frozen.replace("tp: [1", "tp: [3"), frozen[: len(frozen) // 2], "\0" * 100):
        assert damaged != frozen
        folder.space_file.write_text(damaged)
        assert main(["status", str(book.directory)]) == 2
        error = capsys.readouterr().err
        assert "space.yaml" in error and "`meshtune search SPACE --run-dir" in error
        assert len(error.splitlines()) <= 10
    with pytest.raises(FingerprintError, match="give the space file"):
        folder.create(space)  # the run is not of this space
    folder.journal_file.unlink()
    journal = Journal(book.directory)
    journal.write(
        Opened(
            space=space.name, fingerprint=space.fingerprint, seed=0, launcher="local",
            **space.goals,
        )
    )  # fmt: skip
    journal.close()
    folder.create(space)
    assert folder.space_file.read_text() == frozen


@pytest.mark.parametrize(
    ("was", "job", "told"),
    [
        ("local", "7", "a run of one machine alone, and this shell is in a Slurm allocation"),
        ("srun", "", "a run of a Slurm allocation, and this shell is in none"),
    ],
)
def test_a_run_is_not_resumed_on_other_nodes_unasked(
    was: str,
    job: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    space, folder = load_space("tiny_cpu"), RunFolder(tmp_path / "run")
    folder.create(space)
    with contextlib.closing(Journal(folder.path)) as journal:
        journal.write(Opened.of(space, was))
    before = folder.journal_file.read_bytes()
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    assert main(["search", "tiny_cpu", "--run-dir", str(folder.path)]) in (1, 2)
    assert told in (said := capsys.readouterr().err) and "--launcher local" in said
    assert folder.journal_file.read_bytes() == before


def test_repair_tells_each_line_that_it_leaves_out(
    book: RunBook, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = book.directory / "journal.jsonl"
    sound = journal.read_bytes()
    assert main(["repair", str(book.directory)]) == 0
    assert capsys.readouterr().out == "the journal is intact: 6 lines\n"
    journal.write_bytes(sound.replace(b'"objective": 2.5', b'"objective": 9.5'))
    assert main(["status", str(book.directory)]) == 2
    assert "journal.jsonl:4: its checksum does not fit" in capsys.readouterr().err
    with lock(book.directory):
        assert main(["repair", str(book.directory)]) == 2
        assert "is being searched by another meshtune" in capsys.readouterr().err
    assert main(["repair", str(book.directory)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("line 4: left out: its checksum does not fit")
    assert said[1] == "the journal now has 5 lines: 0 of 2 trials have ended"
    assert said[2] == f"backup of the damaged journal: {journal}.damaged-1"
    journal.write_bytes(journal.read_bytes()[:-1])
    assert main(["repair", str(book.directory)]) == 0
    assert f"backup of the damaged journal: {journal}.damaged-2" in capsys.readouterr().out


LACKING = """\
import sys, pathlib
first = pathlib.Path(sys.argv[0] + ".first")
if not first.exists():
    first.write_text(sys.argv[1])
if first.read_text() == sys.argv[1]:
    import a_module_that_nobody_has
print('MESHTUNE_RESULT {"speed": 2.0}')
"""


def test_a_crash_that_runs_again_is_counted_and_holds_nobody_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One value of a parameter, the first tried, needs a module that is missing."""
    (tmp_path / "train.py").write_text(LACKING)
    (tmp_path / "space.yaml").write_text(
        f"version: 1\ntrainer: {{command: [{sys.executable}, {tmp_path}/train.py, "
        "'{attention}']}\nparameters: {attention: [flash, eager, sdpa]}\n"
        "objective: {maximize: speed}\ntrial: {ranks_per_node: 1}\nfinalists: false\n"
    )
    run = str(tmp_path / "run")
    search = ["search", str(tmp_path / "space.yaml"), "--run-dir", run, "--launcher", "local"]
    assert main([*search, *QUICK]) == FAILED
    capsys.readouterr()
    main(["status", run])
    said = capsys.readouterr().out
    assert "\ntrials      0 done, 0 running, 1 crashed, will run again\n" in said
    assert "\nbecause     trial 1: " in said and "No module named 'a_module_that_nobody" in said
    main(["status", run, "--json"])
    assert json.loads(capsys.readouterr().out)["trials"]["crashed"] == [1]
    main(["explain", run, "1"])
    assert "ended       crashed; runs again as the search continues" in capsys.readouterr().out
    assert main([*search, *QUICK]) == DONE
    capsys.readouterr()
    main(["status", run])
    assert "\ntrials      3 done, 0 running\nfailed      1 (1 crash)\n" in capsys.readouterr().out
