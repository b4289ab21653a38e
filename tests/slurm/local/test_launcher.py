from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slurm import processes
from slurm.launcher import LauncherError
from slurm.local.launcher import LocalLauncher, visible_gpus
from slurm.outcome.kinds import Kind
from slurm.python import module_argv
from slurm.trial import TRIAL_VARIABLE, Lease, Outcome, TrialSpec

OK = "import json; json.dump({'status': 'ok', 'x': 1}, open('result.json', 'w'))"


def wait_for(condition: Callable[[], bool], what: str, deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not in {deadline_s} s: {what}"
        time.sleep(0.02)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(code))


def marked(name: str) -> set[int]:
    """Processes that carry the trial's name in their environment."""
    return processes.with_environ(lambda env: env.get(TRIAL_VARIABLE) == name)


@pytest.fixture
def launcher() -> Iterator[LocalLauncher]:
    local = LocalLauncher(num_nodes=2)
    yield local
    local.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., TrialSpec]]:
    def make(*argv: str, **changes: Any) -> TrialSpec:
        fields: dict[str, Any] = {
            "name": f"{tmp_path.name}-{os.getpid()}", "directory": tmp_path, "argv": argv,
            "num_nodes": 1, "ranks_per_node": 2, "timeout_s": 60.0, "grace_s": 5.0,
        }  # fmt: skip
        spec = TrialSpec(**{**fields, **changes})
        made.append(spec.name)
        return spec

    made: list[str] = []
    yield make
    for name in made:  # a test that failed may have left something
        processes.send(marked(name), signal.SIGKILL)


def run(launcher: LocalLauncher, spec: TrialSpec, stop: threading.Event | None = None) -> Outcome:
    lease = Lease(spec.name, tuple(launcher.nodes()[: spec.num_nodes]))
    return launcher.run(spec, lease, stop or threading.Event())


def run_until(launcher: LocalLauncher, spec: TrialSpec, text: str) -> Outcome:
    """Run a trial, and stop it when every rank has printed ``text``."""
    stop = threading.Event()
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run(launcher, spec, stop)))
    thread.start()
    wait_for(lambda: log(spec).count(text) == spec.world_size, f"every rank prints {text}")
    stop.set()
    thread.join(60)
    return outcomes[0]


def log(spec: TrialSpec, name: str = "stdout.log") -> str:
    path = spec.directory / name
    return path.read_text() if path.exists() else ""


def test_every_rank_knows_its_place(launcher: LocalLauncher, make: Any) -> None:
    spec = make(
        *python(f"import os, json; {OK}; print(json.dumps(dict(os.environ)), flush=True)"),
        num_nodes=2,
        env={"COLOUR": "red"},
    )
    assert run(launcher, spec).kind is Kind.OK
    ranks = sorted(map(json.loads, log(spec).splitlines()), key=lambda env: int(env["RANK"]))
    assert [(env["RANK"], env["LOCAL_RANK"]) for env in ranks] == [
        ("0", "0"), ("1", "1"), ("2", "0"), ("3", "1"),
    ]  # fmt: skip
    assert {env["WORLD_SIZE"] for env in ranks} == {"4"}
    assert {env["LOCAL_WORLD_SIZE"] for env in ranks} == {"2"}
    assert {env["COLOUR"] for env in ranks} == {"red"}
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in ranks}) == 1
    assert "COLOUR=red" in log(spec, "command.txt")


def test_a_result_of_an_earlier_attempt_does_not_count(launcher: LocalLauncher, make: Any) -> None:
    spec = make("true")
    (spec.directory / "result.json").write_text('{"status": "ok"}')
    assert run(launcher, spec).kind is Kind.CRASH


def test_a_missing_program_is_a_launch_failure(launcher: LocalLauncher, make: Any) -> None:
    outcome = run(launcher, make("no-such-trainer"))
    assert outcome.kind is Kind.LAUNCH_FAILURE
    assert "no-such-trainer" in outcome.message


def test_a_rank_that_sleeps_times_out(launcher: LocalLauncher, make: Any) -> None:
    spec = make("sleep", "1000", timeout_s=0.5)
    outcome = run(launcher, spec)
    assert outcome.kind is Kind.TIMEOUT
    assert outcome.lost_nodes == ()
    assert marked(spec.name) == set()


def test_grandchildren_end_with_their_trial(launcher: LocalLauncher, make: Any) -> None:
    # The last one is a daemon: a session of its own, no parent, deaf to SIGTERM.
    script = "sleep 1001 & (setsid nohup sh -c 'trap \"\" TERM; echo up; sleep 1002' &); sleep 1003"
    spec = make("sh", "-c", script)
    outcome = run_until(launcher, spec, "up")
    assert outcome.kind is Kind.CANCELLED
    assert outcome.lost_nodes == ()
    assert marked(spec.name) == set()


