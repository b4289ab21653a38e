"""A rank's device."""

from __future__ import annotations

import pytest
import torch

from trainer.config import ConfigError
from trainer.runtime.device import Device


def test_ranks_that_share_a_machine_get_one_thread_each() -> None:
    threads = torch.get_num_threads()
    try:
        Device("cpu", local_rank=0, local_world_size=10_000)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_asking_for_an_accelerator_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="set device: cpu"):
        Device("cuda")
    assert Device("auto").type == "cpu"
