"""Patterns of the messages that a launcher's own programs write beside a trial's output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEVER = re.compile(r"(?!)")


@dataclass(frozen=True)
class LauncherTexts:
    """Patterns of one launcher's messages.

    They are searched in the output of its own programs; in a trial's whole ``stderr.log`` if that
    output cannot be kept apart. The outcome's message is the whole line of the first match.
    """

    preempted: re.Pattern[str] = NEVER  # the allocation was taken away
    # an outer time limit passed: the allocation's, if before the trial's own timeout
    time_limit: re.Pattern[str] = NEVER
    # a node failed; the group ``node`` names it if known. It is suspect, and lost if it is down
    node_failure: re.Pattern[str] = NEVER
    # a node does not answer, for an unknown reason; the one of group ``node``, if any, is suspect
    lost_node: re.Pattern[str] = NEVER
    host_oom: re.Pattern[str] = NEVER  # the kernel killed a process for lack of host memory
    # processes could not be started; the node of group ``node``, if any, is suspect
    launch_failure: re.Pattern[str] = NEVER
    # the launcher's service does not answer: a failed launch, unless tasks have ended
    no_answer: re.Pattern[str] = NEVER
    # the program is missing on the node of group ``node``, which is suspect unless all lack it
    no_program: re.Pattern[str] = NEVER
    # a container could not be started, in any log: a failed launch, with its remedy
    container: tuple[tuple[re.Pattern[str], str], ...] = ()
    # the trial was ended from outside, unless a task has ended before
    cancelled: re.Pattern[str] = NEVER


NO_TEXTS = LauncherTexts()


def read_patterns(path: Path) -> dict[str, Any]:
    """The patterns in a YAML file by name, each a beginning and its possible continuations.

    ``{NAME}`` stands for an entry of the file's ``parts``.
    """
    from foundation.documents import read_document  # not at the top: the fork server needs no YAML

    stated = read_document(path).root.plain()
    parts, found = stated.pop("parts"), {}
    for name, (begin, *ways) in stated.items():
        text = f"(?m){begin}(?:{'|'.join(ways)})"
        for part, stands_for in reversed(parts.items()):
            text = text.replace(f"{{{part}}}", stands_for)
        found[name] = re.compile(text)
    return found
