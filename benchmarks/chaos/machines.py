"""Machines of a round: this machine's processes, or hosts of an mpiexec; see also slurm_machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path

from slurm import processes

NODES = 3  # of a round's allocation
SLOWER = float(os.environ.get("CHAOS_SLOWER", "1"))  # all limits on time are so many times longer


class Machine(ABC):
    """Gives drivers what they are started with, and says what they have left."""

    launcher: str
    no_progress_s: float  # silence of a trial's that is a hang here
    lacks: frozenset[str] = frozenset()  # faults and cases that cannot be here

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Additional variables of a driver's environment."""

    def arguments(self) -> list[str]:
        """Additional arguments of a search."""
        return []

    def renew(self) -> None:  # noqa: B027 - processes need nothing
        """Make sure that a driver can start trials; called before each."""

    def steps_left(self, names: Collection[str]) -> list[str]:
        """Steps of these names, in words."""
        return []

    def clean(self) -> None:  # noqa: B027
        """After a round: end what it was given."""


class Local(Machine):
    """Processes of this machine."""

    launcher = "local"
    no_progress_s = 8.0

    def __init__(self) -> None:
        if os.geteuid() != 0:  # to mount a small disk
            self.lacks = frozenset({"disk_full", "no_inodes"})
        self.lacks |= lacking_programs()

    def environment(self) -> dict[str, str]:
        return {}


# Stands in for ssh. Of the environment of its caller only the round's mark gets to a host.
_SSH = """\
#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1
shift
if [ -e "{folder}/down.$host" ]; then
  echo "ssh: connect to host $host port 22: No route to host" >&2
  exit 255
fi
mkdir -p "{folder}/$host"
exec env -i HOME="$HOME" PATH="$PATH" PYTHONPATH="$PYTHONPATH" CHAOS_ROUND="$CHAOS_ROUND" \\
  TMPDIR="{folder}/$host" setsid /bin/sh -c "$*"
"""


class Mpiexec(Machine):
    """Hosts that an Open MPI reaches by a stand-in for ssh, which are all this machine.

    Args:
        folder: of its own; its path is short, and has no spaces.
    """

    launcher = "mpiexec"
    no_progress_s = 20.0

    def __init__(self, folder: Path) -> None:
        self.lacks = lacking_programs()
        self.folder = folder
        self.hosts = [f"h{number}" for number in range(NODES)]
        (folder / "ssh").write_text(_SSH.format(folder=folder))
        (folder / "ssh").chmod(0o755)
        (folder / "hosts").write_text("".join(f"{host}\n" for host in self.hosts))

    def environment(self) -> dict[str, str]:
        agents = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
        root = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
        return {
            **dict.fromkeys(agents, str(self.folder / "ssh")),
            **dict.fromkeys(root, "1"),
            **dict.fromkeys((f"{name}_CONFIRM" for name in root), "1"),
        }

    def arguments(self) -> list[str]:
        return ["--hostfile", str(self.folder / "hosts")]

    def strike(self, host: str) -> None:
        """The host dies with all that is on it, and answers no more."""
        (self.folder / f"down.{host}").touch()
        here = str(self.folder / host)  # and none of another campaign's
        processes.end_all(lambda: processes.with_environ(lambda e: e.get("TMPDIR") == here))

    def renew(self) -> None:
        """Bring every host back."""
        for host in self.hosts:
            (self.folder / f"down.{host}").unlink(missing_ok=True)


def can_trace() -> bool:
    """Whether strace is here, and may trace."""
    line = ["strace", "-o", "/dev/null", "true"]
    with contextlib.suppress(OSError):
        return subprocess.run(line, capture_output=True).returncode == 0
    return False


def lacking_programs() -> frozenset[str]:
    """Faults that need a program which is not here."""
    return (
        frozenset()
        if shutil.which("strace")
        else frozenset({"stale_files", "no_locks", "read_only"})
    )


def until(condition: Callable[[], object], deadline_s: float) -> bool:
    """Wait until it holds; whether it does by then."""
    deadline = time.monotonic() + deadline_s * SLOWER
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def marked(marker: str, others: bool = False) -> set[int]:
    """Running processes of a round: its driver's, and those of ``others`` that a fault started."""
    wanted = {marker, f"{marker}other"} if others else {marker}
    return processes.with_environ(lambda env: env.get("CHAOS_ROUND") in wanted)


def command_line(pid: int) -> str:
    """The command line of a process; empty if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")


def parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had; 0 if it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


def as_in_a_terminal() -> None:
    """Heed Ctrl-C: what a shell starts in the background ignores it, and so would its children."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
