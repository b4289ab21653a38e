"""Folders of a minicluster, to which only their owner can write.

Whoever could put a link or a file there would choose the files that a root process writes, or the
processes that it ends.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from foundation.files import FileError, MissingFileError, read_text
from foundation.messages import shown
from slurm.launcher import LauncherError
from slurm.minicluster.config import MiniclusterConfig

MAX_CONFIG_BYTES = 1 << 16
_CONFIG_NAME = "cluster.json"


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
    """Make a folder for this user alone, or see that it is one.

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
    """Reason to distrust a folder, that others could have made or can write to; None if safe."""
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
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "content"
        problem = f"{shown(where)}: {first['msg']}, found {shown(repr(first['input']))}"
        raise MiniclusterError(f"{shown(file)}: {problem}; {_REMEDY}") from None
    except FileError as error:
        raise MiniclusterError(f"{error}; {_REMEDY}") from error
    if not _same_folder(directory, config.directory):
        problem = f"directory: found {shown(config.directory)}, accepted {shown(directory)}"
        raise MiniclusterError(f"{shown(file)}: {problem}; {_REMEDY}")
    return config


def write_config(config: MiniclusterConfig) -> None:
    """Write what :func:`read_config` reads."""
    Path(config.directory, _CONFIG_NAME).write_text(json.dumps(asdict(config), indent=1))


def _same_folder(first: Path, second: str) -> bool:
    try:
        return first.samefile(second)
    except (OSError, ValueError):  # moved away; a NUL in the name
        return False


_REMEDY = "end the cluster's daemons by hand if there are any, and remove the folder"
