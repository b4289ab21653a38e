"""Words that mean out of memory; ``out_of_memory.yaml`` has them, with who prints them.

Two readers compose them. The trainer (``trainer.runtime.memory``) asks its own exceptions, whose
text is short and about one failure. A launcher's verdict (``slurm.outcome.kinds``) searches whole
logs, in which a line may also be a warning that the program went on after, or a word of something
else. So what is unmistakable wherever it stands is in both, and the rest in one of them only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from foundation.documents import read_document

_WORDS: dict[str, list[str]] = read_document(Path(__file__).with_suffix(".yaml")).root.plain()
DEVICE_OOM = _WORDS["DEVICE_OOM"]
DEVICE_OOM_IN_LOGS = _WORDS["DEVICE_OOM_IN_LOGS"]
DEVICE_OOM_IN_ERRORS = _WORDS["DEVICE_OOM_IN_ERRORS"]
HOST_OOM = _WORDS["HOST_OOM"]
HOST_OOM_IN_LOGS = _WORDS["HOST_OOM_IN_LOGS"]
PERHAPS_DEVICE_OOM = _WORDS["PERHAPS_DEVICE_OOM"]
PERHAPS_NO_THREAD_STACK = _WORDS["PERHAPS_NO_THREAD_STACK"]


def any_of(*groups: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds any of these words."""
    return re.compile("|".join(words for group in groups for words in group))
