"""The hosts that a search may use, from a host file, PBS or LSF."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foundation.files import FileError, read_text
from foundation.messages import shown
from slurm.launcher import LauncherError

MAX_BYTES = 10_000_000
MAX_SLOTS = 100_000
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,252}\w)?", re.ASCII)
_IGNORED = ("max_slots", "max-slots")  # Open MPI's; a trial never has more ranks than slots


class HostsError(LauncherError, FileError):
    """A list of hosts that cannot be used; the message names its place and the remedy."""


@dataclass(frozen=True)
class Host:
    name: str
    slots: int | None = None  # ranks it may have at once; None: unknown


def find_hosts(hostfile: Path | None, environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of ``--hostfile``, else of the PBS or LSF job that this process is in.

    A scheduler's counts are cores, so they limit nothing; ``slots`` in a host file do. The
    variables are ``PBS_NODEFILE``, ``LSB_DJOB_HOSTFILE`` and ``LSB_MCPU_HOSTS``.

    Raises HostsError if there are none, or a list is wrong.
    """
    if hostfile is not None:
        return read_hostfile(hostfile)
    for variable in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        if path := environ.get(variable):
            return tuple(Host(host.name) for host in read_hostfile(Path(path), variable))
    if counts := environ.get("LSB_MCPU_HOSTS"):
        return _of_pairs(counts.split())
    raise HostsError(
        "the mpiexec launcher needs hosts: give --hostfile FILE with one host a line, or start it "
        "in a PBS or LSF job (PBS_NODEFILE, LSB_DJOB_HOSTFILE and LSB_MCPU_HOSTS are not set)"
    )


def read_hostfile(path: Path, variable: str = "") -> tuple[Host, ...]:
    """Hosts in the order of first appearance; error messages name the file's ``variable``.

    A line is ``host``, ``host slots=4`` or ``host:4``; the slots of several lines add up. ``#``
    starts a comment.

    Raises HostsError if the file cannot be read, a line is wrong, or there is no host.
    """
    where = f"{shown(path)} ({variable})" if variable else shown(path)
    try:
        lines = read_text(path, MAX_BYTES).splitlines()
    except FileError as error:
        raise HostsError(f"{variable}: {error}" if variable else str(error)) from None
    hosts = []
    for number, line in enumerate(lines, 1):
        if words := line.partition("#")[0].split():
            hosts.append(_host(words, f"{where}, line {number}"))
    if not hosts:
        raise HostsError(f"{where}: has no hosts; write one a line, like node7 slots=4")
    return _merged(hosts)


def _host(words: Sequence[str], where: str) -> Host:
    name, colon, count = words[0].partition(":")
    if not _NAME.fullmatch(name):
        raise HostsError(f"{where}: {_word(words[0])} is no host name; write it like node7 slots=4")
    slots = _slots(count, words[0], where) if colon else None
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "slots" and slots is None:
            slots = _slots(value, word, where)
        elif key not in _IGNORED:
            raise HostsError(
                f"{where}: {_word(word)} is not understood; after a host's name may stand slots=4"
            )
    return Host(name, slots)


def _slots(text: str, word: str, where: str) -> int:
    slots = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not 1 <= slots <= MAX_SLOTS:
        raise HostsError(
            f"{where}: {_word(word)}: slots are a number from 1 to {MAX_SLOTS:,}, like slots=4"
        )
    return slots


def _word(word: str) -> str:
    return f"'{shown(word, 60)}'"


def _merged(hosts: Iterable[Host]) -> tuple[Host, ...]:
    slots: dict[str, int | None] = {}
    for host in hosts:
        before = slots.get(host.name)
        slots[host.name] = before if host.slots is None else host.slots + (before or 0)
    return tuple(Host(name, count) for name, count in slots.items())


def _of_pairs(words: Sequence[str]) -> tuple[Host, ...]:
    """LSF's ``host count host count ...``."""
    names, counts = words[::2], words[1::2]
    if len(names) != len(counts) or not all(count.isdigit() for count in counts):
        raise HostsError(
            f"LSB_MCPU_HOSTS is {_word(' '.join(words))}, not host and count in turn: "
            "give --hostfile"
        )
    return _merged(Host(name) for name in names)
