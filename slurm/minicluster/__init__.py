"""A real Slurm on one machine, for tests and for trying things."""

from slurm.minicluster.cluster import Minicluster, Status, down, status, up
from slurm.minicluster.daemons import missing
from slurm.minicluster.folders import MiniclusterError

__all__ = ["Minicluster", "MiniclusterError", "Status", "down", "missing", "status", "up"]
