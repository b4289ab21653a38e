"""A torch years older than the pinned one: the distribution's, which `make older-torch` unpacks."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from workflows.launching import OLDEST_TORCH, _release

FOLDER = Path(sys.prefix) / "older-torch/usr/lib"
MULTIARCH = sysconfig.get_config_var("MULTIARCH") or ""


def environment() -> dict[str, str]:
    """Variables with which Python imports it; skips the test where there is none."""
    packages = FOLDER / "python3/dist-packages"
    if not (packages / f"torch/_C{sysconfig.get_config_var('EXT_SUFFIX')}").is_file():
        pytest.skip("needs an older torch for this Python: make older-torch")
    said = (packages / "torch/version.py").read_text()
    version = said.partition("__version__ = ")[2].partition("\n")[0].strip("'\"")
    if _release(version) >= _release(OLDEST_TORCH):
        pytest.skip(f"the distribution's torch {version} is new enough for the built-in trainer")
    libraries = FOLDER / MULTIARCH
    places = [FOLDER, libraries, libraries / "blas", libraries / "lapack"]
    return {"PYTHONPATH": str(packages), "LD_LIBRARY_PATH": ":".join(map(str, places))}
