"""A small image with this machine's own Python and shell, for runtimes that need no registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_FOLDERS = ("bin", "dev", "etc", "mnt", "proc", "root", "run", "sys", "tmp", "usr/bin", "var")
_LEFT_OUT = ("test", "tests", "site-packages", "idlelib", "lib2to3", "ensurepip", "__pycache__")
ENVIRONMENT = "PATH=/bin:/usr/bin\nPYTHONUNBUFFERED=0\nOF_IMAGE=yes\n"


def make_image(folder: Path) -> Path:
    """Fill a folder with what an image has; returns it."""
    python = Path(sys.base_prefix, "bin", "python3").resolve()
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True)
    left_out = shutil.ignore_patterns(*_LEFT_OUT, "config-*", "*.a")
    shutil.copytree(library, _inside(folder, library), ignore=left_out, symlinks=True)
    shell = Path("/bin/sh").resolve()
    programs = [python, shell, *_inside(folder, library, "lib-dynload").glob("*.so")]
    for file in {python, *(each for program in programs for each in _libraries(program))}:
        _inside(folder, file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, _inside(folder, file))
    shutil.copy(shell, folder / "bin" / "sh")
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(python)
    (folder / "etc" / "environment").write_text(ENVIRONMENT)
    return folder


def _inside(folder: Path, *parts: str | Path) -> Path:
    return folder / str(Path(*parts)).lstrip("/")


def _libraries(program: Path) -> list[Path]:
    """The shared libraries that a program loads."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(word) for word in listed.split() if word.startswith("/")]
