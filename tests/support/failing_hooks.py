"""Two ranks, of which rank 1 runs out of memory in a hook's thread; a program, started by a test.

Arguments: the configuration, a folder for logs, and the method of ``trainer.zero.hooks`` that
fails in its third call, such as ``GatherWeights._gather``. Prints the exit codes as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import fork_ranks
import torch

from trainer.zero import hooks

if __name__ == "__main__":
    config, logs, where = sys.argv[1:]
    owner, name = getattr(hooks, where.split(".")[0]), where.split(".")[1]
    works = getattr(owner, name)
    calls = 0

    def fails(*arguments: Any) -> None:
        global calls
        calls += 1
        if calls == 3 and os.environ["RANK"] == "1":
            torch.empty(1 << 60, dtype=torch.uint8)
        works(*arguments)

    setattr(owner, name, fails)
    print(json.dumps(fork_ranks.run([config] * 2, Path(logs), None)))
