"""A pretended GPU: whole training steps with shapes, formats and streams, without numbers.

torch's CPU build is given a device guard (``guard.cpp``) before it looks for devices, so that fake
tensors can be on ``cuda``. For a process of its own; import it before torch.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from trainer.runtime.cache import user_cache


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def built() -> Path:
    """The device guard's library, compiled once for this torch."""
    source = Path(__file__).with_name("guard.cpp")
    known = importlib.metadata.version("torch").encode() + source.read_bytes()
    digest = hashlib.blake2b(known, digest_size=8).hexdigest()
    library = user_cache() / f"guard-{digest}.so"
    if not library.exists():
        compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
        include, libraries = _torch() / "include", _torch() / "lib"
        new = library.with_suffix(f".{os.getpid()}")
        flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{include}", f"-L{libraries}"]
        subprocess.run(
            [compiler, *flags, str(source), "-lc10", "-ltorch_cpu", "-o", str(new)], check=True
        )
        new.rename(library)
    return library


def _load() -> None:
    assert "torch" not in sys.modules, "torch has looked for devices already"
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(_torch() / "lib" / name), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(built()), ctypes.RTLD_GLOBAL)


_load()
