"""Messages that a launcher's own programs write beside a trial's output, as patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass

NEVER = re.compile(r"(?!)")


@dataclass(frozen=True)
class LauncherTexts:
    """Patterns of one launcher's lines in a trial's ``stderr.log``.

    Each matches from the start of a line on what only the launcher writes, so that no trainer's log
    can fake it. The outcome's message is the whole line of the first match.

    Attributes:
        preempted: the allocation was taken away.
        time_limit: an outer time limit passed; the allocation's if before the trial's own timeout.
        node_failure: a node failed and is lost; the group ``node`` names it if known.
        lost_node: a node does not answer, and the reason is unknown: the node of group ``node``, if
            any, is suspect.
        host_oom: the kernel killed a process for the host's memory.
        launch_failure: processes could not be started; the node of group ``node``, if any, is
            suspect.
        no_answer: the launcher's service does not answer: a failed launch, unless tasks have ended.
        no_program: the program is missing on the node of group ``node``; such nodes are suspect,
            unless it is missing on all.
        task_end: a rank failed: groups ``node``, ``tasks`` and ``what`` (how).
        cancelled: the trial was ended from outside, unless a task has ended before.
    """

    preempted: re.Pattern[str] = NEVER
    time_limit: re.Pattern[str] = NEVER
    node_failure: re.Pattern[str] = NEVER
    lost_node: re.Pattern[str] = NEVER
    host_oom: re.Pattern[str] = NEVER
    launch_failure: re.Pattern[str] = NEVER
    no_answer: re.Pattern[str] = NEVER
    no_program: re.Pattern[str] = NEVER
    task_end: re.Pattern[str] = NEVER
    cancelled: re.Pattern[str] = NEVER


NO_TEXTS = LauncherTexts()
