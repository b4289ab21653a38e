"""The contract of launchers of real processes, as tests; see :mod:`.launchers`."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from meshtune.testing.launchers import DEADLINE_S, SLEEP, LauncherContract, MakeTrial
from slurm import EarlyStop, Kind, Launcher, Outcome, StepReport, TrialSpec, processes

_OK = """
if rank == "0":
    write("result.json", '{"status": "ok", "speed": 7.0}')
"""
_DRIVER = """
import sys, threading
from pathlib import Path
from slurm.trial import Lease, TrialSpec
{code}
name, directory, node, *argv = sys.argv[1:]
spec = TrialSpec(name, Path(directory), tuple(argv), 1, 2, 600.0)
launcher.run(spec, Lease(name, (node,)), threading.Event())
"""


class ProcessLauncherContract(LauncherContract):
    """Tests that every launcher of real processes passes."""

    missing_program = Kind.LAUNCH_FAILURE
    """Kind of a trial whose program is found on no node; CRASH if the launcher cannot tell."""

    def code(self, launcher: Launcher) -> str:
        """Python statements that make an equal ``launcher`` in another process."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `code`")

    def alive(self, spec: TrialSpec) -> Collection[int]:
        """Ids of the trial's running processes; override it if ranks run elsewhere."""
        return [pid for pid in self.pids(spec) if processes.is_running(pid)]

    def pids(self, spec: TrialSpec) -> list[int]:
        """Ids of all processes that the trial's ranks have written."""
        return [int(path.read_text()) for path in spec.directory.glob("pid*")]

    def wait_for_ranks(self, spec: TrialSpec, count: int | None = None) -> None:
        wanted, deadline = count or spec.world_size, time.monotonic() + DEADLINE_S
        while len(self.pids(spec)) < wanted:
            assert time.monotonic() < deadline, f"not {wanted} processes within {DEADLINE_S:g} s"
            time.sleep(0.05)

    def assert_gone(self, spec: TrialSpec) -> None:
        assert self.pids(spec), "it had never started"
        assert not self.alive(spec)

    def ended_by_a_limit(self, make: Callable[[float], TrialSpec]) -> tuple[TrialSpec, Outcome]:
        """A trial that a limit in seconds has ended, made by ``make``, and its outcome.

        Its ranks write ``ready`` and their number. If a slow machine has not started them all
        within the limit, the test is inconclusive, and another trial gets a longer limit.
        """
        for limit_s in (5.0, 20.0, 80.0):
            spec = make(limit_s)
            outcome = self.outcome(spec)
            if len(list(spec.directory.glob("ready*"))) == spec.world_size:
                break
        return spec, outcome

    # ---- a trial that goes well ----

    def test_a_trial_that_ends_well_is_ok_and_has_its_result(self, trial: MakeTrial) -> None:
        spec = trial(_OK)
        outcome = self.outcome(spec)
        assert outcome.kind is Kind.OK, outcome
        assert outcome.result == {"status": "ok", "speed": 7.0}
        assert (outcome.lost_nodes, outcome.suspect_nodes) == ((), ())
        assert outcome.elapsed_s > 0
        self.assert_gone(spec)

    def test_a_result_is_also_found_in_what_a_rank_prints(self, trial: MakeTrial) -> None:
        spec = trial("if rank == '1': print('MESHTUNE_RESULT {\"speed\": 3.5}')")
        outcome = self.outcome(spec)
        assert (outcome.kind, outcome.result) == (Kind.OK, {"speed": 3.5}), outcome

    def test_a_result_that_was_there_before_does_not_count(self, trial: MakeTrial) -> None:
        spec = trial()
        (spec.directory / "result.json").write_text('{"status": "ok"}')
        assert self.outcome(spec).kind is Kind.CRASH

    def test_every_rank_knows_its_place(self, trial: MakeTrial) -> None:
        num_nodes = min(2, len(self.tested.nodes()))
        code = """
            seen = {**os.environ, "directory": os.getcwd(), "arguments": sys.argv[1:]}
            write("env" + rank, json.dumps(seen))
            """
        spec = trial(code, _OK, num_nodes=num_nodes, env={"COLOUR": "dark red"})
        assert self.outcome(spec).kind is Kind.OK
        envs = [json.loads((spec.directory / f"env{i}").read_text()) for i in range(2 * num_nodes)]
        assert [env["LOCAL_RANK"] for env in envs] == ["0", "1"] * num_nodes
        for name in ("NODE_RANK", "GROUP_RANK"):
            assert [env[name] for env in envs] == [str(i // 2) for i in range(2 * num_nodes)]
        assert [env["ROLE_RANK"] for env in envs] == [env["RANK"] for env in envs]
        alike = {
            "WORLD_SIZE": str(2 * num_nodes),
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": str(num_nodes),
            "TORCHELASTIC_RUN_ID": spec.name,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "MESHTUNE_TRIAL_DIR": str(spec.directory),
        }
        for name, value in alike.items():
            assert {env[name] for env in envs} == {value}, name
        assert all(int(env["OMP_NUM_THREADS"]) >= 1 for env in envs)
        assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in envs}) == 1
        assert {env["COLOUR"] for env in envs} == {"dark red"}
        assert {os.path.realpath(env["directory"]) for env in envs} == {
            os.path.realpath(spec.directory)
        }

    def test_it_is_started_in_the_folder_that_it_asks_for(
        self, trial: MakeTrial, shared_folder: Path
    ) -> None:
        there = shared_folder / "scripts"
        there.mkdir()
        code = """
            Path(os.environ["MESHTUNE_TRIAL_DIR"], "at" + rank).write_text(os.getcwd())
            """
        spec = trial(code, 'print("MESHTUNE_RESULT {}")', workdir=there)
        assert self.outcome(spec).kind is Kind.OK
        at = [(spec.directory / f"at{rank}").read_text() for rank in range(2)]
        assert {os.path.realpath(folder) for folder in at} == {os.path.realpath(there)}
        assert not (there / "stdout.log").exists()
        nowhere = trial(code, workdir=shared_folder / "nowhere")
        outcome = self.outcome(nowhere)
        assert outcome.kind is Kind.LAUNCH_FAILURE and "nowhere" in outcome.message

    def test_its_folder_has_the_logs_and_the_command(self, trial: MakeTrial) -> None:
        spec = trial("print('out', rank); print('err', rank, file=sys.stderr)", _OK)
        assert self.outcome(spec).kind is Kind.OK
        out = (spec.directory / "stdout.log").read_text().splitlines()
        err = (spec.directory / "stderr.log").read_text().splitlines()
        assert {"out 0", "out 1"} <= set(out)
        assert {"err 0", "err 1"} <= set(err)
        assert (spec.directory / "command.txt").read_text().strip()

    def test_two_trials_run_at_once_on_nodes_of_their_own(self, trial: MakeTrial) -> None:
        """Each waits for the other: in sequence they would never end."""
        if min(len(self.tested.nodes()), self.tested.max_concurrent) < 2:
            pytest.skip("it has one node, or runs one trial at once")
        wait = """
            while not Path("../trial{other}/pid0").exists():
                time.sleep(0.05)
            """
        specs = [trial(wait.format(other=other), _OK) for other in (2, 1)]
        running = [self.start(s, first_node=i) for i, s in enumerate(specs)]
        assert [r.outcome().kind for r in running] == [Kind.OK, Kind.OK]

    # ---- a trial that fails ----

    def test_a_rank_that_fails_is_a_crash_and_ends_the_others(self, trial: MakeTrial) -> None:
        code = """
            if rank == "1":
                while not Path("pid0").exists():
                    time.sleep(0.05)
                sys.exit(3)
            """
        spec = trial(code, SLEEP)
        outcome = self.outcome(spec)
        assert outcome.kind is Kind.CRASH
        assert "exit code 3" in outcome.message
        assert outcome.exit_code != 0
        assert outcome.lost_nodes == ()
        self.assert_gone(spec)

    def test_an_exception_is_in_the_message_of_the_crash(self, trial: MakeTrial) -> None:
        spec = trial("raise RuntimeError('boom')")
        outcome = self.outcome(spec)
        assert outcome.kind is Kind.CRASH
        assert "RuntimeError: boom" in outcome.message
        assert "RuntimeError: boom" in outcome.stderr_tail

    def test_what_the_trainer_says_of_its_failure_decides(self, trial: MakeTrial) -> None:
        code = """
            if rank == "0":
                write("result.json", '{"status": "oom", "where": "forward", "message": "full"}')
                sys.exit(1)
            """
        outcome = self.outcome(trial(code))
        assert (outcome.kind, outcome.message) == (Kind.OOM, "forward: full")

    def test_a_device_out_of_memory_is_seen_in_the_log(self, trial: MakeTrial) -> None:
        code = "sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB')"
        assert self.outcome(trial(code)).kind is Kind.OOM

    def test_a_program_that_is_nowhere_ends_as_documented(self, trial: MakeTrial) -> None:
        outcome = self.outcome(trial(argv=("/no/such/trainer",)))
        assert outcome.kind is self.missing_program, outcome
        assert "/no/such/trainer" in outcome.message + outcome.stderr_tail
        assert outcome.suspect_nodes == ()

    # ---- a trial that is ended ----

    def test_a_trial_that_takes_too_long_times_out_and_may_clean_up(self, trial: MakeTrial) -> None:
        code = """
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            write("ready" + rank, "")
            signal.sigwait([signal.SIGTERM])
            write("bye" + rank, "")
            """
        spec, outcome = self.ended_by_a_limit(
            lambda limit_s: trial(code, timeout_s=limit_s, grace_s=60.0)
        )
        assert outcome.kind is Kind.TIMEOUT
        assert len(list(spec.directory.glob("bye*"))) == 2
        self.assert_gone(spec)

    def test_silence_is_a_hang_and_ends_even_ranks_that_ignore_the_polite_signal(
        self, trial: MakeTrial
    ) -> None:
        code = """
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            write("ready" + rank, "")
            """
        changes = {"num_nodes": min(2, len(self.tested.nodes())), "grace_s": 0.5}
        spec, outcome = self.ended_by_a_limit(
            lambda limit_s: trial(code, SLEEP, no_progress_timeout_s=limit_s, **changes)
        )
        assert outcome.kind is Kind.TIMEOUT
        assert "a hang" in outcome.message
        assert outcome.lost_nodes == ()
        self.assert_gone(spec)

    def test_a_trial_that_is_stopped_is_cancelled_and_leaves_nothing(
        self, trial: MakeTrial
    ) -> None:
        """Also not a daemon in its own session that ignores SIGTERM."""
        code = """
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                write("pid-daemon" + rank, str(os.getpid()))
            """
        spec = trial(code, SLEEP, num_nodes=min(2, len(self.tested.nodes())))
        running = self.start(spec)
        self.wait_for_ranks(spec, count=2 * spec.world_size)
        running.stop.set()
        outcome = running.outcome()
        assert outcome.kind is Kind.CANCELLED
        assert outcome.lost_nodes == ()
        self.assert_gone(spec)

    def test_a_stop_rule_is_asked_after_each_step_and_ends_the_trial_early(
        self, trial: MakeTrial
    ) -> None:
        code = """
            for step in (1, 2, 3):
                if rank == "0":
                    print("MESHTUNE_STEP", json.dumps({"step": step, "speed": 2.0}), flush=True)
            """
        early = EarlyStop("too slow", {"status": "ok", "speed": 2.0}, saved_s=12.0)

        def slow(steps: Sequence[StepReport]) -> EarlyStop | None:
            return early if [step["step"] for step in steps] == [1, 2, 3] else None

        spec = trial(code, SLEEP)
        outcome = self.outcome(spec, slow)
        assert (outcome.kind, outcome.stopped_early) == (Kind.OK, True), outcome
        assert (outcome.result, outcome.saved_s) == (early.result, 12.0)
        assert outcome.message == "too slow"
        self.assert_gone(spec)

    def test_what_a_killed_driver_left_is_settled_and_nothing_else_is_touched(
        self, trial: MakeTrial
    ) -> None:
        specs = trial(SLEEP), trial(SLEEP)
        nodes = itertools.cycle(self.tested.nodes())
        drivers = [self._driver(s, n) for s, n in zip(specs, nodes, strict=False)]
        try:
            for spec in specs:
                self.wait_for_ranks(spec)
            drivers[0].kill()
            drivers[0].wait()
            self.tested.settle([specs[0].name, "never-started"])
            self.assert_gone(specs[0])
            assert len(self.alive(specs[1])) == 2
        finally:
            for driver in drivers:
                driver.kill()
                driver.wait()
        self.tested.settle([specs[1].name])
        self.assert_gone(specs[1])

    def _driver(self, spec: TrialSpec, node: str) -> subprocess.Popen[bytes]:
        """A process that runs the trial with an equal launcher."""
        code = _DRIVER.format(code=self.code(self.tested))
        argv = [sys.executable, "-c", code, spec.name, str(spec.directory), node, *spec.argv]
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        return subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path})
