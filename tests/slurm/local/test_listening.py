"""Who can connect to a local trial."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from foundation.python import module_argv
from slurm import processes
from slurm.local.launcher import LocalLauncher
from slurm.outcome.classify import Outcome
from slurm.trial import Lease, TrialSpec
from support.listening import listening, only_loopback
from support.local_trials import log
from support.waiting import wait_for
from trainer.data.prepare import prepare_data, python_source_files


def test_ranks_of_the_built_in_trainer_listen_on_loopback_only(
    launcher: LocalLauncher, make: Callable[..., TrialSpec], tmp_path: Path
) -> None:
    prepare_data(python_source_files(max_bytes=20_000), tmp_path / "data")
    model = {
        "num_layers": 1, "hidden_size": 32, "num_heads": 2, "vocab_size": 260, "seq_length": 16,
    }  # fmt: skip
    config = {"model": model, "data": str(tmp_path / "data"), "measured_steps": 1_000_000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = make(*module_argv("trainer", str(tmp_path / "config.json")))
    stop, outcomes = threading.Event(), list[Outcome]()
    lease = Lease(spec.name, ("local0",))
    trial = threading.Thread(target=lambda: outcomes.append(launcher.run(spec, lease, stop)))
    trial.start()
    try:
        wait_for(lambda: "step " in log(spec) or outcomes, "the first step")
        assert not outcomes, log(spec, "stderr.log")
        found = listening(processes.descendants(os.getpid()))
        assert found, "no rank listens: this test sees nothing"
        assert only_loopback(found), found
    finally:
        stop.set()
        trial.join()
    assert len(outcomes) == 1
