"""``python -m meshtune.run_module MODULE ARGUMENTS``: as ``python -m MODULE ARGUMENTS`` would.

But meshtune's packages hide others of their names, so that a rank is meshtune's trainer although a
``trainer.py`` is on PYTHONPATH.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    """Run the module named by the first argument as the main program."""
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