def test_silence_is_a_hang(launcher: LocalLauncher, make: Any) -> None:
    spec = make("sh", "-c", "echo start; sleep 1000", no_progress_timeout_s=0.5)
    outcome = run(launcher, spec)
    assert outcome.kind is Kind.TIMEOUT
    assert "hang" in outcome.message
    assert outcome.elapsed_s < spec.timeout_s


def test_a_rank_that_ignores_the_polite_signal_is_killed(
    launcher: LocalLauncher, make: Any
) -> None:
    script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    spec = make("sh", "-c", script, grace_s=0.2)
    run_until(launcher, spec, "up")
    assert marked(spec.name) == set()
    assert log(spec, "stderr.log").count("was ended by signal 9") == 2


def test_a_crash_names_the_rank_that_failed_first(make: Any) -> None:
    with closing(LocalLauncher(failure_grace_s=0.3)) as launcher:
        outcome = run(launcher, make("sh", "-c", '[ "$RANK" = 0 ] && exec sleep 1000; exit 3'))
    assert outcome.kind is Kind.CRASH
    assert outcome.exit_code == 3
    assert "rank 1 on local0 exited with code 3" in outcome.stderr_tail


def test_after_a_failure_the_other_ranks_may_still_write_a_result(
    launcher: LocalLauncher, make: Any
) -> None:
    spec = make(*python("""
        import json, os, sys, time
        if os.environ["RANK"] == "1":
            sys.exit(1)
        time.sleep(0.5)
        json.dump({"status": "oom", "where": "forward"}, open("result.json", "w"))
        sys.exit(1)
        """))  # fmt: skip
    assert run(launcher, spec).kind is Kind.OOM


