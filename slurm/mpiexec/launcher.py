"""The mpiexec launcher: one mpiexec per trial, and proof that its hosts are free again."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from foundation.writing import write_private
from slurm.launcher import Launcher, LauncherError, LauncherOptions
from slurm.mpiexec.agents import MpiAgents
from slurm.mpiexec.command import (
    bound,
    mpiexec_argv,
    mpiexec_environment,
    scrubbed,
    sweep_argv,
    trial_environment,
)
from slurm.mpiexec.dialects import Dialect, dialect_of
from slurm.mpiexec.hosts import Host, find_hosts
from slurm.mpiexec.texts import MPIEXEC_TEXTS, REFUSES_ROOT
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import clear_attempt
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import StopRule
from slurm.sweep.node import GONE_S, end_trials
from slurm.sweep.sweeper import Answers, Run, Swept, answers, run_program, sweep
from slurm.trial import Lease, TrialSpec

ANSWER_S = 30.0  # for a sweep besides GONE_S; the first ssh to a busy host takes seconds
_VERSION_S = 30.0
_GONE_S = 10.0  # for killed ranks to be gone, unless they are stuck in the kernel
_ORDERLY_END_S = 10.0  # for an mpiexec to exit after its agents, and again after SIGTERM


class MpiexecLauncher(Launcher):
    """Starts trials on hosts that Open MPI's or MPICH's mpiexec reaches.

    Args:
        hosts: hosts that may be leased.
        environ: the driver's; ranks get it without variables that hold on the driver's host only.
        address: from a host's name to the address at which ranks reach it.
        answer_s: how long hosts may take to answer a sweep before they count as down.
        run: runs the program of a sweep.

    Raises LauncherError if there is no mpiexec, or an unknown one.
    """

    name = "mpiexec"

    def __init__(
        self,
        hosts: Iterable[Host],
        environ: Mapping[str, str] = os.environ,
        address: Callable[[str], str] = str,
        answer_s: float = ANSWER_S,
        run: Run = run_program,
    ) -> None:
        self._hosts = {host.name: host for host in hosts}
        self._environ = dict(environ)
        self._address = address
        self._dialect = _dialect(self._environ)
        self._answer_s, self._run = answer_s, run
        self._silent: set[str] = set()  # hosts that did not answer

    @classmethod
    def from_options(cls, options: LauncherOptions) -> MpiexecLauncher:
        return cls(find_hosts(options.hostfile, os.environ))

    def nodes(self) -> Sequence[str]:
        return tuple(self._hosts)

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        return self._argv(spec, lease, self._trial_environ(spec, lease))

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        environ = self._trial_environ(spec, lease)
        by_hand = self._argv(spec, lease, environ)
        clear_attempt(spec.directory)
        write_private(spec.directory / "command.txt", shlex.join(by_hand) + "\n")
        if spec.obstacle:
            return Outcome(Kind.LAUNCH_FAILURE, message=spec.obstacle)
        agents = MpiAgents(
            bound(self._argv(replace(spec, argv=()), lease, environ)),
            spec.started_in,
            mpiexec_environment(spec, self._environ),
            spec.world_size,
            map(self._address, lease.nodes),
        )
        try:
            agents.start(spec, lease, environ, memory_bytes=spec.memory_bytes_per_rank)
            watched = agents.watch(stop, stop_rule)
        finally:  # after any error, too, nothing may be left running
            swept = self._end(spec, lease, agents)
            agents.finish()
        evidence = agents.evidence(
            watched, MPIEXEC_TEXTS, down_nodes=swept.silent, stuck_nodes=swept.left
        )
        return classify(evidence)

    def settle(self, names: Iterable[str]) -> None:
        """End the processes of a killed driver: mpiexecs on this host, and ranks on all hosts.

        Without names it only finds out which hosts answer. Silent hosts are treated as down.

        Raises LauncherError if processes do not end, or no host answers; the message then quotes
        mpiexec, which may have refused to start anything.
        """
        wanted = set(names)
        left = end_trials(wanted)  # first the mpiexecs, so that they start nothing more
        swept = self.sweep(self.nodes(), sorted(wanted))
        if len(swept.silent) == len(self._hosts):
            raise LauncherError(self._no_answer(swept.said))
        self._silent.update(swept.silent)
        if left or swept.left:
            where = [f"{host} ({', '.join(map(str, pids))})" for host, pids in swept.left.items()]
            where += [f"this host ({', '.join(map(str, sorted(left)))})"] if left else []
            raise LauncherError(
                f"processes of an earlier driver would not end on {'; '.join(where)}; end them "
                "there, or leave those hosts out of the host file"
            )

    def down_nodes(self) -> set[str]:
        """Hosts that did not answer ``settle`` or the sweep after a trial."""
        return self._silent.copy()

    def sweep(self, hosts: Sequence[str], names: Collection[str]) -> Swept:
        """End these trials on these hosts, and prove that no process of them is left.

        A second, short mpiexec starts one process a host, the way trials get there. It ends every
        process with the trial's name in its environment, and reports. mpiexec's own end proves
        nothing: ranks on the driver's host outlive a killed mpiexec, and ranks elsewhere a killed
        daemon (measured with Open MPI 4.1.4 and 5.0.11).
        """
        return sweep(self._ask, hosts, names)

    def _ask(self, hosts: Sequence[str], names: Collection[str]) -> tuple[Answers, str]:
        environ = scrubbed(self._environ)
        argv = sweep_argv(self._dialect, hosts, names, environ)
        said = self._run(bound(argv), environ, self._answer_s + GONE_S)
        found = answers(said)  # by rank
        return {host: found[str(i)] for i, host in enumerate(hosts) if str(i) in found}, said

    def _no_answer(self, output: str) -> str:
        """Error message, with the remedy, for the case that no host has answered."""
        hosts = self.nodes()
        mpiexec = f"mpiexec ({self._dialect.name})"
        said = essence(output)
        if REFUSES_ROOT.search(output):
            return (
                f"{mpiexec} refuses to run as root: search as another user, or set "
                "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 in the "
                f"environment. It said: {said}"
            )
        return (
            f"{mpiexec} reaches none of the hosts "
            f"{', '.join(hosts[:4])}{' ...' if len(hosts) > 4 else ''}; try "
            f"`mpiexec -n 1 {self._dialect.host_flag} {hosts[0]} hostname`. "
            f"It said: {said}"
        )

    def _trial_environ(self, spec: TrialSpec, lease: Lease) -> dict[str, str]:
        return trial_environment(spec, lease, self._address(lease.nodes[0]), self._environ)

    def _argv(self, spec: TrialSpec, lease: Lease, environ: Mapping[str, str]) -> list[str]:
        return mpiexec_argv(self._dialect, spec, lease, self._hosts, environ)

    def _end(self, spec: TrialSpec, lease: Lease, agents: MpiAgents) -> Swept:
        """End the remaining processes of a trial, and its mpiexec.

        A sweep asks its hosts, unless all agents have reported ``gone`` and mpiexec exits with 0:
        on a host that is going down, an agent may live long enough to see its ranks end.
        """
        if not agents.channel.over:
            agents.end_ranks(signal.SIGKILL, _GONE_S)
        gone = agents.channel.all_gone
        agents.let_go(_ORDERLY_END_S)
        if gone and agents.program.poll() == 0:
            return Swept()
        for number, wait_s in ((signal.SIGTERM, _ORDERLY_END_S), (signal.SIGKILL, None)):
            if agents.alive:
                agents.program.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agents.program.wait(wait_s)
        # On this host, even if it is not leased: ssh, and agents that outlive a killed mpiexec.
        end_trials({spec.name})
        swept = self.sweep(lease.nodes, {spec.name})
        self._silent.update(swept.silent)
        return swept


def essence(output: str) -> str:
    """Output of mpiexec, shortened; lines that name a cause come first."""
    lines = [" ".join(line.split()) for line in re.sub("-{20,}", "", output).splitlines()]
    causes = [line for line in lines if MPIEXEC_TEXTS.launch_failure.match(line)]
    others = [line for line in lines if line not in causes]
    return " ".join(filter(None, [*dict.fromkeys(causes), *others]))[:300] or "nothing"


def _dialect(environ: Mapping[str, str]) -> Dialect:
    if shutil.which("mpiexec", path=environ.get("PATH")) is None:
        raise LauncherError(
            "mpiexec is not on PATH; the mpiexec launcher needs Open MPI, MPICH or Intel MPI "
            "(often `module load openmpi`)"
        )
    return dialect_of(run_program(["mpiexec", "--version"], environ, _VERSION_S))
