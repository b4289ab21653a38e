"""Background streams: work beside the computation keeps its order, its bound and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trainer.data.prepare import prepare_data
from trainer.runtime.exit_codes import EXIT_OUT_OF_MEMORY, EXIT_PEER_FAILED
from trainer.zero.background import InlineStream, ThreadStream

WAIT_S = 250


@pytest.fixture
def stream() -> Iterator[ThreadStream]:
    stream = ThreadStream("test", bound=2)
    yield stream
    stream.executor.shutdown()


def test_work_runs_in_the_given_order_on_one_other_thread(stream: ThreadStream) -> None:
    seen: list[tuple[int, int]] = []
    for number in range(50):
        stream.run(lambda number=number: seen.append((number, threading.get_ident())))
    stream.finish()
    assert [number for number, _ in seen] == list(range(50))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert len({thread for _, thread in seen}) == 1


def test_the_caller_goes_on_while_work_waits(stream: ThreadStream) -> None:
    gate, done = threading.Event(), threading.Event()

    def first() -> None:
        held(gate)
        done.set()

    work = stream.run(first)
    stream.run(lambda: None)  # returns although the first is not done
    assert not done.is_set()
    gate.set()
    assert work.wait()
    assert done.is_set()
    stream.finish()
    assert not stream.pending.ends


def test_the_caller_waits_when_as_much_waits_as_may(stream: ThreadStream) -> None:
    gate, third = threading.Event(), threading.Event()
    stream.run(lambda: held(gate))
    stream.run(lambda: None)

    def give_a_third() -> None:
        stream.run(third.set)

    giver = threading.Thread(target=give_a_third)
    giver.start()
    giver.join(0.05)
    assert giver.is_alive() and not third.is_set()
    gate.set()
    assert third.wait(WAIT_S)
    giver.join(WAIT_S)
    assert not giver.is_alive()


def test_an_error_is_raised_where_the_work_is_waited_for(stream: ThreadStream) -> None:
    work = stream.run(run_out_of_memory)
    assert isinstance(work, dist.Work)  # else FSDP2 would not wait for it
    with pytest.raises(MemoryError, match="of a stream"):
        work.wait()


def test_an_error_that_nobody_waited_for_is_raised_at_the_end(stream: ThreadStream) -> None:
    stream.run(run_out_of_memory)
    stream.run(lambda: None)
    with pytest.raises(MemoryError, match="of a stream"):
        stream.finish()


def test_an_error_is_raised_at_the_latest_when_the_bound_is_reached(stream: ThreadStream) -> None:
    stream.run(run_out_of_memory)
    stream.run(lambda: None)
    with pytest.raises(MemoryError, match="of a stream"):
        stream.run(lambda: None)


def test_work_is_not_differentiated(stream: ThreadStream) -> None:
    weight = torch.ones(3, requires_grad=True)
    results: list[torch.Tensor] = []
    stream.run(lambda: results.append(weight * 2))
    stream.finish()
    assert not results[0].requires_grad


def test_work_inside_of_work_runs_at_once() -> None:
    seen: list[int] = []
    inner = InlineStream()
    inner.run(lambda: seen.append(1))
    inner.wait_event(inner.record_event())
    assert seen == [1]


def held(gate: threading.Event) -> None:
    assert gate.wait(WAIT_S)


def run_out_of_memory() -> None:
    raise MemoryError("of a stream")


@pytest.mark.parametrize(
    "collective", ["all_gather", pytest.param("reduce_scatter", marks=pytest.mark.heavy)]
)
def test_memory_that_runs_out_on_another_thread_is_the_runs_result(
    collective: str, tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("To be, or not to be, that is the question. " * 50)
    prepare_data([text], tmp_path / "data")
    config = {
        "model": {
            "num_layers": 2,
            "hidden_size": 16,
            "num_heads": 2,
            "vocab_size": 257,
            "seq_length": 16,
        },
        "data": str(tmp_path / "data"),
        "precision": "fp32",
        "zero_stage": 3,
        "device": "cpu",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    script = Path(__file__).parents[2] / "support/failing_hooks.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "config.json"), str(tmp_path), collective],
        capture_output=True,
        text=True,
        timeout=250,
        env={k: v for k, v in os.environ.items() if not k.startswith("SLURM_")},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [EXIT_PEER_FAILED, EXIT_OUT_OF_MEMORY]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["rank"]) == ("oom", 1)
    assert result["where"] in ("forward", "backward", "communication")
    assert "can't allocate memory" in result["message"]
