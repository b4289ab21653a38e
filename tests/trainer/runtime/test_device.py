"""A rank's device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from trainer.plan.limits import ConfigError
from trainer.runtime.device import Device, attention_backends, granted


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_auto_is_refused_where_the_rank_was_given_accelerators_that_torch_cannot_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3")
    with pytest.raises(ConfigError, match=r"device: auto: .*set device: cpu"):
        Device("auto")
    assert Device("cpu").type == "cpu"


@pytest.mark.parametrize(
    ("files", "environ", "given"),
    [
        ([], {}, False),
        (["nvidiactl", "null"], {}, False),
        (["nvidia0"], {}, True),
        (["kfd"], {}, True),
        (["nvidia0"], {"CUDA_VISIBLE_DEVICES": ""}, False),
        (["kfd"], {"ROCR_VISIBLE_DEVICES": "-1"}, False),
        ([], {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, False),  # Slurm: a step without GPUs
        ([], {"CUDA_VISIBLE_DEVICES": "0,1"}, True),
    ],
)
def test_a_rank_has_what_the_kernel_shows_unless_it_was_hidden_from_it(
    tmp_path: Path, files: list[str], environ: dict[str, str], given: bool
) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert granted(environ, tmp_path) is given


def test_a_ranks_device_is_told_with_what_drives_it() -> None:
    facts = Device("cpu").facts()
    assert {"type", "name", "memory_bytes", "driver", "runtime", "library"} <= facts.keys()
    assert (facts["type"], facts["library"]) == ("cpu", "gloo")


def test_an_accelerators_attention_is_never_the_quadratic_one() -> None:
    before = torch.backends.cuda.math_sdp_enabled()
    with attention_backends("cuda"):
        assert not torch.backends.cuda.math_sdp_enabled()
        assert torch.backends.cuda.cudnn_sdp_enabled()
        first = torch._C._get_sdp_priority_order()[:3]
        kernels = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION")
        assert first == [int(getattr(SDPBackend, name).value) for name in kernels]
    assert torch.backends.cuda.math_sdp_enabled() == before
    with attention_backends("cpu"):
        assert torch.backends.cuda.math_sdp_enabled() == before
