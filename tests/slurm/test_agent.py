"""The agent that starts a trial's ranks, and its fork server, spoken to as a launcher would."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from foundation.python import isolated_argv
from slurm import agent, fork_server, forked_rank, handshake, kernel, processes
from slurm.agents import Pump
from slurm.channel import Channel
from slurm.forked_rank import parsed_python
from slurm.outcome.watch import Termination
from slurm.trial import Lease, TrialSpec
from support.waiting import wait_for

LEASE = Lease("1", ("n0", "n1", "n2", "n3"))
PID = "import os; from pathlib import Path; Path('pid').write_text(str(os.getpid()));"


class Server:
    """An agent of its own, of rank 3 by default, and the driver's end of its connection."""

    def __init__(self, folder: Path, modules: str = "", **env: str) -> None:
        self.folder = folder
        self.logs = [folder / "stdout.log", folder / "stderr.log"]
        self._modules = [name for name in modules.split(",") if name]
        self.process = subprocess.Popen(
            isolated_argv(agent.__file__, "MPI_RANK=RANK"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "MPI_RANK": "3", "PYTHONUNBUFFERED": "1", **env},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.rank = int(env.get("MPI_RANK", "3"))
        self.channel = Channel([self.rank], 4, self.order)
        self._pump = Pump({self.process.stdout.fileno(): self.channel.feed})

    def order(self, order: Mapping[str, object]) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def start(
        self,
        trial: str,
        *arguments: str,
        env: Mapping[str, str] = {},
        clear: bool = False,
        program: str = sys.executable,
        forked: bool = True,
    ) -> None:
        self.spec = TrialSpec(trial, self.folder, (program, *arguments), 4, 1, 600.0)
        self.channel.begin(self.spec, LEASE)
        order = {"trial": trial, "argv": self.spec.argv, "cwd": str(self.folder), "clear": clear}
        order |= {"env": dict(env), "ranks": [{}], "memory_bytes": None}
        self.order({**order, "forked": forked, "modules": self._modules})

    def code(self) -> int:
        """The exit code of the trial's rank."""
        wait_for(lambda: self.channel.all_gone or self.channel.void, "the trial has ended")
        assert not self.channel.finish() + self.channel.void
        return self.channel.codes[self.rank]

    def run(
        self, trial: str, *arguments: str, env: Mapping[str, str] = {}, forked: bool = True
    ) -> int:
        self.start(trial, *arguments, env=env, forked=forked)
        return self.code()

    def disturbed(self) -> str:
        """How others have ended the trial, if they have."""
        return self.channel.disturbed(Termination.EXITED, True)

    def pid(self) -> int:
        """Of a rank that has run PID."""
        file = self.folder / "pid"
        wait_for(lambda: file.exists() and file.read_text(), "the rank runs")
        return int(file.read_text())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._pump.join()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes servers of these modules and environment."""
    made: list[Server] = []

    def server(modules: str = "", **env: str) -> Server:
        made.append(Server(tmp_path, modules, **env))
        return made[-1]

    yield server
    for one in made:
        one.close()


@pytest.fixture
def server(make: Callable[..., Server]) -> Server:
    return make("tomllib", KEPT="yes")


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
    make: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "reads.py").write_text(
        "import os\nseen = os.environ.get('MODE')\nos.environ['SET_BY_IMPORT'] = 'yes'\n"
    )
    server = make("reads", PYTHONPATH=str(tmp_path))
    tell = "import os, reads; print(reads.seen, *map(os.environ.get, ('MODE', 'SET_BY_IMPORT')))"
    assert server.run("a", "-c", tell, env={"MODE": "fast"}) == 0
    assert server.run("b", "-c", tell) == 0
    said = [line for line in server.logs[0].read_text().splitlines() if "fast" in line]
    assert said == ["fast fast yes", "fast None yes"]


def test_a_trial_may_have_no_variable_but_its_own(server: Server) -> None:
    server.start("t", "-c", "import os; print(dict(os.environ))", env={"ONLY": "me"}, clear=True)
    assert server.code() == 0
    assert "{'ONLY': 'me'" in server.logs[0].read_text()
    assert "KEPT" not in server.logs[0].read_text()


def test_output_is_data_whatever_is_in_it(server: Server) -> None:
    """Words of agents, backslashes, an open line, and bytes that are no text."""
    said = b"3 end 0 0\n3 gone\n\\n \\\\ \x00\xff\r" + 1500 * b"\\\n" + b"half a line"
    for forked in (True, False):
        code = f"import os, time; os.write(1, {said!r}); time.sleep(0.2); os.write(2, b'err')"
        assert server.run(f"t{forked}", "-c", f"{code}; os._exit(4)", forked=forked) == 4
        assert server.logs[0].read_bytes().endswith(said + b"\n")
        assert server.logs[1].read_text().endswith("err\n")


def test_ranks_hold_no_descriptor_of_their_agents(server: Server) -> None:
    code = "import os; print(sorted(os.readlink(f.path) for f in os.scandir('/proc/self/fd')))"
    for forked in (True, False):
        assert server.run(f"t{forked}", "-c", code, forked=forked) == 0
        said = server.logs[0].read_text().splitlines()[-1]
        held = [name for name in ast.literal_eval(said) if not name.startswith("/proc/")]
        pipes = [name for name in held if name.startswith("pipe:")]
        assert (len(held), len(pipes)) == (3, 2) and "/dev/null" in held


@pytest.mark.parametrize("forked", [True, False])
def test_a_program_that_is_missing_is_no_exit_code(server: Server, forked: bool) -> None:
    server.start("t", "-m", "x", program="/nowhere/python", forked=forked)
    wait_for(lambda: server.channel.all_gone, "the trial has ended")
    why, suspects = server.channel.no_program()
    assert why == "n3: no program /nowhere/python: No such file or directory (rank 3)"
    assert (suspects, server.channel.codes) == ((), {})


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
    assert server.code() == -signal.SIGTERM
    assert not processes.is_running(pid)
    assert server.run("next", "-c", "") == 0


def test_a_signal_from_outside_is_told_and_reaches_the_rank(server: Server) -> None:
    """Slurm signals the task alone, which is the agent; the rank may end in an orderly way."""
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]);"
    server.start("t", "-c", f"{block} {PID} raise SystemExit(signal.sigwait([15]) // 3)")
    server.pid()
    server.process.send_signal(signal.SIGTERM)
    assert server.code() == 5
    assert (
        server.disturbed()
        == f"rank 3 on n3 was sent signal 15 from outside from user {os.getuid()}"
    )


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "rank 3 on n3 was sent signal 9 from outside"), (signal.SIGSEGV, "")],
)
def test_a_kill_is_sent_by_others_and_a_segmentation_fault_is_not(
    server: Server, number: int, said: str
) -> None:
    assert server.run("t", "-c", f"import os; os.kill(os.getpid(), {int(number)})") == -number
    assert server.disturbed() == said


def test_an_agent_that_is_stopped_does_not_answer_and_blames_nobody(server: Server) -> None:
    server.start("t", "-c", f"{PID} import time; time.sleep(600)")
    server.pid()
    assert server.channel.answers()
    server.process.send_signal(signal.SIGSTOP)
    assert not server.channel.answers(timeout_s=0.1)
    assert server.disturbed() == "the agent of rank 3 does not answer"


def test_with_its_orders_end_the_server_and_all_it_has_started(server: Server) -> None:
    server.start("t", "-c", f"{PID} import time; time.sleep(600)")
    pid = server.pid()
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.process.wait(250)
    assert not processes.is_running(pid)


def test_a_rank_starts_afresh_where_an_import_has_started_threads(
    make: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "threads.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    server = make("threads", PYTHONPATH=str(tmp_path), MPI_RANK="0")
    server.start("t", "-c", "import sys; print('imported', 'threads' in sys.modules)")
    wait_for(lambda: "imported False" in server.logs[0].read_text(), "it has run")
    assert "starts afresh, as imports have started 1 threads" in server.logs[1].read_text()


def test_a_rank_starts_afresh_where_there_is_python3_alone(
    make: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "threads.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "python3").symlink_to(sys.executable)
    server = make("threads", PYTHONPATH=str(tmp_path), PATH=str(tmp_path))
    server.start("t", "-c", "import sys; sys.exit(5)", program="python")
    assert server.code() == 5, server.logs[1].read_text()


def test_a_module_that_cannot_be_imported_is_named_and_the_rank_runs(
    make: Callable[..., Server],
) -> None:
    server = make("no_such_module,tomllib")
    assert server.run("t", "-c", "import sys; sys.exit('tomllib' not in sys.modules)") == 0
    assert "cannot import no_such_module" in server.logs[1].read_text()


@pytest.mark.parametrize("module", [agent, fork_server, forked_rank, handshake, kernel])
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


def test_trials_do_not_share_what_is_random(make: Callable[..., Server]) -> None:
    server = make("random,numpy")
    for trial in ("a", "b"):
        code = "import random, numpy; print(random.random(), numpy.random.random())"
        assert server.run(trial, "-c", code) == 0
    drawn = [line for line in server.logs[0].read_text().splitlines() if line[:2] == "0."]
    first, second = (line.split() for line in drawn)
    assert first[0] != second[0] and first[1] != second[1]
    assert "afresh" not in server.logs[1].read_text()


def test_a_module_that_ends_the_interpreter_ends_no_rank(
    make: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    server = make("ends", PYTHONPATH=str(tmp_path))
    assert server.run("t", "-c", "") == 0


def test_a_rank_that_is_to_end_before_its_program_has_begun_was_not_started(
    make: Callable[..., Server],
) -> None:
    server = make()
    for number in range(20):  # where the order came sooner, it ended some as if they had run
        server.start(f"t{number}", program="/no/such/trainer", forked=False)
        server.order({"end": int(signal.SIGKILL)})
        wait_for(lambda: server.channel.all_gone or server.channel.void, "the trial has ended")
        assert not server.channel.finish() + server.channel.void
        assert not server.channel.codes
        assert "no program" in server.channel.no_program()[0]


def test_a_rank_whose_image_has_python3_alone_is_started(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to("/bin/echo")
    done = subprocess.run(
        isolated_argv(agent.__file__, "--", "python", "train.py"),
        env={"PATH": str(tmp_path), "RANK": "0"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "train.py\n", done.stderr