def test_a_stop_lets_ranks_clean_up_and_is_a_cancellation(
    launcher: LocalLauncher, make: Any
) -> None:
    spec = make(
        "sh", "-c", "trap 'echo cleaned; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    )
    assert run_until(launcher, spec, "up").kind is Kind.CANCELLED
    assert log(spec).count("cleaned") == 2


def test_a_stop_before_the_ranks_have_started_ends_them(launcher: LocalLauncher, make: Any) -> None:
    stop = threading.Event()
    stop.set()
    spec = make("sleep", "1000", grace_s=0.0)
    assert run(launcher, spec, stop).kind is Kind.CANCELLED
    assert marked(spec.name) == set()


def test_a_memory_limit_is_really_hit(launcher: LocalLauncher, make: Any) -> None:
    code = f"x = bytearray(300 << 20); {OK}"
    assert run(launcher, make(*python(code))).kind is Kind.OK
    limited = make(*python(code), memory_bytes_per_rank=200 << 20)
    assert run(launcher, limited).kind is Kind.HOST_OOM


def test_lines_of_different_ranks_do_not_mix(launcher: LocalLauncher, make: Any) -> None:
    code = f"""
        import os, sys
        for i in range(300):
            for part in (os.environ["RANK"], " " * 100, "end", "\\n"):
                os.write(1, part.encode())
        os.write(1, b"no newline")
        {OK}
        """
    spec = make(*python(code), ranks_per_node=4)
    assert run(launcher, spec).kind is Kind.OK
    expected = [f"{rank}{'':100}end" for rank in range(4) for _ in range(300)]
    assert sorted(log(spec).splitlines()) == sorted([*expected, *["no newline"] * 4])


def test_trials_run_side_by_side(launcher: LocalLauncher, make: Any, tmp_path: Path) -> None:
    """Each waits for the other, so that one after the other would time out."""
    outcomes = []
    script = "touch ../$0; until [ -e ../$1 ]; do sleep 0.02; done; echo '{}' > result.json"

    def one(node: str, mine: str, other: str) -> None:
        directory = tmp_path / f"trial-{mine}"
        directory.mkdir()
        spec = make("sh", "-c", script, mine, other, name=mine, directory=directory)
        outcomes.append(launcher.run(spec, Lease(mine, (node,)), threading.Event()))

    threads = [
        threading.Thread(target=one, args=args)
        for args in (("local0", "a", "b"), ("local1", "b", "a"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [outcome.kind for outcome in outcomes] == [Kind.OK, Kind.OK]


DRIVER = """
import sys, threading
from pathlib import Path
from slurm.trial import Lease, TrialSpec
from slurm.local.launcher import LocalLauncher

local = LocalLauncher(preload=sys.argv[3])
name, directory = sys.argv[1], Path(sys.argv[2])
spec = TrialSpec(name, directory, tuple(sys.argv[4:]), 1, 2, 600.0)
local.run(spec, Lease(name, ("local0",)), threading.Event())
"""


def start_driver(spec: TrialSpec, preload: str = "trainer") -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", DRIVER, spec.name, str(spec.directory), preload]
    return subprocess.Popen([*argv, *spec.argv], cwd=Path(__file__).parents[3])


def test_a_killed_driver_leaves_no_process(make: Any) -> None:
    spec = make("sh", "-c", "(setsid sleep 1001 &); echo up; exec sleep 1000")
    driver = start_driver(spec)
    wait_for(lambda: log(spec).count("up") == 2, "both ranks run")
    family = processes.descendants(driver.pid) | marked(spec.name)
    assert len(family) == 6  # server, shepherd, two ranks with a daemon each
    driver.kill()
    driver.wait()
    wait_for(lambda: not any(map(processes.is_running, family)), "everything is gone")
    assert marked(spec.name) == set()


def test_settle_ends_what_was_left_and_nothing_else(launcher: LocalLauncher, make: Any) -> None:
    spec = make("sh", "-c", "(setsid sleep 1001 &); echo up; exec sleep 1000")
    driver = start_driver(spec)
    try:
        wait_for(lambda: log(spec).count("up") == 2, "both ranks run")
        launcher.settle([spec.name + "-other"])
        assert marked(spec.name)
        # As if the kernel had killed them: now nobody is left to end the ranks' children.
        helpers = processes.descendants(driver.pid) - marked(spec.name)
        processes.send([*helpers, driver.pid], signal.SIGKILL)
    finally:
        driver.kill()
        driver.wait()
    wait_for(lambda: len(marked(spec.name)) == 2, "only the abandoned are left")
    launcher.settle([spec.name])
    assert marked(spec.name) == set()


def test_a_killed_shepherd_is_noticed(launcher: LocalLauncher, make: Any) -> None:
    spec = make("sh", "-c", "(setsid sleep 1001 &); echo up; exec sleep 1000")
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run(launcher, spec)))
    thread.start()
    wait_for(lambda: log(spec).count("up") == 2, "both ranks run")
    server = launcher._server._process
    assert server is not None
    processes.send(processes.descendants(server.pid) - marked(spec.name), signal.SIGKILL)
    thread.join(60)
    assert outcomes[0].kind is Kind.CRASH
    assert outcomes[0].lost_nodes == ()
    assert marked(spec.name) == set()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Makes a package ``quick`` out of the text that is imported and the text that is run."""

    def make_module(imported: str, executed: str) -> None:
        package = tmp_path / "lib" / "quick"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(textwrap.dedent(imported))
        body = textwrap.indent(textwrap.dedent(executed), "    ")
        (package / "__main__.py").write_text(f"if __name__ == '__main__':\n{body}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))

    return make_module


@pytest.fixture
def quick() -> Iterator[LocalLauncher]:
    local = LocalLauncher(preload="quick")
    yield local
    local.close()


def test_the_preloaded_module_is_imported_once_for_all_trials(
    quick: LocalLauncher, make: Any, module: Any
) -> None:
    module(
        "import os\nimported_in = os.getpid()",
        f"""
        import os, sys, quick
        print(quick.imported_in, os.getpid(), os.environ["RANK"], sys.argv[1:], os.getcwd())
        {OK}
        """,
    )
    lines = []
    for _ in range(2):
        spec = make(*module_argv("quick", "config.json"))
        assert run(quick, spec).kind is Kind.OK
        assert log(spec, "stderr.log") == ""
        lines += log(spec).splitlines()
    fields = [line.split(maxsplit=3) for line in lines]
    assert len({pid for pid, *_ in fields}) == 1
    assert len({pid for _, pid, *_ in fields}) == 4
    assert [rest for *_, rest in fields] == [f"['config.json'] {spec.directory}"] * 4


@pytest.mark.parametrize(
    ("end", "code", "text"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no such key')", 1, "no such key"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
    ],
)
def test_a_forked_rank_ends_as_python_would(
    quick: LocalLauncher, make: Any, module: Any, end: str, code: int, text: str
) -> None:
    module("", f"import sys\n{end}")
    outcome = run(quick, make(*module_argv("quick"), ranks_per_node=1))
    assert outcome.exit_code == code
    assert text in outcome.stderr_tail


def test_a_module_that_does_not_import_says_so_in_the_log(
    quick: LocalLauncher, make: Any, module: Any
) -> None:
    module("import no_such_dependency", "pass")
    outcome = run(quick, make(*module_argv("quick")))
    assert outcome.kind is Kind.CRASH
    assert "No module named 'no_such_dependency'" in outcome.message


def test_settings_that_are_read_at_start_up_are_honoured(
    quick: LocalLauncher, make: Any, module: Any
) -> None:
    module("", f"import sys\nprint(sys.flags.optimize)\n{OK}")
    spec = make(*module_argv("quick"), env={"PYTHONOPTIMIZE": "2"})
    assert run(quick, spec).kind is Kind.OK
    assert log(spec).split() == ["2", "2"]


def test_settle_finds_forked_ranks(quick: LocalLauncher, make: Any, module: Any) -> None:
    """Their environment in /proc is the server's, so something else has to mark them."""
    module("", """
        import os, signal, time
        if os.fork() == 0:
            os.setsid()
        os.write(1, f"up {os.getpid()}\\n".encode())  # at once: four processes share the file
        time.sleep(1000)
        """)  # fmt: skip
    spec = make(*module_argv("quick"))
    driver = start_driver(spec, "quick")
    wait_for(lambda: log(spec).count("\n") == 4, "both ranks and their children run")
    ranks = {int(line.split()[1]) for line in log(spec).splitlines()}
    # The driver last: its shepherd would end all of them when it is gone.
    helpers = processes.descendants(driver.pid) - ranks
    processes.send([*helpers, driver.pid], signal.SIGKILL)
    driver.wait()
    wait_for(lambda: sum(map(processes.is_running, ranks)) == 2, "the ranks died")
    quick.settle([spec.name])
    assert not any(map(processes.is_running, ranks))


def test_torch_is_sound_in_forked_ranks(quick: LocalLauncher, make: Any, module: Any) -> None:
    module(
        """
        import os, torch, torch.distributed
        threads_at_import = len(os.listdir("/proc/self/task"))
        """,
        f"""
        import torch, torch.distributed as dist, quick
        assert quick.threads_at_import == 1, quick.threads_at_import
        assert torch.get_num_threads() == 2, torch.get_num_threads()
        dist.init_process_group("gloo")
        x = torch.randn(256, 256, generator=torch.Generator().manual_seed(1), requires_grad=True)
        (x @ x).sum().backward()
        dist.all_reduce(x.grad)
        expected = 2 * (x.sum(0)[:, None] + x.sum(1)[None, :])
        torch.testing.assert_close(x.grad, expected.detach(), rtol=1e-4, atol=1e-3)
        dist.destroy_process_group()
        {OK}
        """,
    )
    outcome = run(quick, make(*module_argv("quick"), cpus_per_rank=2))
    assert outcome.kind is Kind.OK, outcome


def test_gpus_are_dealt_out_to_the_nodes(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    local = LocalLauncher(num_nodes=2)
    spec = make(
        "sh", "-c", "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES; echo '{}' > result.json", num_nodes=2
    )
    assert run(local, spec).kind is Kind.OK
    local.close()
    assert sorted(log(spec).splitlines()) == ["0 4,5", "0 6,7", "1 4,5", "1 6,7"]


def test_hidden_gpus_stay_hidden() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ("CUDA_VISIBLE_DEVICES", [])
    assert visible_gpus({"ROCR_VISIBLE_DEVICES": "1,3"}) == ("ROCR_VISIBLE_DEVICES", ["1", "3"])


def test_no_nodes_are_refused() -> None:
    with pytest.raises(LauncherError, match="at least 1"):
        LocalLauncher(num_nodes=0)


def test_a_fork_server_that_was_killed_is_started_again(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    first = launcher.run(*_trivial(tmp_path, "before"), threading.Event())
    server = launcher._server._process
    assert server is not None
    server.kill()
    server.wait()
    second = launcher.run(*_trivial(tmp_path, "after"), threading.Event())
    assert (first.kind, second.kind) == (Kind.OK, Kind.OK)


def test_a_fork_server_that_could_not_start_is_started_with_the_next_trial(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(LauncherError, match="No such file"):
            launcher.run(*_trivial(tmp_path, "before"), threading.Event())
    assert launcher.run(*_trivial(tmp_path, "after"), threading.Event()).kind is Kind.OK


def _trivial(folder: Path, name: str) -> tuple[TrialSpec, Lease]:
    directory = folder / name
    directory.mkdir()
    argv = ("/bin/echo", 'MESHTUNE_RESULT {"speed": 1}')
    spec = TrialSpec(f"test-{name}", directory, argv, num_nodes=1, ranks_per_node=1, timeout_s=60)
    return spec, Lease(name, ("local0",))
