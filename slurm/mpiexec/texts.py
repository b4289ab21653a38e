"""Error messages of Open MPI and MPICH, and of agents that never became one.

As Open MPI 4.1.4 and 5.0.11 and MPICH 4.0.2 and 5.0.2 printed them when the fault happened.
"""

from __future__ import annotations

import re

from slurm.outcome.texts import LauncherTexts

_HYDRA = r"^\[(?:mpiexec|proxy:[\d:]+)@[\w.-]+\] "
# Open MPI ends a message with a ruled line. A message also ends where another begins, so that a log
# of nothing but beginnings is read once, not once for each.
_BOX = r"(?:(?!\n(?:-{20}|(?:ORTE|PRTE) has lost|\S+ was unable|A daemon failed))[\s\S])*?"
# Open MPI, unless two variables allow it: before it has tried any host.
REFUSES_ROOT = re.compile(r"(?m)^\S+ has detected an attempt to run as root")

MPIEXEC_TEXTS = LauncherTexts(
    # Whether the host is down, or only mpiexec's daemon on it, is for the sweep to find out.
    lost_node=re.compile(
        r"(?m)^(?:ORTE|PRTE) has lost communication with a remote daemon"
        rf"(?:{_BOX}Remote daemon.* on node (?P<node>[\w.-]+))?"
    ),
    launch_failure=re.compile(
        r"(?m)^(?:"
        rf"(?:\S+ was unable to launch the specified application{_BOX}Node: +"
        rf"|A daemon failed to report back after being spawned{_BOX}Remote host: +"
        r"|ssh: (?:connect to host|Could not resolve hostname) )(?P<node>[\w.-]+).*"
        r"|There are not enough slots available"
        r"|A sequential map was requested, but not enough node entries"
        r"|(?:ORTE|PRTE) was unable to reliably start one or more daemons"
        r"|An (?:ORTE|PRTE) daemon has unexpectedly failed"
        r"|\S+ has detected an attempt to run as root"
        r"|\S+: Error: unknown option"
        r"|Host key verification failed|\S+ Permission denied \(publickey"
        # No host is suspect: mpiexec ends the others before all can say the same.
        r"|meshtune: [\w.-]+: (?:cannot reach the driver|.* is not set: ).*)"
        rf"|{_HYDRA}.*(?:execvp error on file|unable to change wdir|unrecognized argument)"
    ),
)
