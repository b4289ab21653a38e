"""A process that has imported torch and runs jobs in forks of itself; see ``rank_worker``."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "rank_worker.py"
Jobs = list[dict[str, Any]]


class RankServer:
    """Started at its first jobs, and again after a failure; torch is imported once for all."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def run(self, jobs: Jobs, timeout_s: float = 1_160) -> dict[str, dict[str, Any]]:
        """Results by job id; ranks see this process's environment as it is now."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died since the last request
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"jobs": jobs, "environ": dict(os.environ)}) + "\n")
        process.stdin.flush()
        answers = self._answers(time.monotonic() + timeout_s)
        errors = [answer["error"] for answer in answers if "error" in answer]
        well = bool(answers) and answers[-1] == {"well": True}
        if errors or not well:
            self._said.seek(0)
            said = self._said.read()[-3000:]
            self.close()
            raise AssertionError(errors[0] if errors else said)
        return {answer["id"]: answer["result"] for answer in answers[:-1]}

    def close(self) -> None:
        """End the process, and with it its ranks."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _start(self) -> subprocess.Popen[str]:
        self._lines = queue.SimpleQueue()
        argv, pipe = [sys.executable, str(WORKER)], subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=self._said, text=True)
        threading.Thread(target=_read, args=(process, self._lines), daemon=True).start()
        self._process = process
        return process

    def _answers(self, deadline: float) -> list[dict[str, Any]]:
        """Up to the last of a request; the process's end and the deadline end them, too."""
        found: list[dict[str, Any]] = []
        while not found or "well" not in found[-1]:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if not line:
                break
            if line[:1] == "{":
                found.append(json.loads(line))
        return found


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass lines on, and an empty one at the end."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")
