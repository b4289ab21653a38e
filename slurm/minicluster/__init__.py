"""A real Slurm on one machine, for tests and for trying things."""

from slurm.minicluster.cluster import Minicluster, Status, down, status, up
from slurm.minicluster.config import MiniclusterError
from slurm.minicluster.daemons import missing

__all__ = ["Minicluster", "MiniclusterError", "Status", "down", "missing", "status", "up"]
