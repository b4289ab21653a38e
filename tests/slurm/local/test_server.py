"""Ranks that are forked from a process which has the trainer imported."""

from __future__ import annotations

import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from foundation.python import module_argv
from slurm import processes
from slurm.launcher import LauncherError
from slurm.local.launcher import LocalLauncher
from slurm.local.server import marker
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from support.launched_trials import marked
from support.local_trials import OK, fork_servers, log, run, start_driver
from support.waiting import wait_for


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
    with closing(LocalLauncher(preload="quick")) as local:
        yield local


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
    # The driver last: its agent would end all of them when it is gone.
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


SPEAK = ("/bin/echo", 'MESHTUNE_RESULT {"speed": 1}')


def test_a_fork_server_that_was_killed_is_started_again(launcher: LocalLauncher, make: Any) -> None:
    first = run(launcher, make(*SPEAK))
    wait_for(lambda: len(fork_servers()) == 1, "the agent has ended")
    (server,) = fork_servers()
    processes.send([server], signal.SIGKILL)
    wait_for(lambda: not processes.is_running(server), "it is dead")
    second = run(launcher, make(*SPEAK))
    assert (first.kind, second.kind) == (Kind.OK, Kind.OK)


def test_a_fork_server_that_could_not_start_is_started_with_the_next_trial(
    launcher: LocalLauncher, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/no/such/python")
        with pytest.raises(LauncherError, match="No such file"):
            run(launcher, make(*SPEAK))
    assert run(launcher, make(*SPEAK)).kind is Kind.OK


@pytest.mark.parametrize(
    ("result", "kind", "number"),
    [
        ("", Kind.PREEMPTED, signal.SIGKILL),
        ('echo \'{"status": "ok", "x": 1}\' > result.json; ', Kind.OK, signal.SIGKILL),
        ("", Kind.PREEMPTED, signal.SIGSTOP),
    ],
)
def test_a_killed_or_stopped_agent_leaves_nothing_blames_nobody_and_costs_no_result(
    launcher: LocalLauncher,
    make: Any,
    result: str,
    kind: Kind,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(launcher, make(*SPEAK))
    server = fork_servers()
    spec = make(
        "sh",
        "-c",
        f"{result}(setsid sleep 1001 &); echo up; exec sleep 1000",
        no_progress_timeout_s=10.0 if number == signal.SIGSTOP else None,  # finds it silent
    )
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run(launcher, spec)))
    thread.start()
    wait_for(lambda: log(spec).count("up") == 2, "both ranks run")
    monkeypatch.setattr("slurm.channel.ANSWER_S", 0.5)
    processes.send(fork_servers() - server, number)
    thread.join()
    assert outcomes[0].kind is kind, outcomes
    assert outcomes[0].lost_nodes == ()
    assert marked(spec) == set()


def test_a_trial_whose_fork_server_is_killed_while_it_imports_says_nothing_of_itself(
    quick: LocalLauncher, make: Any, module: Any
) -> None:
    module("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", OK)
    outcome = run(quick, make(*module_argv("quick")))
    assert outcome.kind is Kind.LAUNCH_FAILURE
    assert "fork server was killed" in outcome.message


def test_a_driver_that_dies_while_its_fork_server_imports_gets_no_ranks_any_more(
    make: Any, module: Any, tmp_path: Path
) -> None:
    """The next driver may have started the trial again by then, in the same folder."""
    importing, go = tmp_path / "importing", tmp_path / "go"
    waits = "while not os.path.exists"
    module(
        f"import os, time\nopen({str(importing)!r}, 'w')\n{waits}({str(go)!r}): time.sleep(0.01)",
        OK,
    )
    spec = make(*module_argv("quick"))
    driver = start_driver(spec, "quick")
    wait_for(importing.exists, "the fork server imports the trainer")
    (server,) = processes.descendants(driver.pid)
    driver.kill()
    driver.wait()
    go.touch()
    wait_for(lambda: not processes.is_running(server), "the fork server has ended")
    mark = marker(spec.name)  # of an agent that was forked nevertheless
    holders = [pid for pid in processes.all_pids() if mark in processes.open_files(pid)]
    wait_for(lambda: not any(map(processes.is_running, holders)), "its agent has ended")
    assert not (spec.directory / "result.json").exists()
