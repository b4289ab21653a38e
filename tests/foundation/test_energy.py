"""Counters of energy: recorded ones in folders that stand for ``/``, libraries, Slurm's command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from foundation import energy
from foundation.energy import Meter, in_all

NOWHERE: dict[str, str] = {}


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n")


def cray(root: Path, joules: int) -> None:
    write(root / "sys/cray/pm_counters/energy", f"{joules} J 1719412345678901 us")


def rapl(root: Path, zone: str, name: str, microjoules: int, whole: int = 262_143_328_850) -> None:
    folder = root / "sys/class/powercap" / zone
    write(folder / "name", name)
    write(folder / "energy_uj", microjoules)
    write(folder / "max_energy_range_uj", whole)


def test_cray_counts_the_whole_node_from_the_first_measured_step(tmp_path: Path) -> None:
    cray(tmp_path, 2_301_000)
    rapl(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = Meter(root=tmp_path, environ=NOWHERE)
    cray(tmp_path, 2_301_500)  # the warm-up's
    meter.begin()
    cray(tmp_path, 2_302_750)
    used = [meter.used(), meter.used()]  # of two ranks of the node
    assert in_all(used) == {"energy_joules": 1250.0, "energy_source": "pm_counters"}


def test_rapl_adds_packages_and_memory_once_through_wraps(tmp_path: Path) -> None:
    zones = {
        "intel-rapl:0": ("package-0", 200_000_000),
        "intel-rapl:0:0": ("core", 1),
        "intel-rapl:0:1": ("dram", 5_000_000),
        "intel-rapl:1": ("psys", 9_000_000),
        "intel-rapl-mmio:0": ("package-0", 200_000_000),
    }
    for zone, (name, start) in zones.items():
        rapl(tmp_path, zone, name, start, whole=262_000_000)
    meter = Meter(root=tmp_path, environ=NOWHERE)
    meter.begin()
    for package in (250_000_000, 30_000_000, 10_000_000):  # two wraps, one between two steps each
        rapl(tmp_path, "intel-rapl:0", "package-0", package, whole=262_000_000)
        rapl(tmp_path, "intel-rapl:1", "psys", package, whole=262_000_000)
        meter.step()
    rapl(tmp_path, "intel-rapl:0:1", "dram", 7_000_000, whole=262_000_000)
    found = in_all([meter.used()])
    assert found["energy_source"] == "RAPL"
    assert found["energy_joules"] == pytest.approx(50 + 42 + 242 + 2)


def test_a_machine_without_counters_says_what_was_looked_for(tmp_path: Path) -> None:
    meter = Meter(root=tmp_path, environ=NOWHERE)
    meter.begin()
    meter.step()
    found = in_all([meter.used()])
    assert "energy_joules" not in found
    for looked_for in ("pm_counters", "powercap", "Slurm: not in a step"):
        assert looked_for in found["energy_source"]


def test_a_counter_that_only_root_may_read_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rapl(tmp_path, "intel-rapl:0", "package-0", 5)
    read_text = Path.read_text

    def denied(path: Path, *arguments: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments)

    monkeypatch.setattr(Path, "read_text", denied)
    why = Meter(root=tmp_path, environ=NOWHERE).why
    assert "intel-rapl:0/energy_uj is not readable: ask for `chmod a+r`" in why


def test_a_rank_without_the_others_source_leaves_no_energy(tmp_path: Path) -> None:
    cray(tmp_path, 1)
    meter = Meter(root=tmp_path, environ=NOWHERE)
    meter.begin()
    cray(tmp_path, 11)
    other = Meter(rank=1, root=tmp_path / "other", environ=NOWHERE)
    other.begin()
    found = in_all([meter.used(), other.used()])
    assert found.keys() == {"energy_source"}
    assert found["energy_source"].startswith("none (rank 1: pm_counters: no ")


def test_a_counter_that_vanishes_or_stands_still_leaves_no_energy(tmp_path: Path) -> None:
    cray(tmp_path, 1)
    meter = Meter(root=tmp_path, environ=NOWHERE)
    meter.begin()
    assert "did not move" in in_all([meter.used()])["energy_source"]
    write(tmp_path / "sys/cray/pm_counters/energy", "")
    assert "pm_counters/energy is empty" in in_all([meter.used()])["energy_source"]
    assert "pm_counters/energy is empty" in Meter(root=tmp_path, environ=NOWHERE).why
    cray(tmp_path, 1)
    meter = Meter(root=tmp_path, environ=NOWHERE)
    meter.begin()
    (tmp_path / "sys/cray/pm_counters/energy").unlink()
    assert in_all([meter.used()])["energy_source"].startswith("none (rank 0: pm_counters: no /")


LIBRARIES = """
#include <stdint.h>
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  *handle = (void *)(intptr_t)7;
  return strcmp(uuid, "GPU-3a1c") ? 2 : 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *mj) {
  static unsigned long long total = 5000000000ULL;
  *mj = total += 250500;
  return handle == (void *)(intptr_t)7 ? 0 : 3;
}
int rsmi_init(uint64_t flags) { return flags != 0; }
int rsmi_num_monitor_devices(uint32_t *count) { *count = 4; return 0; }
int rsmi_dev_energy_count_get(uint32_t index, uint64_t *ticks, float *uj, uint64_t *time) {
  static uint64_t total[4] = {1ULL << 40, 0, 1ULL << 41, 0};
  if (index % 2) { *ticks = 0; return index == 1 ? 2 : 0; }
  *ticks = total[index] += 65536; *uj = 15.25f; *time = 1; return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Both vendors' functions, with their types, behind one file."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("library")
    write(folder / "counters.c", LIBRARIES)
    made = folder / "counters.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, folder / "counters.c"], check=True)
    return str(made)


def used_by(gpu: str, root: Path) -> dict[str, Any]:
    """What a meter says of a rank that does nothing."""
    meter = Meter(gpu, root=root, environ=NOWHERE)
    meter.begin()
    return meter.used()


def test_nvml_counts_the_ranks_own_gpu(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "NVML", library)
    used = used_by("3a1c", tmp_path)
    assert used["source"] == "NVML" and used["joules"] == {"GPU-3a1c": pytest.approx(250.5)}
    other = {**used, "joules": {"GPU-77": 100.0}}
    assert in_all([used, other])["energy_joules"] == pytest.approx(350.5)
    assert "no GPU ffff" in Meter("ffff", rank=1, root=tmp_path, environ=NOWHERE).why


def test_rocm_counts_every_card_once(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(energy, "ROCM_SMI", library)
    used = [used_by("any", tmp_path)] * 4
    assert in_all(used)["energy_source"] == "ROCm SMI"
    assert in_all(used)["energy_joules"] == pytest.approx(2 * 65536 * 15.25e-6, rel=1e-3)


@pytest.mark.parametrize("said", ["7", "0", "", "18446744073709551614"])
def test_slurm_without_a_counter_that_moves_is_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    write(tmp_path / "bin/sstat", f"#!/bin/sh\necho '{said}'")
    (tmp_path / "bin/sstat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(energy, "SLURM_SHORTEST_S", 0.0)
    step = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"}
    meter = Meter(root=tmp_path, environ=step)
    meter.begin()
    assert in_all([meter.used()])["energy_source"].startswith("none")


def test_slurms_samples_are_too_rare_for_short_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = f"#!/bin/sh\necho x >> {tmp_path}/asked; echo $((100 * $(wc -l < {tmp_path}/asked)))"
    write(tmp_path / "bin/sstat", said)
    (tmp_path / "bin/sstat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def measured() -> dict[str, Any]:
        meter = Meter(root=tmp_path, environ={"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"})
        meter.begin()
        return in_all([meter.used()])

    short = measured()
    assert short.keys() == {"energy_source"} and "it takes 300 s or more" in short["energy_source"]
    monkeypatch.setattr(energy, "SLURM_SHORTEST_S", 0.0)
    assert measured() == {"energy_joules": 100.0, "energy_source": "Slurm"}


def test_rapl_of_this_machine_rises() -> None:
    meter = Meter(environ=NOWHERE)
    if meter.source != "RAPL":
        pytest.skip(f"no RAPL here: {meter.why}")
    meter.begin()
    sum(range(10_000_000))
    assert in_all([meter.used()])["energy_joules"] > 0
