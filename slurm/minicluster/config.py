"""The configuration of a minicluster: a record, Slurm's files from it, and the folder for both.

Only their owner can write to its folders: anybody who put a link or a file there would choose which
files a root process writes, or which processes it ends.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from foundation.files import FileError, MissingFileError, read_text
from foundation.messages import shown
from foundation.records import mistakes
from slurm.launcher import LauncherError

# Fake cores, not bound to real ones. Enough for eight ranks with seven cores each, as on Frontier.
CPUS_PER_NODE = 64
MAX_NODES = 99
MAX_GPUS = 64
MAX_CONFIG_BYTES = 1 << 16
_CONFIG_NAME = "cluster.json"
_REMEDY = "end the cluster's daemons by hand if there are any, and remove the folder"
_ON_LOOPBACK = "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n"


@dataclass(frozen=True)
class MiniclusterConfig:
    """Size and place of a minicluster; kept in its folder as ``cluster.json``."""

    directory: str
    hostname: str
    user: str
    node_prefix: str  # differs between miniclusters of a machine: cgroups are named after nodes
    num_nodes: Annotated[int, Field(ge=1, le=MAX_NODES)]
    gpus_per_node: Annotated[int, Field(ge=0, le=MAX_GPUS)]
    mem_per_node_mib: Annotated[int, Field(ge=1)]
    base_port: Annotated[int, Field(ge=0, le=65000)]  # the controller's; the nodes' ports follow
    cgroup: Literal["v1", "v2"] | None  # None: no memory limits
    own_name: bool  # daemons and steps have a UTS namespace with the name ``hostname``
    clients_on_loopback: bool  # in a user's shell the machine's name resolves to 127.0.0.1

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"{self.node_prefix}{i}" for i in range(1, self.num_nodes + 1))

    @property
    def conf(self) -> Path:
        """The value of ``SLURM_CONF`` for users."""
        return Path(self.directory) / "slurm.conf"

    @property
    def daemons_conf(self) -> Path:
        """The value of ``SLURM_CONF`` for the daemons, which pass it on to every step."""
        return Path(self.directory) / "daemons.conf"

    @property
    def daemons_on_loopback(self) -> bool:
        """Whether only this machine can reach the daemons."""
        return self.own_name or self.clients_on_loopback

    @property
    def munge_socket(self) -> Path:
        """The socket of the cluster's own munge daemon."""
        return Path(self.directory) / "munge.sock"

    def ports(self) -> range:
        """Every port that a daemon of the cluster listens on."""
        return range(self.base_port, self.base_port + self.num_nodes + 1)


def slurm_conf(config: MiniclusterConfig, on_loopback: bool) -> str:
    """Text of ``slurm.conf``.

    With ``on_loopback``, programs that read it listen on 127.0.0.1 only. Slurm listens on all
    addresses or on that of the machine's name, so that name must resolve to 127.0.0.1.

    The times are short, so that a lost node and a requeued job are seen in seconds. A requeued job
    waits until the credentials of its earlier start expire (``cred_expire``, 120 s by default). A
    node's death is seen after about ``3 MessageTimeout``, which outweighs ``SlurmdTimeout``.
    """
    template = Path(__file__).with_name("slurm.conf").read_text()
    return template.format(
        **asdict(config),
        cpus=CPUS_PER_NODE,
        tracked_by="cgroup" if config.cgroup else "linuxproc",
        measured_by="cgroup" if config.cgroup else "none",
        communication=_ON_LOOPBACK if on_loopback else "",
        ports=f"{config.base_port + 1}-{config.base_port + config.num_nodes}",
        gres=f" Gres=gpu:{config.gpus_per_node}" if config.gpus_per_node else "",
    )


def cgroup_conf(config: MiniclusterConfig) -> str:
    """Text of ``cgroup.conf``: memory and swap are limited, cores are not."""
    if config.cgroup is None:
        # Slurm loads a plugin even without limits, chosen by /sys/fs/cgroup unless it is named.
        return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
    # IgnoreSystemd: a machine for experiments (a container, say) has no systemd to ask.
    extra = "IgnoreSystemd=yes\n" if config.cgroup == "v2" else "CgroupAutomount=yes\n"
    return (
        f"CgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin=cgroup/{config.cgroup}\n{extra}"
        "ConstrainCores=no\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nAllowedSwapSpace=0\n"
        "ConstrainDevices=no\n"
    )


