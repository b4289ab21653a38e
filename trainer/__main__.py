"""``python -m trainer CONFIG.json``: train on the ranks it was started with."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.run import run
from trainer.runtime.exit_codes import EXIT_INVALID

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
USAGE = "usage: python -m trainer CONFIG.json (writes result.json beside it)"


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the named file says; returns the exit code.

    Also what a process calls that was forked with torch imported: the environment is read now,
    and importing this module does nothing else.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        asked = arguments in (["-h"], ["--help"])
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else EXIT_INVALID
    if not any(name in os.environ for name in _ALLOCATOR):
        # Segments that grow leave no gaps between tensors of changing sizes; where a device has
        # none, torch says so and goes on. Read at the first use of a device.
        os.environ[_ALLOCATOR[0]] = "expandable_segments:True"
    return run(Path(arguments[0]), os.environ)


if __name__ == "__main__":
    sys.exit(main())
