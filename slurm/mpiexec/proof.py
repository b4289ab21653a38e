"""The proof that nothing of a trial is left on its hosts, and that a host can be reached at all.

A second, short mpiexec starts one process a host, the way trials get there. It ends every process
with the trial's name in its environment, and reports. mpiexec's own end proves nothing: ranks on
the driver's host outlive a killed mpiexec, and ranks elsewhere a killed daemon (measured with Open
MPI 4.1.4 and 5.0.11).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slurm.mpiexec.command import scrubbed, sweep_argv
from slurm.mpiexec.dialects import Dialect
from slurm.sweep.node import GONE_S
from slurm.sweep.sweeper import Answers, Run, Swept, answers, run_program, sweep

ANSWER_S = 30.0  # for a sweep beside GONE_S; the first ssh to a busy host takes seconds


@dataclass(frozen=True)
class Sweeper:
    """Ends trials on hosts, which may take ``answer_s`` to answer, and proves it."""

    program: str
    dialect: Dialect
    environ: Mapping[str, str]
    answer_s: float = ANSWER_S
    run: Run = run_program

    def sweep(self, hosts: Sequence[str], names: Collection[str]) -> Swept:
        """See :func:`slurm.sweep.sweeper.sweep`."""
        return sweep(self._ask, hosts, names)

    def _ask(self, hosts: Sequence[str], names: Collection[str]) -> tuple[Answers, str]:
        environ = scrubbed(self.environ)
        argv = sweep_argv(self.program, self.dialect, hosts, names, environ)
        said = self.run(argv, environ, self.answer_s + GONE_S)
        by_rank = {int(rank): pids for rank, pids in answers(said).items() if rank.isdecimal()}
        return {hosts[rank]: pids for rank, pids in by_rank.items() if rank < len(hosts)}, said
