"""``python -m trainer.huggingface CHECKPOINT OUT``: a checkpoint's weights for ``transformers``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint.integrity import CheckpointError
from trainer.huggingface.save import export
from trainer.plan.limits import ConfigError
from trainer.runtime.exit_codes import EXIT_INVALID, EXIT_OK

USAGE = "usage: python -m trainer.huggingface FOLDER/step-NNNNNNNN OUT"


def main(argv: Sequence[str] | None = None) -> int:
    """Convert one checkpoint; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if len(arguments) != 2 or arguments[0] in ("-h", "--help"):
        asked = arguments in (["-h"], ["--help"])
        print(USAGE, file=sys.stdout if asked else sys.stderr)
        return EXIT_OK if asked else EXIT_INVALID
    try:
        export(Path(arguments[0]), Path(arguments[1]))
    except (ConfigError, CheckpointError, OSError) as error:
        print(f"error: {arguments[0]}: {error}", file=sys.stderr)
        return EXIT_INVALID
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
