"""The configuration text of a minicluster: pure functions from a record to Slurm's files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

# Fake: nothing is bound to them. Enough for eight ranks with seven cores each, as on Frontier.
CPUS_PER_NODE = 64
MAX_NODES = 99
MAX_GPUS = 64


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
    base_port: Annotated[int, Field(ge=0, le=65000)]  # the controller's; the nodes' follow
    cgroup: Literal["v1", "v2"] | None  # None: no memory limits
    own_name: bool  # daemons and steps have a UTS namespace with the name ``hostname``
    clients_on_loopback: bool  # in a user's shell the machine's name is that of 127.0.0.1

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
        """Whether the daemons can be reached from this machine alone."""
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

    With ``on_loopback``, its readers listen on 127.0.0.1 only. Slurm listens on all addresses or on
    that of the machine's name, so that name must be one of 127.0.0.1.

    The times are short, so that a lost node and a requeued job are seen in seconds. A requeued job
    waits until the credentials of its earlier start expire (``cred_expire``, 120 s by default). A
    node's death is seen after about ``3 MessageTimeout``, which outweighs ``SlurmdTimeout``.
    """
    fields = {**asdict(config), "conf_directory": config.directory, "cpus": CPUS_PER_NODE}
    plugins = ("cgroup", "cgroup") if config.cgroup else ("linuxproc", "none")
    fields["tracked_by"], fields["measured_by"] = plugins
    fields["communication"] = _ON_LOOPBACK if on_loopback else ""
    fields["ports"] = f"{config.base_port + 1}-{config.base_port + config.num_nodes}"
    fields["gres"] = f" Gres=gpu:{config.gpus_per_node}" if config.gpus_per_node else ""
    return Path(__file__).with_name("slurm.conf").read_text().format(**fields)


def cgroup_conf(config: MiniclusterConfig) -> str:
    """Text of ``cgroup.conf``: memory and swap are limited, cores are not."""
    if config.cgroup is None:
        # Slurm loads a plugin even so; unless named, it is chosen by /sys/fs/cgroup.
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


_ON_LOOPBACK = "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n"
