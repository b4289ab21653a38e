"""The server that forks a trial's ranks, spoken to as srun would."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slurm import fork_server, forked_rank, processes
from slurm.forked_rank import parsed_python
from support.waiting import wait_for

PID = "import os; from pathlib import Path; Path('pid').write_text(str(os.getpid()));"


class Server:
    """A rank server of its own, with its output in files."""

    def __init__(self, folder: Path, modules: str = "", **env: str) -> None:
        self.folder = folder
        self.logs = [folder / "out", folder / "err"]
        outputs = [log.open("ab") for log in self.logs]
        self.process = subprocess.Popen(
            [sys.executable, fork_server.__file__, modules],
            stdin=subprocess.PIPE, stdout=outputs[0], stderr=outputs[1],
            env={**os.environ, "RANK": "3", "PYTHONUNBUFFERED": "1", **env},
        )  # fmt: skip

    def order(self, order: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def start(
        self, trial: str, *arguments: str, env: Mapping[str, str] = {}, clear: bool = False
    ) -> None:
        argv = [sys.executable, *arguments]
        cwd = str(self.folder)
        order = {"trial": trial, "argv": argv, "cwd": cwd, "env": dict(env), "clear": clear}
        self.order({**order, "ranks": [{}], "memory_bytes": None, "forked": True})

    def code(self, trial: str) -> int:
        """The exit code of the trial's rank, told on both outputs."""
        told = [self._told(log, trial) for log in self.logs]
        assert told[0] == told[1]
        return told[0]

    def run(self, trial: str, *arguments: str, env: Mapping[str, str] = {}) -> int:
        self.start(trial, *arguments, env=env)
        return self.code(trial)

    def pid(self) -> int:
        """Of a rank that has run PID."""
        file = self.folder / "pid"
        wait_for(lambda: file.exists() and file.read_text(), "the rank runs")
        return int(file.read_text())

    def _told(self, log: Path, trial: str) -> int:
        found: list[dict[str, Any]] = []

        def look() -> bool:
            told = re.findall(rf"{fork_server.WORD} (.*)\n", log.read_text())
            found[:] = [word for word in map(json.loads, told) if word["trial"] == trial]
            return bool(found)

        wait_for(look, f"{trial} has ended")
        assert [told["rank"] for told in found] == [3]
        code: int = found[0]["code"]
        return code


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, "tomllib", KEPT="yes")
    yield made
    made.process.kill()
    made.process.wait()


def test_ranks_run_as_their_command_would(server: Server, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("X = 5\n")
    tell = (
        "import sys, os, helper\n"
        "print(__name__, sys.argv[1:], helper.X, os.getcwd(), os.environ.get('OLD'),"
        " os.environ['KEPT'], os.environ['NEW'], 'tomllib' in sys.modules, os.getppid())\n"
    )
    (tmp_path / "script.py").write_text(tell)
    expected = f"__main__ ['a', 'b c'] 5 {tmp_path} None yes new True {server.process.pid}"
    for trial, command in (
        ("script", ["script.py"]),
        ("module", ["-m", "script"]),
        ("code", ["-u", "-c", tell]),
    ):
        assert server.run(trial, *command, "a", "b c", env={"NEW": "new"}) == 0
        assert server.logs[0].read_text().count(expected) == 1, server.logs[1].read_text()
        server.logs[0].write_text("")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('why')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import atexit; atexit.register(print, 'the last word')", 0),
    ],
)
def test_exit_codes_are_those_of_the_command(server: Server, program: str, code: int) -> None:
    assert server.run("t", "-c", program) == code
    if "atexit" in program:
        assert "the last word" in server.logs[0].read_text()


def test_the_first_trials_variables_count_for_imports_and_for_no_later_trial(
    tmp_path: Path,
) -> None:
    (tmp_path / "reads.py").write_text(
        "import os\nseen = os.environ.get('MODE')\nos.environ['SET_BY_IMPORT'] = 'yes'\n"
    )
    server = Server(tmp_path, "reads", PYTHONPATH=str(tmp_path))
    tell = "import os, reads; print(reads.seen, *map(os.environ.get, ('MODE', 'SET_BY_IMPORT')))"
    try:
        assert server.run("a", "-c", tell, env={"MODE": "fast"}) == 0
        assert server.run("b", "-c", tell) == 0
        said = [line for line in server.logs[0].read_text().splitlines() if "fast" in line]
        assert said == ["fast fast yes", "fast None yes"]
    finally:
        server.process.kill()
        server.process.wait()


def test_a_trial_may_have_no_variable_but_its_own(server: Server) -> None:
    server.start("t", "-c", "import os; print(dict(os.environ))", env={"ONLY": "me"}, clear=True)
    assert server.code("t") == 0
    assert "{'ONLY': 'me'" in server.logs[0].read_text()
    assert "KEPT" not in server.logs[0].read_text()


def test_what_a_rank_prints_stands_before_its_end(server: Server) -> None:
    server.run("t", "-c", "import sys; print('half a line', end='', flush=True)")
    assert (
        server.logs[0]
        .read_text()
        .startswith(f"half a line{fork_server.END_OF_LINE}{fork_server.WORD} ")
    )


