"""One training run, from its configuration to ``result.json``, failures included."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainer.data.dataset import TokenDataset
from trainer.loop import train
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.result import Failure, clear_result, completed, failure, step_line, write_result
from trainer.runtime import exit_codes, memory
from trainer.runtime.device import Device
from trainer.runtime.peers import Peers, RankEnvironment, end_process, rank_environment
from trainer.runtime.phase import phase

_MESSAGE_CHARS = 500
_CODES: dict[Failure, int] = {
    "oom": exit_codes.EXIT_OUT_OF_MEMORY,
    "invalid": exit_codes.EXIT_INVALID,
    "error": exit_codes.EXIT_FAILED,
}
_LOST_PEER = re.compile(
    r"Connection (closed|reset) by peer|Connection was likely closed|Broken pipe|remote process"
)


def run(path: Path, environ: MutableMapping[str, str]) -> int:
    """Train the ``TrainConfig`` in a JSON file; returns the exit code.

    Writes ``result.json`` beside the file. A rank that fails where it has peers ends its process at
    once, since they may hold it in a collective. Sets torch's variables in ``environ``
    (``rank_environment``).
    """
    directory = path.resolve().parent
    try:
        place = rank_environment(environ)
        environ.update(place.variables())
        if place.rank == 0:
            clear_result(directory)  # before the ranks meet, so before any of this run's
        config = TrainConfig.read(path)
        config.check(place.world_size)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):  # there may be no such folder
            write_result(directory, failure("invalid", "config", str(error), _rank(environ)))
        return exit_codes.EXIT_INVALID
    try:
        peers = Peers(place, config.collective_timeout_s)
    except (RuntimeError, OSError) as error:  # the machine's fault: no result of the configuration
        there = f"{place.world_size - 1} peers at {place.master_addr}:{place.master_port}"
        said = f"error: rank {place.rank} cannot meet its {there}: {error}"
        print(said, file=sys.stderr, flush=True)
        return exit_codes.EXIT_FAILED
    return _Run(config, place, peers, directory).run()


def _rank(environ: Mapping[str, str]) -> int:
    """Rank for the report of an environment that may itself be wrong."""
    text = environ.get("RANK", environ.get("SLURM_PROCID", "0"))
    return int(text) if text.isdecimal() else 0


@dataclass
class _Run:
    """A run whose ranks have met."""

    config: TrainConfig
    place: RankEnvironment
    peers: Peers
    directory: Path
    device: Device | None = None  # known once its memory is counted

    def run(self) -> int:
        try:
            training = self._train()
            own = {key: training[key] for key in ("memory", "energy")}
            code = self._conclude(training, self.peers.gather(own, "used") or [own])
        except Exception as error:
            code = self._report(error)
            if self.place.world_size > 1:
                end_process(code)
        else:
            self.peers.part()
        if dist.is_initialized():
            dist.destroy_process_group()
        return code

    def _train(self) -> dict[str, Any]:
        config, place = self.config, self.place
        device = Device.of_this_rank(config.device)
        if device.type == "cpu":
            memory.spare_memory(limited=config.device_memory_bytes is not None)
        self.peers.join("trainer", **device.group_options())
        if config.engine == "deepspeed":
            from trainer.deepspeed.engine import load_deepspeed  # heavy and optional

            load_deepspeed(config, device)
        dataset = TokenDataset(config.data, config.model.vocab_size, config.loss_mask)
        held_out = None
        if config.validation is not None:
            held_out = TokenDataset(config.validation.data, config.model.vocab_size)
        self._progress(
            f"{place.world_size} x {device.type}: tp {config.tp}, pp {config.pp}, "
            f"dp {config.data_parallel(place.world_size)}"
        )
        memory.limit_memory(config.device_memory_bytes, device.torch)
        self.device = device
        with _stop_requests(wanted=config.save is not None) as stop:
            training = train(
                config,
                dataset,
                self._progress,
                self._step_done,
                held_out=held_out,
                folder=self.directory,
                stop=stop.is_set,
            )
        memory.lift_limit()
        return training

    def _progress(self, line: str) -> None:
        if self.place.rank == 0:
            print(line, flush=True)

    def _step_done(self, number: int, step_time_s: float, further: Mapping[str, float]) -> None:
        self._progress(step_line(self.config, self.place.world_size, number, step_time_s, further))

    def _conclude(self, training: Mapping[str, Any], ranks: list[dict[str, Any]]) -> int:
        """Exit code of a completed run; rank 0 writes the result.

        A run that was asked to stop has no result: its figures would be of fewer steps.
        """
        if training["stopped"]:
            if self.place.rank == 0:
                said = f"stopped by SIGTERM; to go on: load: {self.config.save}"
                print(said, file=sys.stderr, flush=True)
            return exit_codes.EXIT_STOPPED
        memory_of, energy_of = ([rank[key] for rank in ranks] for key in ("memory", "energy"))
        result = completed(self.config, self.place.world_size, training, memory_of, energy_of)
        if self.place.rank == 0:
            write_result(self.directory, result)
            if result["status"] != "ok":
                print(f"{result['status']}: {result['message']}", file=sys.stderr, flush=True)
        return exit_codes.EXIT_OK if result["status"] == "ok" else exit_codes.EXIT_FAILED

    def _report(self, error: Exception) -> int:
        """Write a failure's result, unless it follows from a peer's; returns the exit code."""
        memory.lift_limit()
        self.peers.stay()
        cause = memory.out_of_memory(error, self.device.free_bytes() if self.device else None)
        if cause is not None:
            return self._fail("oom", phase.name, cause)
        if isinstance(error, ConfigError):
            return self._fail("invalid", "config", error)
        # A peer that leaves breaks this rank's connections, with errors of various texts.
        if isinstance(error, (RuntimeError, OSError)) and self.peers.have_failed():
            self.peers.leave()
        traceback.print_exception(error)
        if _LOST_PEER.search(str(error)):
            # The peer was killed (node failure, signal, kernel). The launcher knows; no result.
            self.peers.tell(f"rank {self.place.rank} lost a peer")
            return exit_codes.EXIT_FAILED
        return self._fail("error", phase.name, error)

    def _fail(self, status: Failure, where: str, error: BaseException) -> int:
        rank = self.place.rank
        used = self.device.memory() if self.device else None
        line = next(iter(str(error).splitlines()), "")
        message = line if status == "invalid" else f"{type(error).__name__}: {line}"
        device = self.device.facts() if self.device else None
        message = message[:_MESSAGE_CHARS]
        if status == "oom" and device is not None and used is not None:
            message += f" ({memory.in_words(used, self.config.device_memory_bytes, device)})"
        result = failure(status, where, message, rank, used)
        if device is not None:
            result["device"] = device
        said = f"rank {rank}: {status} in {where}: {result['message']}"
        try:
            if write_result(self.directory, result):
                print(said, file=sys.stderr, flush=True)
        except OSError as trouble:
            print(f"{said}; no result.json: {trouble}", file=sys.stderr, flush=True)
        self.peers.tell(said)
        return _CODES[status]


@contextlib.contextmanager
def _stop_requests(wanted: bool) -> Iterator[threading.Event]:
    """Context with an event that SIGTERM sets, if ``wanted``, instead of ending the process."""
    asked = threading.Event()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
