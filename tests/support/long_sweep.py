"""Long sweeps in batches, so that an end in the middle leaves what was done before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Job = dict[str, Any]
BATCH = 24  # jobs of eight ranks, of ten steps each
BATCH_TIMEOUT_S = 2_900.0  # within a test's own limit


class LongSweep(dict[str, Any]):
    """Results by job id; a batch of jobs is run when the first of its results is asked for.

    Args:
        run_ranks: the fixture.
        references: run beside each batch.
        jobs: in the order in which tests ask for them.
    """

    def __init__(
        self,
        run_ranks: Callable[..., dict[str, Any]],
        references: Sequence[Job],
        jobs: Sequence[Job],
    ) -> None:
        super().__init__()
        self._run, self._references = run_ranks, references
        batches = [jobs[at : at + BATCH] for at in range(0, len(jobs), BATCH)]
        self._batch_of = {job["id"]: batch for batch in batches for job in batch}

    def __missing__(self, name: str) -> Any:
        jobs = [*self._references, *self._batch_of[name]]
        self.update(self._run(jobs, timeout_s=BATCH_TIMEOUT_S))
        return self[name]
