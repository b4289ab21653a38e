"""The mpiexec launcher: one mpiexec per trial, and proof that its hosts are free again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from foundation.writing import write_private
from slurm.launcher import Launcher, LauncherError, LauncherOptions
from slurm.mpiexec.command import mpiexec_argv, mpiexec_environment
from slurm.mpiexec.dialects import Dialect, dialect_of
from slurm.mpiexec.hosts import Host, find_hosts
from slurm.mpiexec.output import OutputPump
from slurm.mpiexec.proof import ANSWER_S, Sweeper
from slurm.mpiexec.texts import MPIEXEC_TEXTS, REFUSES_ROOT
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import clear_attempt, gather
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import StopRule
from slurm.outcome.watch import Termination, ended_by_others, watch
from slurm.sweep.node import end_trials
from slurm.sweep.sweeper import Swept, run_program
from slurm.trial import STDERR_NAME, STDOUT_NAME, Lease, TrialSpec

_VERSION_S = 30.0
_ORDERLY_END_S = 10.0  # after SIGTERM; Open MPI was seen to take 4 s if its ranks ignore the signal
_LAST_OUTPUT_S = 5.0  # of who still holds the pipe when nothing of the trial is left: an ssh


class MpiexecLauncher(Launcher):
    """Starts trials on hosts that Open MPI's or MPICH's mpiexec reaches.

    Args:
        hosts: that may be leased; default: those of the surrounding PBS or LSF job.
        environ: the driver's; ranks get it without variables that hold on the driver's host only.
        address: from a host's name to the address at which ranks reach it.
        answer_s: how long hosts may take to answer a sweep before they are given up.

    Raises LauncherError if there are no hosts, or no mpiexec that is known.
    """

    name = "mpiexec"

    def __init__(
        self,
        hosts: Iterable[Host] | None = None,
        program: str = "mpiexec",
        environ: Mapping[str, str] = os.environ,
        address: Callable[[str], str] = str,
        answer_s: float = ANSWER_S,
    ) -> None:
        found = find_hosts(None, environ) if hosts is None else hosts
        self._hosts = {host.name: host for host in found}
        self._program = program
        self._environ = dict(environ)
        self._address = address
        self._dialect = _dialect(program, self._environ)
        self._sweeper = Sweeper(program, self._dialect, self._environ, answer_s)
        self._silent: set[str] = set()  # hosts that did not answer

    @classmethod
    def from_options(cls, options: LauncherOptions) -> MpiexecLauncher:
        return cls(find_hosts(options.hostfile, os.environ))

    def nodes(self) -> Sequence[str]:
        return tuple(self._hosts)

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        environ = self._trial_environ(spec, lease)
        return mpiexec_argv(self._program, self._dialect, spec, lease, self._hosts, environ)

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        argv = self.command(spec, lease)
        clear_attempt(spec.directory)
        write_private(spec.directory / "command.txt", shlex.join(argv) + "\n")
        if spec.obstacle:
            return Outcome(Kind.LAUNCH_FAILURE, message=spec.obstacle)
        child, pump = self._start(argv, spec, lease)
        try:
            watched = watch(spec, lambda: child.poll() is not None, stop, stop_rule)
        except BaseException:
            self._end(spec, lease, child, spec.grace_s)  # whatever went wrong, nothing is left
            pump.finish(_LAST_OUTPUT_S)
            raise
        grace_s = 0.0 if watched.termination is Termination.EXITED else spec.grace_s
        severed = ended_by_others(child, watched, "mpiexec")
        swept = self._end(spec, lease, child, grace_s)
        pump.finish(_LAST_OUTPUT_S)
        evidence = gather(
            spec,
            lease,
            watched,
            child.returncode,
            down_nodes=swept.silent,
            stuck_nodes=swept.left,
            severed=severed,
            unwritten=pump.problem,
            texts=MPIEXEC_TEXTS,
        )
        return classify(evidence)

    def settle(self, names: Iterable[str]) -> None:
        """End what a killed driver left: mpiexecs on this host, and ranks on all.

        Without names it only sees which hosts answer. Hosts that do not are treated as down.

        Raises LauncherError if processes do not end, or no host answers: mpiexec, which may have
        refused to start anything at all, is quoted.
        """
        wanted = set(names)
        left = end_trials(wanted)  # first the mpiexecs, so that they start nothing more
        swept = self._sweeper.sweep(self.nodes(), sorted(wanted))
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

    def _no_answer(self, output: str) -> str:
        """An error message, with the remedy, if no host has answered."""
        hosts = self.nodes()
        mpiexec = f"{self._program} ({self._dialect.name})"
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
            f"`{self._program} -n 1 {self._dialect.host_flag} {hosts[0]} hostname`. "
            f"It said: {said}"
        )

    def _trial_environ(self, spec: TrialSpec, lease: Lease) -> dict[str, str]:
        return mpiexec_environment(spec, lease, self._address(lease.nodes[0]), self._environ)

    def _start(
        self, argv: Sequence[str], spec: TrialSpec, lease: Lease
    ) -> tuple[subprocess.Popen[bytes], OutputPump]:
        # Descriptors of ours: the pump outlives Popen's files, which close when they are collected.
        (out, out_w), (err, err_w) = os.pipe(), os.pipe()
        try:
            child = subprocess.Popen(
                argv,
                cwd=spec.started_in,
                env=self._trial_environ(spec, lease),
                stdin=subprocess.DEVNULL,
                stdout=out_w,
                stderr=err_w,
                start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
            )
        except OSError as error:
            os.close(out)
            os.close(err)
            raise LauncherError(f"{argv[0]} cannot be started: {error}") from error
        finally:
            os.close(out_w)
            os.close(err_w)
        logs = {out: spec.directory / STDOUT_NAME, err: spec.directory / STDERR_NAME}
        return child, OutputPump(logs, self._dialect.tag)

    def _end(
        self, spec: TrialSpec, lease: Lease, child: subprocess.Popen[bytes], grace_s: float
    ) -> Swept:
        """Signal mpiexec, with rising force, until it ends; then sweep the leased hosts."""
        ladder = [(signal.SIGTERM, _ORDERLY_END_S), (signal.SIGKILL, None)]
        if grace_s:
            ladder.insert(0, (self._dialect.polite, grace_s))
        for signum, wait_s in ladder:
            if child.poll() is None:
                child.send_signal(signum)
                try:
                    child.wait(wait_s)
                except subprocess.TimeoutExpired:
                    continue
        # On this host, which need not be leased: ssh, and ranks that outlive a killed mpiexec.
        end_trials({spec.name})
        swept = self._sweeper.sweep(lease.nodes, {spec.name})
        self._silent.update(swept.silent)
        return swept


def essence(output: str) -> str:
    """Output of mpiexec, shortened: first the lines that name a cause."""
    lines = [" ".join(line.split()) for line in re.sub("-{20,}", "", output).splitlines()]
    causes = [line for line in lines if MPIEXEC_TEXTS.launch_failure.match(line)]
    others = [line for line in lines if line not in causes]
    return " ".join(filter(None, [*dict.fromkeys(causes), *others]))[:300] or "nothing"


def _dialect(program: str, environ: Mapping[str, str]) -> Dialect:
    if shutil.which(program, path=environ.get("PATH")) is None:
        raise LauncherError(
            f"{program} is not on PATH; the mpiexec launcher needs Open MPI, MPICH or Intel MPI "
            "(often `module load openmpi`)"
        )
    return dialect_of(program, run_program([program, "--version"], environ, _VERSION_S))
