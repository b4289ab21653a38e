"""What tests of several packages share: ranks that train, and a sweep made by the cost model."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from analysis.cost.model import CostModel
from analysis.sweeps.gpus import cluster_of
from search_spaces.known import FRAMEWORKS
from support.rank_server import RankServer
from trainer.plan.jobs import jobs

# Searches of tests learn from no run that a developer keeps.
os.environ["MESHTUNE_ARCHIVE"] = "/nonexistent/archive"
# A shell makes what it starts in the background ignore Ctrl-C, which tests send to processes.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until all tests are collected: hardly anything of what is imported goes

# The same examples each time, however long a busy machine takes to draw them.
settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("steady")

# Files that take the longest begin first, those of one long test among them: the last to begin
# would end alone.
BEGIN = (
    "slurm/test_search.py", "workflows/optimizer/test_policies.py", "slurm/test_elastic.py",
    "slurm/mpiexec/test_launcher.py", "trainer/zero/test_exactness.py", "trainer/test_main.py",
    "workflows/optimizer/test_model_guided.py", "slurm/srun/test_kept_steps.py",
    "workflows/replay/test_play.py",
    "trainer/test_exactness.py", "slurm/srun/test_proof.py",
    "trainer/checkpoint/test_checkpoints.py",
    "slurm/minicluster/test_cluster.py", "workflows/search/test_session.py",
    "workflows/test_train.py", "workflows/search/test_scripts.py",
    "search_spaces/test_placement_search.py", "workflows/search/test_grid_search.py",
    "slurm/test_chaos.py", "trainer/checkpoint/test_failures.py", "workflows/test_watch_browser.py",
    "slurm/test_train.py", "docs/test_site.py", "trainer/test_pretended_gpu.py",
    "trainer/verify/test_checks.py", "trainer/preflight/test_main.py",
    "slurm/mpiexec/test_search.py", "slurm/local/test_listening.py",
    "workflows/test_beside_torch.py", "workflows/search/test_full_disk.py",
    "slurm/srun/test_full_disk.py", "workflows/search/test_misbehaving_trainers.py",
)  # fmt: skip
Jobs = list[dict[str, Any]]
RunRanks = Callable[[Jobs], dict[str, dict[str, Any]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files for ``make test``, which shares them out: the longest, then by their tests."""
    gc.freeze()  # or garbage would be looked for among all of torch's objects, again and again
    gc.enable()
    root = Path(__file__).parent
    files = Counter(item.path for item in items)
    place = {root / name: number for number, name in enumerate(BEGIN)}
    items.sort(key=lambda item: (place.get(item.path, len(BEGIN)), -files[item.path], item.path))


class MadeSweep:
    """Rows of a table in the general sweep format."""

    columns = (
        "model,layers,hidden,heads,kv_heads,ffn,gated,tied_emb,vocab,seq,gpu,n_nodes,n_gpu,dp,tp,"
        "pp,mbs,gas,gbs,zero_stage,tok_s,peak_mem_GB,crashed_or_oom"
    )

    def rows(self, layers: int = 32, gpus: int = 16, batch: int = 64) -> list[str]:
        """Every (tp, pp, mbs, ZeRO stage) of a model; what does not fit has failed."""
        found = [
            (dp, tp, pp, mbs, batch // mbs // dp, zero)
            for tp in (1, 2, 4, 8) for pp in (1, 2, 4) for mbs in (1, 2, 4, 8) for zero in (0, 1)
            for dp in [gpus // tp // pp]
            if dp and batch % (mbs * dp) == 0 and batch // mbs // dp >= pp
        ]  # fmt: skip
        dp, tp, pp, mbs, gas, zero = np.array(found, dtype=float).T
        told = jobs(
            {
                "num_layers": layers, "hidden_size": 4096, "num_heads": 32, "kv_heads": 8,
                "ffn_size": 14336, "gated": True, "tied_embeddings": False, "vocab_size": 128256,
                "seq_length": 4096, "dp": dp, "tp": tp, "pp": pp, "mbs": mbs, "gas": gas,
                "zero_stage": zero, "sequence_parallel": tp > 1, "recompute": 0.0,
            }
        )  # fmt: skip
        model = CostModel(cluster_of("H100-80GB", 8), FRAMEWORKS["nanotron"])
        constants = replace(model.constants, step_s=0.05, host_call_s=1e-4)
        answer = replace(model, constants=constants).predict(told)
        lines = []
        for i, (d, t, p, m, g, z) in enumerate(found):
            ran = answer.peak_bytes[i] <= model.memory_limit_bytes
            end = f"{answer.tokens_per_second[i]:.6g},{answer.peak_bytes[i] / 2**30:.4g},0"
            lines.append(
                f"m{layers},{layers},4096,32,8,14336,1,0,128256,4096,H100-80GB,{gpus // 8},{gpus},"
                f"{d},{t},{p},{m},{g},{batch},{z},{end if ran else ',,1'}"
            )
        return lines

    def write(self, path: Path, rows: Sequence[str]) -> Path:
        path.write_text("\n".join(["# made by a test", self.columns, *rows]) + "\n")
        return path

    def edited(self, row: str, **values: str) -> str:
        """A row with other values."""
        named = dict(zip(self.columns.split(","), row.split(","), strict=True))
        return ",".join((named | values).values())


@pytest.fixture(autouse=True)
def heeds_signals() -> Iterator[None]:
    """What later tests of this process start would ignore a signal that one leaves ignored."""
    yield
    heeded = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    assert not [number for number in heeded if signal.getsignal(number) == signal.SIG_IGN]


@pytest.fixture(scope="session")
def made() -> MadeSweep:
    return MadeSweep()


@pytest.fixture(scope="session")
def run_ranks() -> Iterator[RunRanks]:
    """Runs jobs (see ``rank_worker``) in as few processes as can be; results by job id."""
    with closing(RankServer()) as server:
        yield server.run
