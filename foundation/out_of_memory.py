"""Words that mean out of memory, each once: ``out_of_memory.yaml``.

Two readers compose them. The trainer (``trainer.runtime.memory``) asks its own exceptions, whose
text is short and about one failure. A launcher's verdict (``slurm.outcome.kinds``) searches whole
logs, in which a line may also be a warning that the program went on after, or a word of something
else. So what is unmistakable wherever it stands is in both, and the rest in one of them only.
"""

from __future__ import annotations

import re
from pathlib import Path

from foundation.documents import read_document

_WORDS: dict[str, list[str]] = read_document(Path(__file__).with_suffix(".yaml")).root.plain()


def any_of(*groups: str) -> re.Pattern[str]:
    """A pattern that finds any of these groups' words."""
    return re.compile("|".join(words for group in groups for words in _WORDS[group]))
