"""Energy that this node's devices use, read from cumulative counters.

Only the first source that answers is used, so that nothing is counted twice:

* Cray's ``pm_counters``: the whole node, sampled ten times a second;
* NVML: the rank's own NVIDIA GPU (Volta and later);
* ROCm SMI: all AMD GPUs of the node (both dies of an MI250X have one counter);
* RAPL, for ranks without a GPU: the node's processors and their memory; it wraps around;
* Slurm's ``acct_gather_energy``: all nodes of the step, for long enough measurements.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL, byref, c_float, c_uint32, c_uint64, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

NVML, ROCM_SMI = "libnvidia-ml.so.1", "librocm_smi64.so"
# Sites sample about every 30 s, and a reading may be that old: an error of 10 % at most.
SLURM_SHORTEST_S = 300.0
_SLURM_S = 20.0  # timeout of sstat
_SLURM_UNKNOWN = 1 << 60  # this and above stand for no value

Readings = Mapping[str, tuple[float, float]]
"""By counter, named uniquely in a job: joules, and at how many it wraps around (0: never)."""


class Meter:
    """Measures by how many joules this rank's counters have risen.

    Args:
        gpu: UUID of the rank's GPU; ``any`` if unknown; empty if the rank computes on a CPU.
        rank: only rank 0 asks Slurm, whose energy is that of all ranks.
        root: folder that stands for ``/``.
        environ: names the Slurm step.

    Attributes:
        source: name of the one in use; empty if none answers.
        why: the reasons if none answers.
    """

    def __init__(
        self,
        gpu: str = "",
        rank: int = 0,
        root: Path = Path("/"),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        sources: dict[str, Callable[[], Readings]] = {"pm_counters": partial(_cray, root)}
        if gpu:
            sources |= {"NVML": partial(_nvml, gpu), "ROCm SMI": _rocm_smi}
        else:
            sources["RAPL"] = partial(_rapl, root)
        if rank == 0:
            sources["Slurm"] = partial(_slurm, environ)
        self.source, reasons = "", []
        self._seen: Readings = {}
        self._used: dict[str, float] = {}
        self._begun_s = time.monotonic()
        for name, read in sources.items():
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
        self._add()
        self._used = dict.fromkeys(self._seen, 0.0)
        self._begun_s = time.monotonic()

    def step(self) -> None:
        """Read counters that wrap around; to be called more often than they do."""
        if self._used and any(whole for _, whole in self._seen.values()):
            self._add()

    def used(self) -> dict[str, Any]:
        """Source, joules by counter since ``begin``, and ``why`` there is no source."""
        took_s = time.monotonic() - self._begun_s
        if self.source == "Slurm" and took_s < SLURM_SHORTEST_S:
            why = f"Slurm: its samples are too rare for measured steps of {took_s:.3g} s in all"
            self.source, self.why = "", f"{why}; it takes {SLURM_SHORTEST_S:g} s or more"
        self._add()
        return {"source": self.source, "joules": self._used, "why": self.why}

    def _add(self) -> None:
        try:
            now = self._read() if self.source else {}
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.source, self.why = "", f"{self.source}: {_said(error)}"
            return
        for name, (joules, whole) in now.items():
            before, _ = self._seen.get(name, (joules, 0.0))
            more = joules - before + (whole if joules < before else 0.0)
            self._used[name] = self._used.get(name, 0.0) + more
        self._seen = now


def in_all(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``energy_joules`` and ``energy_source`` of a job, from ``Meter.used`` of its ranks in order.

    Each counter counts once. If a rank has no source, or another one than rank 0, there is no
    energy, and ``energy_source`` says why.
    """
    source, joules = ranks[0]["source"], dict[str, float]()
    for number, rank in enumerate(ranks[:1] if source == "Slurm" else ranks):
        if not source or rank["source"] != source:
            why = rank["why"] or f"{rank['source']}, but {source} on rank 0"
            return {"energy_source": f"none (rank {number}: {why})"}
        for name, value in rank["joules"].items():
            joules[name] = max(value, joules.get(name, 0.0))
    total = sum(joules.values())
    if total > 0:
        return {"energy_joules": total, "energy_source": source}
    return {"energy_source": f"none ({source}: the counter did not move in the measured steps)"}


def _cray(root: Path) -> Readings:
    file = root / "sys/cray/pm_counters/energy"
    if not (words := file.read_text().split()):  # "2301567 J 1700000000 us"
        raise ValueError(f"{file} is empty")
    return {platform.node(): (float(words[0]), 0.0)}


def _rapl(root: Path) -> Readings:
    """Packages and their memory; ``psys`` and cores would count the same energy twice."""
    found, folder = {}, root / "sys/class/powercap"
    for zone in sorted(folder.glob("intel-rapl:*")):
        if (zone / "name").read_text().startswith(("package", "dram")):
            joules, whole = (
                int((zone / name).read_text()) / 1e6
                for name in ("energy_uj", "max_energy_range_uj")
            )
            found[f"{platform.node()}/{zone.name}"] = joules, whole
    if not found:
        raise FileNotFoundError(None, "no such counters", str(folder))
    return found


def _nvml(uuid: str) -> Readings:
    library, handle, millijoules = CDLL(NVML), c_void_p(), c_uint64()
    _check(library.nvmlInit_v2(), "nvmlInit")
    if uuid == "any":
        code = library.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
    else:
        code = library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), byref(handle))
    _check(code, f"no GPU {uuid}")
    code = library.nvmlDeviceGetTotalEnergyConsumption(handle, byref(millijoules))
    _check(code, "the GPU has no counter of its energy")
    return {f"GPU-{uuid}": (millijoules.value / 1e3, 0.0)}


def _rocm_smi() -> Readings:
    library, count, found = CDLL(ROCM_SMI), c_uint32(), {}
    _check(library.rsmi_init(c_uint64(0)), "rsmi_init")
    _check(library.rsmi_num_monitor_devices(byref(count)), "no GPU")
    ticks, microjoules, time = c_uint64(), c_float(), c_uint64()
    for index in range(count.value):
        of = byref(ticks), byref(microjoules), byref(time)
        if library.rsmi_dev_energy_count_get(index, *of) == 0 and ticks.value:  # first dies only
            found[f"{platform.node()}/{index}"] = ticks.value * microjoules.value / 1e6, 0.0
    _check(not found, "no GPU has a counter of its energy")
    return found


def _slurm(environ: Mapping[str, str]) -> Readings:
    if not {"SLURM_JOB_ID", "SLURM_STEP_ID"} <= environ.keys():
        raise ValueError("not in a step")
    step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    argv = ["sstat", "--noheader", "--parsable2", "-j", step, "-o", "ConsumedEnergyRaw"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SLURM_S)
    number = done.stdout.strip().partition("\n")[0]
    if not number.isdecimal() or not 0 < int(number) < _SLURM_UNKNOWN:
        raise ValueError("acct_gather_energy tells nothing of this step")
    return {step: (float(number), 0.0)}


def _check(code: int, what: str) -> None:
    if code:
        raise ValueError(f"{what} (status {code})")


def _said(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{error.filename} is not readable: ask for `chmod a+r` at boot"
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"no {error.filename}"
    return str(error)
