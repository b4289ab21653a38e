"""The same compute speed for every rank, however many share the machine.

Each rank gets a cpu cgroup with a quota. The quota is that of the largest cluster, so a small one
leaves the rest of the machine idle: what a placement gains or loses with more nodes is then
communication, not a busier machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

PERIOD_S = 0.01
"""Period of the quota; short, because a rank that has used its share waits for the next one."""

_MIN_QUOTA_US = 1000  # the kernel's own lower limit
_GONE_S = 5.0


class CpuShareError(Exception):
    """This machine has no cpu cgroup that could be used; the message names the way round."""


class CpuShares:
    """One cpu cgroup for each rank, made on entering and removed on leaving.

    Args:
        num_ranks: groups to make.
        cores_per_rank: the quota of each, in cores; below 1.

    Raises:
        CpuShareError: on entering, if cgroups cannot be made.
    """

    def __init__(self, num_ranks: int, cores_per_rank: float) -> None:
        self.num_ranks = num_ranks
        self.cores_per_rank = cores_per_rank
        self._root, self._v2 = _mounted()
        self._base = self._root / f"meshtune-sl{os.getpid()}"
        self._outside = self._root / _own_group(self._v2)

    def __enter__(self) -> CpuShares:
        _remove_stale(self._root)
        quota_us = max(_MIN_QUOTA_US, round(PERIOD_S * 1e6 * self.cores_per_rank))
        period_us = round(quota_us / self.cores_per_rank)
        try:
            self._make(self._base)
            for rank in range(self.num_ranks):
                group = self._base / str(rank)
                group.mkdir()
                if self._v2:
                    (group / "cpu.max").write_text(f"{quota_us} {period_us}")
                else:
                    (group / "cpu.cfs_period_us").write_text(str(period_us))
                    (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        except OSError as error:
            self.__exit__()
            raise CpuShareError(
                f"cannot make cpu cgroups under {self._base}: {error.strerror}; run as root where "
                "they are writable, or with --no-cpu-share (more nodes are then slower nodes)"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        _remove_tree(self._base)

    def _make(self, base: Path) -> None:
        base.mkdir()
        # The kernel's upper limit: the quota bounds what others lose, and what else runs on the
        # machine then hardly changes what is measured.
        name, most = ("cpu.weight", 10_000) if self._v2 else ("cpu.shares", 262_144)
        (base / name).write_text(str(most))
        if self._v2:
            (self._root / "cgroup.subtree_control").write_text("+cpu")
            (base / "cgroup.subtree_control").write_text("+cpu")

    def limit(self, pids: Iterable[int]) -> None:
        """Put each rank's process, threads included, under its quota; pids in rank order."""
        for rank, pid in enumerate(pids):
            self._move(pid, self._base / str(rank))

    def lift(self, pids: Iterable[int]) -> None:
        """Take the processes out again."""
        for pid in pids:
            self._move(pid, self._outside)

    def _move(self, pid: int, group: Path) -> None:
        with contextlib.suppress(ProcessLookupError):  # ended already; its exit tells why
            (group / "cgroup.procs").write_text(str(pid))


def _mounted() -> tuple[Path, bool]:
    """The folder of cpu groups, and whether it is cgroup v2."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(where), False
        controllers = Path(where) / "cgroup.controllers"
        if kind == "cgroup2" and "cpu" in controllers.read_text().split():
            return Path(where), True
    raise CpuShareError(
        "no cpu controller in /proc/mounts: mount cgroups, or use --no-cpu-share "
        "(more nodes are then slower nodes)"
    )


def _own_group(v2: bool) -> str:
    """This process's own cpu group, relative to where groups are mounted."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if (v2 and not controllers) or (not v2 and "cpu" in controllers.split(",")):
            return group.lstrip("/")
    return ""


def _remove_stale(root: Path) -> None:
    for path in root.glob("meshtune-sl*"):
        match = re.fullmatch(r"meshtune-sl(\d+)", path.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _remove_tree(path)


def _remove_tree(base: Path) -> None:
    """Remove a group and those in it; processes that were just killed may need a moment to go."""
    deadline = time.monotonic() + _GONE_S
    for group in [*base.glob("*/"), base] if base.is_dir() else []:
        while True:
            try:
                group.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.02)
