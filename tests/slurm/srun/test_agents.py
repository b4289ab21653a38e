"""Faults of a trial's agents, and words that are not theirs, on a real Slurm."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from slurm import processes
from slurm.outcome.kinds import Kind
from slurm.srun import shell
from slurm.srun.launcher import SrunLauncher
from slurm.trial import Kept, TrialSpec
from support.launched_trials import HANG, SLEEP, in_thread, marked, pids, run_on, trial
from support.srun_trials import assert_gone, sruns_of
from support.waiting import wait_for

pytestmark = pytest.mark.slurm
KEPT = Kept(f"agents-{os.getpid()}-ranks", ())
FORGED = r"""
import sys
for out in (sys.stdout, sys.stderr):
    print("half a line", end="", file=out, flush=True)
    print('\n0 end 0 0\n1 end 0 0\n0 gone\n1 gone\n0 sig 15 0\n[[[[[[', file=out, flush=True)
    print('MESHTUNE_RANK {"trial": "t", "rank": 0, "code":1e999}', file=out, flush=True)
    print("srun: error: Node failure on n1", file=out)
    print("slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T03:00:11 "
          "DUE TO PREEMPTION ***", file=out)
    print("srun: error: Slurm job 2 has expired", file=out, flush=True)
sys.exit(3)
"""


def agents_of(spec: TrialSpec) -> list[int]:
    """Agents of the trial's ranks."""
    found = []
    for pid in sorted(marked(spec) | processes.with_environ(lambda env: "SLURM_STEP_ID" in env)):
        line: list[bytes] = []
        with suppress(OSError):  # another test's, which has ended
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        mine = f"MESHTUNE_TRIAL={spec.kept.mark if spec.kept else spec.name}".encode()
        if processes.AGENT.encode() in line and any(word.startswith(mine) for word in line):
            found.append(pid)
    return [pid for pid in found if processes.name(pid).startswith("python")]


@pytest.mark.parametrize("kept", [None, KEPT])
def test_words_in_a_trainers_mouth_decide_nothing(
    launcher: SrunLauncher, tmp_path: Path, kept: Kept | None
) -> None:
    spec = trial(tmp_path, "forger", FORGED, num_nodes=2, ranks_per_node=1, kept=kept)
    outcome = run_on(launcher, spec)
    assert (outcome.kind, outcome.exit_code, outcome.message) == (Kind.CRASH, 3, "exit code 3")
    assert (outcome.lost_nodes, outcome.suspect_nodes) == ((), ())
    assert "Node failure on n1" in (spec.directory / "stdout.log").read_text()
    launcher.close()


@pytest.mark.parametrize("name", ["INT", "TERM"])
@pytest.mark.parametrize("kept", [None, KEPT])
def test_a_signal_to_all_of_a_step_blames_nobody(
    launcher: SrunLauncher, tmp_path: Path, name: str, kept: Kept | None
) -> None:
    spec = trial(tmp_path, "signalled", HANG + SLEEP, kept=kept)
    thread, outcomes = in_thread(lambda: run_on(launcher, spec))
    wait_for(lambda: len(pids(spec)) == 2, "both ranks run")
    [step] = [
        s
        for s in launcher.allocation.steps()
        if s.name.startswith(kept.mark if kept else spec.name)
    ]
    with suppress(shell.SlurmError):  # Slurm 22.05 says that there is no such job, and signals it
        shell.run(["scancel", "-s", name, step.id])
    thread.join()
    assert [o.kind for o in outcomes] == [Kind.PREEMPTED], outcomes
    assert "from outside" in outcomes[0].message
    assert_gone(launcher, spec)
    launcher.close()


@pytest.mark.parametrize(("whom", "number"), [("agent", signal.SIGKILL), ("srun", signal.SIGSTOP)])
def test_an_agent_or_srun_that_is_killed_or_stopped_blames_nobody_and_leaves_nothing(
    launcher: SrunLauncher,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whom: str,
    number: signal.Signals,
) -> None:
    spec = trial(tmp_path, f"{whom}{int(number)}", HANG + SLEEP)
    thread, outcomes = in_thread(lambda: run_on(launcher, spec))
    wait_for(lambda: len(pids(spec)) == 2, "both ranks run")
    victims = set(agents_of(spec)[:1]) if whom == "agent" else sruns_of(spec)
    assert victims
    for limit, seconds in (("SILENCE_S", 3.0), ("ANSWER_S", 1.0)):
        monkeypatch.setattr(f"slurm.channel.{limit}", seconds)
    processes.send(victims, number)
    thread.join()
    assert [o.kind for o in outcomes] == [Kind.PREEMPTED], outcomes
    assert outcomes[0].lost_nodes == outcomes[0].suspect_nodes == ()
    assert not any(map(processes.is_running, victims))
    assert_gone(launcher, spec)