def gres_conf(config: MiniclusterConfig) -> str:
    """Text of ``gres.conf``: empty files for GPUs, so that requests for them are granted."""
    if config.gpus_per_node == 0:
        return ""
    last = config.gpus_per_node - 1
    files = f"{config.directory}/nvidia[0-{last}]" if last else f"{config.directory}/nvidia0"
    return f"NodeName={config.node_prefix}[1-{config.num_nodes}] Name=gpu File={files}\n"


class MiniclusterError(LauncherError):
    """The minicluster cannot be started or found; the message names the remedy."""


def runtime_folder() -> Path:
    """This user's folder for sockets and locks, which is made if need be.

    ``$XDG_RUNTIME_DIR/meshtune`` where that variable names a folder of this user's own (after
    ``su`` it may name another's), else ``/tmp/meshtune-UID``.

    Raises MiniclusterError if somebody else made it, or it cannot be made.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or os.devnull)
    own = base.is_absolute() and _problem(base) is None
    folder = base / "meshtune" if own else Path("/tmp", f"meshtune-{os.geteuid()}")
    make_private(folder)
    return folder


def default_directory() -> Path:
    """Default folder of a minicluster; see :func:`runtime_folder`."""
    return runtime_folder() / "minicluster"


def make_private(folder: Path) -> None:
    """Make a folder for this user alone, or check an existing one.

    Raises MiniclusterError if it is a link, or others own it or can write to it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        check_owned(folder)
        folder.chmod(0o700)
    except OSError as error:
        raise MiniclusterError(f"{folder}: {error.strerror}; use another folder") from error


def check_name(config: MiniclusterConfig) -> None:
    """Raise MiniclusterError unless sockets and Slurm's files can name a minicluster's folder."""
    name = shown(config.directory)
    if len(bytes(config.munge_socket)) > 100:  # sockaddr_un holds 107
        raise MiniclusterError(f"{name}: the path is too long for a socket; use a shorter one")
    if re.search(r"[^\w./+-]", config.directory):
        raise MiniclusterError(
            f"{name}: Slurm's files cannot name this path; use one of letters, digits and . _ + -"
        )


def check_owned(folder: Path) -> None:
    """Raise MiniclusterError unless a folder is this user's, and nobody else can write to it."""
    if problem := _problem(folder):
        raise MiniclusterError(
            f"{folder} {problem}: what is in it could be somebody else's; use another folder, "
            "or `chmod 700` this one if it is yours"
        )


def _problem(folder: Path) -> str | None:
    """Reason to distrust a folder: others may have made it or can write to it; None if safe."""
    try:
        status = folder.lstat()
    except OSError as error:
        return f"cannot be looked at ({error.strerror})"
    if not stat.S_ISDIR(status.st_mode):
        return "is a link" if stat.S_ISLNK(status.st_mode) else "is not a folder"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o022:
        return f"can be written by other users (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def read_config(directory: Path) -> MiniclusterConfig | None:
    """The configuration in a minicluster's folder; None if there is no minicluster in it.

    Raises MiniclusterError if others could have written it, or it is not about this folder.
    """
    file = directory / _CONFIG_NAME
    try:
        text = read_text(file, MAX_CONFIG_BYTES)
        check_owned(directory)
        config = TypeAdapter(MiniclusterConfig).validate_json(text, strict=True)
    except MissingFileError:
        return None
    except ValidationError as error:
        raise MiniclusterError(f"{shown(file)}: {mistakes(error)}; {_REMEDY}") from None
    except FileError as error:
        raise MiniclusterError(f"{error}; {_REMEDY}") from error
    if not _same_folder(directory, config.directory):
        problem = f"directory: found {shown(config.directory)}, accepted {shown(directory)}"
        raise MiniclusterError(f"{shown(file)}: {problem}; {_REMEDY}")
    return config


def write_config(config: MiniclusterConfig) -> None:
    Path(config.directory, _CONFIG_NAME).write_text(json.dumps(asdict(config), indent=1))


def _same_folder(first: Path, second: str) -> bool:
    try:
        return first.samefile(second)
    except (OSError, ValueError):  # moved away; a NUL in the name
        return False
