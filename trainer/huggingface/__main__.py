"""``python -m trainer.huggingface CHECKPOINT OUT``: a checkpoint's weights for ``transformers``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.checkpoint.integrity import CheckpointError
from trainer.huggingface.weights import export
from trainer.plan.limits import ConfigError
from trainer.runtime.exit_codes import EXIT_INVALID, EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Convert one checkpoint; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.huggingface")
    parser.add_argument("checkpoint", type=Path, metavar="FOLDER/step-NNNNNNNN")
    parser.add_argument("out", type=Path, metavar="OUT")
    arguments = parser.parse_args(argv)
    try:
        export(arguments.checkpoint, arguments.out)
    except (ConfigError, CheckpointError, OSError) as error:
        print(f"error: {arguments.checkpoint}: {error}", file=sys.stderr)
        return EXIT_INVALID
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
