"""Energy that this node's devices use, read from cumulative counters.

The first source that answers counts, alone, so that nothing is counted twice:

* Cray's ``pm_counters``: all of a node, sampled ten times a second;
* NVML: the rank's own NVIDIA GPU (Volta and later);
* ROCm SMI: all AMD GPUs of the node (both dies of an MI250X have one counter);
* RAPL, without a GPU: the node's processors and their memory; it wraps around;
* Slurm's ``acct_gather_energy``: all nodes of the step, as sampled as its administrator has set it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

NVML, ROCM_SMI = "libnvidia-ml.so.1", "librocm_smi64.so"
_SLURM_S = 20.0  # that it may take to answer
_SLURM_UNKNOWN = 1 << 60  # and above: no value


class Reading(NamedTuple):
    joules: float
    range_joules: float = 0.0  # at which the counter starts anew; 0: never


Readings = Mapping[str, Reading]
"""Counters by a name that is unique in a job."""


class Meter:
    """Joules that this rank's counters have risen by.

    Attributes:
        source: of the readings; empty if there is none.
        why: reasons, if there is none.
    """

    def __init__(
        self,
        gpu: str = "",
        rank: int = 0,
        root: Path = Path("/"),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Find a source.

        Args:
            gpu: UUID of the rank's GPU, ``any`` if it is not known; empty: it computes on a CPU.
            rank: the first one asks Slurm, for all.
            root: folder that stands for ``/``.
            environ: names the Slurm step.
        """
        self.source = ""
        self._seen: Readings = {}
        self._used: dict[str, float] = {}
        reasons: list[str] = []
        for name, read in _sources(gpu, rank, root, environ):
            try:
                self._seen = read()
            except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as error:
                reasons.append(f"{name}: {_said(error)}")
            else:
                self.source, self._read = name, read
                break
        self.why = "; ".join(reasons)

    def begin(self) -> None:
        """Count from now on."""
        self._used = {}
        if self.source:
            self._add()
            self._used = dict.fromkeys(self._seen, 0.0)

    def step(self) -> None:
        """Follow counters that wrap around; to be called more often than they do."""
        if self._used and any(reading.range_joules for reading in self._seen.values()):
            self._add()

    def used(self) -> dict[str, Any]:
        """Source and joules by counter since ``begin``; ``why`` if there is no source."""
        if self.source:
            self._add()
        return {"source": self.source, "joules": self._used, "why": self.why}

    def _add(self) -> None:
        try:
            now = self._read()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.source, self.why, self._used = "", f"{self.source}: {_said(error)}", {}
            return
        for name, (joules, whole) in now.items():
            before = self._seen.get(name, Reading(joules)).joules
            more = joules - before + (whole if joules < before else 0.0)
            self._used[name] = self._used.get(name, 0.0) + more
        self._seen = now


def in_all(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``energy_joules`` and ``energy_source`` of a job, from ``Meter.used`` of its ranks in order.

    Each counter counts once. Where a rank has another source than the first one, or none, there
    is no energy, and the source says why.
    """
    first = ranks[0]["source"] if ranks else ""
    of_all = ranks[:1] if first == "Slurm" else ranks
    joules: dict[str, float] = {}
    for number, rank in enumerate(of_all):
        if not first or rank["source"] != first:
            why = rank["why"] or f"{rank['source']}, but {first} on rank 0"
            return {"energy_source": f"none (rank {number}: {why})"}
        for name, value in rank["joules"].items():
            joules[name] = max(value, joules.get(name, 0.0))
    total = sum(joules.values())
    if total <= 0:
        return {"energy_source": f"none ({first}: the counter did not move in the measured steps)"}
    return {"energy_joules": total, "energy_source": first}


def _sources(
    gpu: str, rank: int, root: Path, environ: Mapping[str, str]
) -> Iterator[tuple[str, Callable[[], Readings]]]:
    yield "pm_counters", lambda: _cray(root)
    if gpu:
        yield "NVML", lambda: _nvml(gpu)
        yield "ROCm SMI", _rocm_smi
    else:
        yield "RAPL", lambda: _rapl(root)
    if rank == 0:
        yield "Slurm", lambda: _slurm(environ)


def _cray(root: Path) -> Readings:
    text = (root / "sys/cray/pm_counters/energy").read_text()
    return {platform.node(): Reading(float(text.split()[0]))}  # "2301567 J 1700000000 us"


def _rapl(root: Path) -> Readings:
    """Packages, and the memory beside them; ``psys`` and cores would count twice."""
    found = {}
    folder = root / "sys/class/powercap"
    for zone in sorted(folder.glob("intel-rapl:*")):
        name = (zone / "name").read_text().strip()
        if name.startswith(("package", "dram")):
            joules = int((zone / "energy_uj").read_text()) / 1e6
            whole = int((zone / "max_energy_range_uj").read_text()) / 1e6
            found[f"{platform.node()}/{zone.name}"] = Reading(joules, whole)
    if not found:
        raise FileNotFoundError(None, "no such counters", str(folder))
    return found


def _nvml(uuid: str) -> Readings:
    library = ctypes.CDLL(NVML)
    _check(library.nvmlInit_v2(), "nvmlInit")
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    if uuid == "any":
        _check(library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)), "no GPU")
    else:
        name = (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}").encode()
        _check(library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)), f"no GPU {uuid}")
    code = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
    _check(code, "the GPU has no counter of its energy")
    return {f"GPU-{uuid}": Reading(millijoules.value / 1e3)}


def _rocm_smi() -> Readings:
    library = ctypes.CDLL(ROCM_SMI)
    _check(library.rsmi_init(ctypes.c_uint64(0)), "rsmi_init")
    count = ctypes.c_uint32()
    _check(library.rsmi_num_monitor_devices(ctypes.byref(count)), "no GPU")
    found = {}
    for index in range(count.value):
        ticks, microjoules, time = ctypes.c_uint64(), ctypes.c_float(), ctypes.c_uint64()
        code = library.rsmi_dev_energy_count_get(
            index, ctypes.byref(ticks), ctypes.byref(microjoules), ctypes.byref(time)
        )
        if code == 0 and ticks.value:  # an MI250X's second die has none
            joules = ticks.value * microjoules.value / 1e6
            found[f"{platform.node()}/{index}"] = Reading(joules)
    if not found:
        raise ValueError("no GPU has a counter of its energy")
    return found


def _slurm(environ: Mapping[str, str]) -> Readings:
    if not {"SLURM_JOB_ID", "SLURM_STEP_ID"} <= environ.keys():
        raise ValueError("not in a step")
    step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    argv = ["sstat", "--noheader", "--parsable2", "-j", step, "-o", "ConsumedEnergyRaw"]
    env = {**os.environ, **environ}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SLURM_S, env=env)
    number = done.stdout.strip().partition("\n")[0]
    if not number.isdecimal() or not 0 < int(number) < _SLURM_UNKNOWN:
        raise ValueError("acct_gather_energy tells nothing of this step")
    return {step: Reading(float(number))}


def _check(code: int, what: str) -> None:
    if code:
        raise ValueError(f"{what} (status {code})")


def _said(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{error.filename} is not readable: ask for `chmod a+r` at boot"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"no {error.filename}"
    return str(error)
