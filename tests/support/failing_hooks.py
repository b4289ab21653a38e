"""Two ranks, of which rank 1 runs out of memory in a hook's thread; a program, started by a test.

Arguments: the configuration, a folder for logs, and the collective of
``trainer.parallel.collectives.Group`` that fails in its third call, such as ``all_gather``. Prints
the exit codes as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import fork_ranks
import torch

from trainer.parallel.collectives import Group

if __name__ == "__main__":
    config, logs, name = sys.argv[1:]
    works = getattr(Group, name)
    calls = 0

    def fails(*arguments: Any, **options: Any) -> Any:
        global calls
        calls += 1
        if calls == 3 and os.environ["RANK"] == "1":
            torch.empty(1 << 60, dtype=torch.uint8)
        return works(*arguments, **options)

    setattr(Group, name, fails)
    print(json.dumps(fork_ranks.run({"configs": [config] * 2, "logs": logs})))
