"""A real MPI on several hosts that are all this machine: Open MPI, or whatever is first on PATH."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm import processes
from slurm.launcher import LauncherError
from slurm.mpiexec.dialects import dialect_of
from slurm.mpiexec.hosts import Host
from slurm.mpiexec.launcher import MpiexecLauncher

# Stands in for ssh: what it starts has nothing of this environment, as on another machine.
SSH = """\
#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1
shift
if [ -e "{folder}/down.$host" ]; then
  echo "ssh: connect to host $host port 22: No route to host" >&2
  exit 255
fi
# A folder for temporary files of its own, or daemons of one job get into each other's way.
mkdir -p "{temporary}/$host"
exec env -i HOME="$HOME" PATH="$PATH" ON_HOST="{folder}/$host" TMPDIR="{temporary}/$host" \\
  setsid /bin/sh -c "$*"
"""


@dataclass(frozen=True)
class Hosts:
    """Hosts of the tests: names that only the stand-in for ssh knows."""

    folder: Path

    @property
    def settings(self) -> dict[str, str]:
        """What a driver's environment has to say for mpiexec to find these hosts."""
        root = {
            f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}": "1"
            for prefix in ("OMPI", "PRTE")
            for suffix in ("", "_CONFIRM")
        }
        agents = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC")
        # The package is found wherever the tests are run from.
        here = {"PYTHONPATH": str(Path(__file__).parents[3])}
        return root | dict.fromkeys(agents, str(self.folder / "ssh")) | here

    @property
    def environ(self) -> dict[str, str]:
        """A driver's environment."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "SLURM"))}
        return inherited | self.settings

    def processes_on(self, host: str) -> set[int]:
        """What was started there; a process of the driver's own host is on none of these."""
        return processes.with_environ(lambda env: env.get("ON_HOST") == str(self.folder / host))

    def processes_on_any(self) -> set[int]:
        """Those of this test alone: another may run on hosts of the same names."""
        ours = f"{self.folder}{os.sep}"
        return processes.with_environ(lambda env: env.get("ON_HOST", "").startswith(ours))

    def daemons_on(self, host: str) -> set[int]:
        return {pid for pid in self.processes_on(host) if processes.name(pid) in ("orted", "prted")}

    def strike(self, host: str) -> None:
        """The host dies with all that is on it, and answers no more."""
        (self.folder / f"down.{host}").touch()
        # All at once: an agent that outlives its rank by a moment could still say how it ended.
        # What was started last is killed first: the kernel wakes stopped groups whose parent ends.
        struck = sorted(self.processes_on(host), reverse=True)
        processes.send(struck, signal.SIGSTOP)
        processes.send(struck, signal.SIGKILL)
        processes.end_all(lambda: self.processes_on(host))

    def kill_daemon(self, host: str) -> None:
        processes.send(self.daemons_on(host), signal.SIGKILL)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Skipped where there is no mpiexec; in CI that is a failure."""
    if reason := _missing():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    # Not the test's own folder: a Unix socket's path must be short, and Open MPI takes a space in
    # the path of ssh for the end of it.
    folder = Path(tempfile.mkdtemp(prefix="mt-", dir="/tmp"))
    ssh, temporary = folder / "ssh", folder / "tmp"
    ssh.write_text(SSH.format(folder=folder, temporary=temporary))
    ssh.chmod(0o755)
    made = Hosts(folder)
    yield made
    # Daemons whose mpiexec was killed notice it, but not at once.
    end = time.monotonic() + 120
    while left := made.processes_on_any():
        if time.monotonic() > end:
            processes.send(left, signal.SIGKILL)
            pytest.fail("daemons or ranks were left behind")
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def make_launcher(hosts: Hosts) -> Callable[..., MpiexecLauncher]:
    """Makes a launcher on hosts of these names."""

    def make(*names: str) -> MpiexecLauncher:
        every = [Host(name) for name in names or ("node0", "node1", "node2", "node3")]
        # MPICH waits for a host that is down as long as it may.
        return MpiexecLauncher(
            every, environ=hosts.environ, address=lambda _: "127.0.0.1", answer_s=20.0
        )

    return make


def _missing() -> str:
    """Why these tests cannot run here; empty if they can."""
    if shutil.which("mpiexec") is None:
        return "no mpiexec to test with: apt-get install openmpi-bin"
    said = subprocess.run(["mpiexec", "--version"], capture_output=True, text=True).stdout
    try:
        dialect_of(said)
    except LauncherError as error:
        return str(error)
    return ""
