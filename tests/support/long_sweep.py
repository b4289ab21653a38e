"""Long sweeps in batches, so that an end in the middle leaves what was done before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Job = dict[str, Any]
BATCH = 24  # jobs of up to eight ranks, of at most ten steps each


class LongSweep(dict[str, Any]):
    """Results by job id; a batch of jobs is run when the first of its results is asked for.

    Args:
        run_ranks: the fixture.
        references: run with the first batch.
        groups: jobs in the order in which tests ask for them; no batch has jobs of two groups.
        timeout_s: of a batch, within a test's own limit.
    """

    def __init__(
        self,
        run_ranks: Callable[..., dict[str, Any]],
        references: Sequence[Job],
        *groups: Sequence[Job],
        timeout_s: float = 2_900.0,
    ) -> None:
        super().__init__()
        self._run, self._references, self._timeout_s = run_ranks, references, timeout_s
        batches = [jobs[at : at + BATCH] for jobs in groups for at in range(0, len(jobs), BATCH)]
        self._batch_of = {job["id"]: batch for batch in reversed(batches) for job in batch}
        self._batch_of |= {job["id"]: batches[0] for job in references}

    def __missing__(self, name: str) -> Any:
        missing = [job for job in self._references if job["id"] not in self]
        jobs = [*missing, *self._batch_of[name]]
        self.update(self._run(jobs, timeout_s=self._timeout_s))
        return self[name]
