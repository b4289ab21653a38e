"""Logs here are what the programs wrote when the thing happened, on two hosts node1 and node2."""

from __future__ import annotations

import pytest

from slurm.mpiexec.texts import MPIEXEC_TEXTS
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import Evidence
from slurm.outcome.kinds import Kind
from slurm.outcome.watch import Termination

RULE = "-" * 74 + "\n"
LOST_DAEMON_4 = f"""\
{RULE}ORTE has lost communication with a remote daemon.

  HNP daemon   : [[18368,0],0] on node login1
  Remote daemon: [[18368,0],1] on node node1

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
{RULE}"""
LOST_DAEMON_5 = LOST_DAEMON_4.replace("ORTE", "PRTE").replace("[[18368,0],", "[prterun-x-1@0,")
NOT_ENOUGH_SLOTS = f"""\
{RULE}There are not enough slots available in the system to satisfy the 3
slots that were requested by the application:

  sh

Either request fewer slots for your application, or make more slots
available for use.
{RULE}"""
NO_DIRECTORY_4 = f"""\
{RULE}mpiexec was unable to launch the specified application as it could not
change to the specified working directory:

Working directory: /no-such
Node: node2

while attempting to start process rank 0.
{RULE}"""
NO_SHELL_5 = f"""\
{RULE}prterun was unable to launch the specified application as it could not
access an executable:

   Executable: /bin/sh
   Node: node2

while attempting to start process rank 2.
{RULE}"""
UNREACHABLE_4 = f"""\
ssh: connect to host node2 port 22: No route to host
{RULE}ORTE was unable to reliably start one or more daemons.
This usually is caused by:

* not finding the required libraries and/or binaries on
  one or more nodes.
{RULE}"""
UNREACHABLE_5 = """\
------------------------------------------------------------
A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable, or the executable was unable to find its
required supporting libraries.

  Local host:    login1
  Remote host:   node2
  Daemon exit status: 255
------------------------------------------------------------
"""
UNKNOWN_OPTION = "mpiexec: Error: unknown option \"-o\"\nType 'mpiexec --help' for usage.\n"
NO_PROGRAM_MPICH = (
    "[proxy:0:1@node2] HYDU_create_process (utils/launch/launch.c:73): execvp error on file "
    "/bin/sh (No such file or directory)\n"
)
NO_DIRECTORY_MPICH = (
    "[proxy:0:1@node2] launch_procs (pm/pmiserv/pmip_cb.c:621): unable to change wdir to /no-such "
    "(No such file or directory)\n"
)


def outcome_of(stderr: str, exit_code: int = 1) -> Outcome:
    return classify(
        Evidence(
            Termination.EXITED,
            5.0,
            exit_code=exit_code,
            stderr=stderr,
            nodes=("node1", "node2"),
            texts=MPIEXEC_TEXTS,
        )
    )


@pytest.mark.parametrize("text", [LOST_DAEMON_4, LOST_DAEMON_5], ids=["4", "5"])
def test_a_lost_daemon_makes_its_host_suspect_even_if_mpiexec_exits_with_0(text: str) -> None:
    """Open MPI 5.0.11 was seen to exit with 0."""
    outcome = outcome_of(text, exit_code=0)
    assert outcome.kind is Kind.NODE_FAILURE
    assert "on node node1" in outcome.message
    assert outcome.suspect_nodes == ("node1",)
    assert outcome.lost_nodes == ()  # the sweep sees whether the host answers


@pytest.mark.parametrize(
    ("text", "suspects"),
    [
        (NOT_ENOUGH_SLOTS, ()),
        (NO_DIRECTORY_4, ("node2",)),
        (NO_SHELL_5, ("node2",)),
        (UNREACHABLE_4, ("node2",)),
        (UNREACHABLE_5, ("node2",)),
        (UNKNOWN_OPTION, ()),
        (NO_PROGRAM_MPICH, ()),
        (NO_DIRECTORY_MPICH, ()),
        ("meshtune: node1: PMI_RANK is not set: is it of another MPI?\n", ()),
        ("meshtune: node1: cannot reach the driver: 10.0.0.1 port 4711: No route to host\n", ()),
    ],
)
def test_what_could_not_be_started_is_a_launch_failure_of_the_host_that_is_named(
    text: str, suspects: tuple[str, ...]
) -> None:
    outcome = outcome_of(text)
    assert outcome.kind is Kind.LAUNCH_FAILURE, outcome
    assert outcome.suspect_nodes == suspects


@pytest.mark.parametrize("text", [LOST_DAEMON_4, NOT_ENOUGH_SLOTS, NO_PROGRAM_MPICH])
def test_a_trainer_that_cites_such_a_text_within_a_line_has_crashed(text: str) -> None:
    cited = "".join(f"log: {line}\n" for line in text.splitlines())
    assert outcome_of(cited).kind is Kind.CRASH
