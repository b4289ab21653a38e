"""Which network adapters a job uses."""

from __future__ import annotations

from pathlib import Path

from trainer.preflight.probe import network_adapters


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def interface(sysfs: Path, name: str, speed: str, state: str = "up", device: bool = True) -> None:
    put(sysfs / "class/net" / name / "speed", speed)
    put(sysfs / "class/net" / name / "operstate", state + "\n")
    if device:
        put(sysfs / "class/net" / name / "device/vendor", "0x1\n")


def test_the_adapters_of_a_job_are_the_fast_ones_of_the_right_kind(tmp_path: Path) -> None:
    assert network_adapters(tmp_path) == {}
    interface(tmp_path, "lo", "-1", device=False)
    interface(tmp_path, "eth0", "10000\n")
    interface(tmp_path, "eth1", "1000\n")
    interface(tmp_path, "bond0", "200000\n", device=False)
    assert network_adapters(tmp_path) == {"eth0": 1.25}
    for name, state in (("hsn0", "up"), ("hsn1", "up"), ("hsn2", "down")):
        interface(tmp_path, name, "200000\n", state)
    assert network_adapters(tmp_path) == {"hsn0": 25.0, "hsn1": 25.0}
    for name, rate, state in (
        ("mlx5_0", "400 Gb/sec (4X NDR)", "4: ACTIVE"),
        ("mlx5_1", "400 Gb/sec (4X NDR)", "1: DOWN"),
        ("mlx5_2", "100 Gb/sec (4X EDR)", "4: ACTIVE"),
    ):
        put(tmp_path / "class/infiniband" / name / "ports/1/rate", rate)
        put(tmp_path / "class/infiniband" / name / "ports/1/state", state)
    assert network_adapters(tmp_path) == {"mlx5_0:1": 50.0}
