"""What nobody can mean, in every option of every command: exit code 2, one message, no trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows.cli.main import main

SIMULATED = ["search", "gpt_22b_frontier", "--launcher", "simulate"]
SUBMIT = ["submit", "tiny_cpu", "--nodes", "2", "--time", "1:00:00"]
NOWHERE = ["", "nowhere", "a\0b", "x" * 5000, "/dev/zero", "file"]
NO_FOLDER = ["", "a\0b", "x" * 5000, "/dev/zero", "file"]
NO_COUNT = ["0", "-1", "nan", "inf", "1e400", "1.5", "", "9" * 5000]


def each(values: list[str], *command: str) -> list[list[str]]:
    """The command with each value in place of ``@``."""
    return [[word.replace("@", value) for word in command] for value in values]


@pytest.mark.parametrize(
    "command",
    [
        *each([*NOWHERE, "."], "check", "@"),
        *each([*NOWHERE, "."], "predict", "@"),
        *each([*NOWHERE, "."], "status", "@"),
        *each([*NOWHERE, "."], "report", "@"),
        *each([*NOWHERE, "."], "train", "@"),
        *each([*NOWHERE, "."], "replay", "@"),
        *each([*NOWHERE, "."], *SIMULATED[:1], "@", *SIMULATED[2:]),
        *each([*NOWHERE, "."], "submit", "@", *SUBMIT[2:]),
        *each(NO_FOLDER, *SIMULATED, "--run-dir=@"),
        *each(NO_FOLDER, *SUBMIT, "--run-dir=@"),
        *each([*NOWHERE, "."], *SIMULATED, "--site=@"),
        *each([*NOWHERE, "."], *SUBMIT, "--site=@"),
        *each(["nowhere"], "train", "file", "--site=@"),
        *each([*NOWHERE, "."], "preflight", "--site=@"),
        *each([*NOWHERE, "."], *SIMULATED, "--warm-start", "@"),
        *each([*NOWHERE, "."], "search", "tiny_cpu", "--launcher=mpiexec", "--hostfile=@"),
        *each([*NOWHERE, "."], "predict", "gpt_22b_frontier", "--calibrate=@"),
        *each([*NOWHERE, "."], "predict", "gpt_22b_frontier", "--scaling=weak", "--picture=@"),
        *each([*NOWHERE, "."], "preflight", "--out=@"),
        *each([*NO_FOLDER[:-1], "nowhere"], "prepare-data", "@", "--out=out/text"),
        *each(["", "a\0b", "x" * 5000, ".", "/"], "prepare-data", "file", "--out=@"),
        *each(NO_FOLDER, "minicluster", "status", "--dir=@"),
        *each(NO_COUNT, *SIMULATED, "--trials=@"),
        *each([*NO_COUNT[1:], "x"], *SIMULATED, "--seed=@"),
        *each(NO_COUNT, *SIMULATED, "--simulate", "nodes=@"),
        *each(NO_COUNT, "predict", "gpt_22b_frontier", "--top=@"),
        *each(NO_COUNT, "predict", "gpt_22b_frontier", "--scaling=weak", "--nodes=@"),
        *each(["0", "nan", "inf", "1e400", ""], "predict", "tiny_cpu", "--explain", "--tokens=@"),
        *each(NO_COUNT, "submit", "tiny_cpu", "--time=1:00", "--nodes=@"),
        *each(["0", "nan", "1.5", "", "1:2:3:4"], "submit", "tiny_cpu", "--nodes=2", "--time=@"),
        *each(NO_COUNT, "train", "best.yaml", "--steps=@"),
        *each(NO_COUNT, "replay", "table.csv", "--seeds=@"),
        *each(NO_COUNT, "replay", "table.csv", "--parallel=@"),
        *each(NO_COUNT, "preflight", "--nodes=@"),
        *each(NO_COUNT, "minicluster", "up", "--nodes=@"),
        *each(["", "foo", "x" * 5000], *SIMULATED, "--policy=@"),
        *each(["foo", "x" * 5000], "search", "tiny_cpu", "--launcher=@"),
        *each(["foo", "nodes", "nodes=", "x" * 5000], *SIMULATED, "--simulate", "@"),
        *each(["", "foo"], "@"),
    ],
    ids=lambda command: " ".join(command)[:60].replace("\0", "NUL"),
)
def test_it_is_refused_in_one_message_and_nothing_is_made(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("a word\n")
    try:
        code = main(command)
    except SystemExit as end:  # of argparse
        code = end.code if isinstance(end.code, int) else 1
    said = capsys.readouterr().err
    assert code == 2, said
    message = said.partition("meshtune")[2].rpartition("error: ")[2]
    assert message.strip() and len(message.splitlines()) <= 10 and len(message) < 2000
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_training_with_a_run_s_folder_names_the_file_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(tmp_path)]) == 2
    assert (
        f"{tmp_path}/report/best.yaml, which `meshtune report RUN` writes"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("chek tiny_cpu", "check"),
        ("search tiny_cpu --polcy random", "--policy"),
        ("check tiny_cpu --jsn", "--json"),
        ("list polices", "policies"),
        ("search tiny_cpu --policy randm", "random"),
        ("init a.yaml --adapter megtron-lm --cluster dgx_h100 --model llama_8b", "megatron-lm"),
    ],
)
def test_what_was_probably_meant_is_named(
    command: str,
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(command.split()))
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(f"did you mean '{meant}'?")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("search tiny_cpu --time 30", "--time 30; it is an option of submit"),
        ("status run --port 1", "--port 1; it is an option of watch"),
        ("check tiny_cpu --model x", "--model x; it is an option of init, predict"),
        ("status run --tirals 3", "--tirals 3"),  # no option of this command is similar
        ("--trials status run", "--trials; it is an option of search, submit"),
    ],
)
def test_an_option_of_another_command_is_told_as_such(
    command: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = command.split()[0]
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err.rstrip()
    assert said.endswith(f"unrecognized arguments: {told}")
    assert said.startswith(f"usage: meshtune {name}" if name[0] != "-" else "usage: meshtune [-h]")