def test_nothing_of_a_rank_is_left_when_its_end_is_told(server: Server, tmp_path: Path) -> None:
    orphan = (
        "import subprocess; from pathlib import Path;"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True);"
        "Path('left').write_text(str(p.pid))"
    )
    assert server.run("t", "-c", orphan) == 0
    assert not processes.is_running(int((tmp_path / "left").read_text()))


def test_a_rank_is_ended_on_order_and_the_server_serves_on(server: Server) -> None:
    server.start("t", "-c", f"{PID} import time; time.sleep(600)")
    pid = server.pid()
    server.order({"end": signal.SIGTERM})
    assert server.code("t") == -signal.SIGTERM
    assert not processes.is_running(pid)
    assert server.run("next", "-c", "") == 0


def test_a_signal_of_slurms_reaches_the_rank_and_ends_the_server_behind_it(server: Server) -> None:
    """Slurm signals the task alone, which is the server; the rank may end in an orderly way."""
    leaves = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5));"
    server.start("t", "-c", f"{leaves} {PID} time.sleep(600)")
    server.pid()
    server.process.send_signal(signal.SIGTERM)
    assert server.code("t") == 5
    assert server.process.wait(60) == 0


def test_with_its_orders_end_the_server_and_all_it_has_started(server: Server) -> None:
    server.start("t", "-c", f"{PID} import time; time.sleep(600)")
    pid = server.pid()
    assert server.process.stdin is not None
    server.process.stdin.close()
    assert server.process.wait(60) == 0
    assert not processes.is_running(pid)


def test_a_rank_starts_afresh_where_an_import_has_started_threads(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    server = Server(tmp_path, "threads", PYTHONPATH=str(tmp_path), RANK="0")
    try:
        server.start("t", "-c", "import sys; print('imported', 'threads' in sys.modules)")
        wait_for(lambda: "imported False" in server.logs[0].read_text(), "it has run")
        assert "starts afresh, as imports have started 1 threads" in server.logs[1].read_text()
    finally:
        server.process.kill()
        server.process.wait()


def test_a_module_that_cannot_be_imported_is_named_and_the_rank_runs(tmp_path: Path) -> None:
    server = Server(tmp_path, "no_such_module,tomllib")
    try:
        assert server.run("t", "-c", "import sys; sys.exit('tomllib' not in sys.modules)") == 0
        assert "cannot import no_such_module" in server.logs[1].read_text()
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("module", [fork_server, forked_rank, processes])
def test_an_older_python_of_the_trainers_can_read_it(module: ModuleType) -> None:
    assert module.__file__ is not None
    ast.parse(Path(module.__file__).read_text(), feature_version=(3, 8))


@pytest.mark.parametrize(
    ("argv", "parsed"),
    [
        (["python", "train.py", "--tp", "2"], ("", ["train.py", "--tp", "2"])),
        (["/opt/bin/python3.11", "-u", "-m", "train"], ("-m", ["train"])),
        (["python", "-c", "pass", "x"], ("-c", ["pass", "x"])),
        (["python", "-X", "dev", "train.py"], None),
        (["python", "-m"], None),
        (["python"], None),
        (["torchrun", "train.py"], None),
        (["bash", "-c", "python train.py"], None),
    ],
)
def test_which_commands_can_be_forked(
    argv: list[str], parsed: tuple[str, list[str]] | None
) -> None:
    assert parsed_python(argv) == parsed


SCRIPT = """
import atexit, multiprocessing, os, pickle, sys
NUMBER = {number}
class Saved:
    pass
def number():
    return NUMBER
def at_the_end():
    print("pickled", len(pickle.dumps(Saved())) > 0)
if __name__ == "__main__":
    atexit.register(at_the_end)
    os.chdir("/")
    print("file", os.path.isfile(__file__), __file__)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawned", pool.apply(number))
"""


@pytest.mark.parametrize("as_module", [False, True])
def test_a_script_is_the_main_module_for_its_helpers_too(
    server: Server, tmp_path: Path, as_module: bool
) -> None:
    for number in (1, 2):
        (tmp_path / f"train{number}.py").write_text(SCRIPT.format(number=number))
        command = ["-m", f"train{number}"] if as_module else [f"train{number}.py"]
        assert server.run(f"t{number}", *command) == 0, server.logs[1].read_text()
        said = server.logs[0].read_text()
        assert f"file True {tmp_path}/train{number}.py" in said
        assert f"spawned {number}" in said
        assert said.count("pickled True") == number


def test_trials_do_not_share_what_is_random(tmp_path: Path) -> None:
    server = Server(tmp_path, "random,numpy")
    try:
        for trial in ("a", "b"):
            code = "import random, numpy; print(random.random(), numpy.random.random())"
            assert server.run(trial, "-c", code) == 0
        drawn = [line for line in server.logs[0].read_text().splitlines() if line[:2] == "0."]
        first, second = (line.split() for line in drawn)
        assert first[0] != second[0] and first[1] != second[1]
        assert "afresh" not in server.logs[1].read_text()
    finally:
        server.process.kill()
        server.process.wait()


def test_a_module_that_ends_the_interpreter_ends_no_rank(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    server = Server(tmp_path, "ends", PYTHONPATH=str(tmp_path))
    try:
        assert server.run("t", "-c", "") == 0
    finally:
        server.process.kill()
        server.process.wait()
