"""What is particular to the local launcher; test_contract.py has what every launcher does."""

from __future__ import annotations

import signal
from contextlib import closing
from typing import Any

import pytest

from slurm import processes
from slurm.launcher import LauncherError
from slurm.local.launcher import LocalLauncher, visible_gpus
from slurm.outcome.kinds import Kind
from support.launched_trials import marked
from support.local_trials import OK, log, python, run, start_driver
from support.waiting import wait_for


def test_the_recorded_command_has_the_variables_of_rank_0(
    launcher: LocalLauncher, make: Any
) -> None:
    spec = make("true", num_nodes=2, env={"COLOUR": "dark red"})
    run(launcher, spec)
    recorded = log(spec, "command.txt")
    assert "# rank 0 of 4, on local0,local1" in recorded
    assert "COLOUR='dark red'" in recorded and "RANK=0" in recorded


def test_a_crash_names_the_rank_that_failed_first(make: Any) -> None:
    with closing(LocalLauncher(failure_grace_s=0.3)) as launcher:
        outcome = run(launcher, make("sh", "-c", '[ "$RANK" = 0 ] && exec sleep 1000; exit 3'))
    assert outcome.kind is Kind.CRASH
    assert outcome.exit_code == 3
    assert "rank 1 on local0 ended with exit code 3" in outcome.stderr_tail


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


def test_a_killed_driver_leaves_no_process(make: Any) -> None:
    spec = make("sh", "-c", "(setsid sleep 1001 &); echo up; exec sleep 1000")
    driver = start_driver(spec)
    wait_for(lambda: log(spec).count("up") == 2, "both ranks run")
    family = processes.descendants(driver.pid) | marked(spec)
    assert len(family) == 6  # server, shepherd, two ranks with a daemon each
    driver.kill()
    driver.wait()
    wait_for(lambda: not any(map(processes.is_running, family)), "everything is gone")
    assert marked(spec) == set()


def test_settle_ends_what_was_left_and_nothing_else(launcher: LocalLauncher, make: Any) -> None:
    spec = make("sh", "-c", "(setsid sleep 1001 &); echo up; exec sleep 1000")
    driver = start_driver(spec)
    try:
        wait_for(lambda: log(spec).count("up") == 2, "both ranks run")
        launcher.settle([spec.name + "-other"])
        assert marked(spec)
        # As if the kernel had killed them: now nobody is left to end the ranks' children.
        helpers = processes.descendants(driver.pid) - marked(spec)
        processes.send([*helpers, driver.pid], signal.SIGKILL)
    finally:
        driver.kill()
        driver.wait()
    wait_for(lambda: len(marked(spec)) == 2, "only the abandoned are left")
    launcher.settle([spec.name])
    assert marked(spec) == set()


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
