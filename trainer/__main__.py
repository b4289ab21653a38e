"""``python -m trainer CONFIG.json``: train on the ranks it was started with."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.run import run

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the configuration file says; returns the exit code.

    Processes that were forked with torch imported call this, too: the environment is read here,
    not on import.
    """
    parser = argparse.ArgumentParser(prog="python -m trainer")
    parser.add_argument(
        "config", type=Path, metavar="CONFIG.json", help="result.json is written beside it"
    )
    config = parser.parse_args(argv).config
    if not any(name in os.environ for name in _ALLOCATOR):
        # Against fragmentation; torch warns and continues where a device does not support it.
        # Torch reads the variable at the first use of a device.
        os.environ[_ALLOCATOR[0]] = "expandable_segments:True"
    return run(config, os.environ)


if __name__ == "__main__":
    sys.exit(main())
