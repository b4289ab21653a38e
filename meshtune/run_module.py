"""``python -m meshtune.run_module MODULE ARGUMENTS``: like ``python -m MODULE ARGUMENTS``.

Meshtune's packages come before others of their names: a rank runs meshtune's trainer even if
``trainer.py`` is on PYTHONPATH.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
