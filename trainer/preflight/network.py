"""Network adapters of this node, as the kernel shows them. Torch-free."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

SYSFS = Path("/sys")


def network_adapters(sysfs: Path = SYSFS) -> dict[str, float]:
    """Nominal GB/s per direction of the adapters that a job's traffic takes, by name.

    InfiniBand's and its like, else Slingshot's (hsn0 ...), else all others; only the fastest of
    them, since slower ones serve storage or administration.
    """
    interfaces = {
        path.name: rate
        for path in sorted((sysfs / "class/net").glob("*"))
        if (path / "device").exists() and (rate := _interface_gb_per_s(path))
    }
    slingshot = {name: rate for name, rate in interfaces.items() if name.startswith("hsn")}
    found = _infiniband(sysfs) or slingshot or interfaces
    fastest = max(found.values(), default=0.0)
    return {name: rate for name, rate in found.items() if rate == fastest}


def _infiniband(sysfs: Path) -> dict[str, float]:
    """By ports that are up: ``rate`` is like "400 Gb/sec (4X NDR)"."""
    rates = {}
    for port in sorted((sysfs / "class/infiniband").glob("*/ports/*")):
        with contextlib.suppress(OSError):
            rate = re.match(r"([\d.]+) Gb/sec", (port / "rate").read_text())
            if rate and "ACTIVE" in (port / "state").read_text():
                rates[f"{port.parents[1].name}:{port.name}"] = float(rate[1]) / 8
    return rates


def _interface_gb_per_s(interface: Path) -> float | None:
    """The kernel's Mbit/s as GB/s; None for one that is down or does not say."""
    try:
        mbit_per_s = int((interface / "speed").read_text())
        up = (interface / "operstate").read_text().strip() == "up"
    except (OSError, ValueError):
        return None
    return mbit_per_s / 8000 if up and mbit_per_s > 0 else None
