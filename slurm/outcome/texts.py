"""What a launcher's own programs write beside a trial's words, by which its end is understood."""

from __future__ import annotations

import re
from dataclasses import dataclass

NEVER = re.compile(r"(?!)")


@dataclass(frozen=True)
class LauncherTexts:
    """Patterns of one launcher's lines in a trial's ``stderr.log``; each may never occur.

    They must match what the launcher alone writes, from the start of a line on: a trainer's log
    cannot fake that. The outcome's message is the whole line of the first match.

    Attributes:
        preempted: the allocation was taken away.
        time_limit: a time limit set outside passed. Sooner than the trial's own timeout it was
            the allocation's.
        node_failure: a node failed; the group ``node`` names it, where one does, and it is lost.
        lost_node: a node no longer answers, and nobody has found out why; the group ``node`` names
            it, where known, and it is suspect.
        host_oom: the kernel killed a process for the host's memory.
        launch_failure: processes could not be started; the group ``node`` names where, if known,
            and that node is suspect.
        no_answer: the launcher's service does not answer: a failed launch, unless tasks have ended.
        no_program: the program was not found on the node of group ``node``. Those nodes are
            suspect, unless it is missing on all.
        task_end: a rank ended badly: groups ``node``, ``tasks`` and ``what`` say where, which, how.
        cancelled: the trial was ended from outside, if no task has ended before.
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
