"""A cluster file from measurements, and from the data sheets of shipped clusters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

import yaml

from analysis.cost.compute import ComputeConstants
from analysis.cost.groups import LinkConstants
from analysis.preflight import facts
from foundation.quantities import counted, significant
from search_spaces import Cluster, Link, Nic

# NVIDIA A100-SXM4-80GB, AMD Instinct MI250X: letters, two digits or more.
_MODEL = re.compile(r"\b([A-Z]{1,3}\d{2,4}[A-Z]?)\b")
_SAME_MEMORY = 0.12  # a driver keeps some; other editions of a GPU differ by more
_OWN_WIDTH = 34  # of a key and its value, before a comment
_HANG = (
    "collectives of three communicators, started together in one order on every rank, did not end "
    "({library}): training with tensor and data parallelism may hang. A later library helps, or "
    "NCCL_LAUNCH_ORDER_IMPLICIT: 1 in the site profile's env, which keeps their order"
)


def clusters_with(device: Mapping[str, Any], name: str) -> list[Cluster]:
    """Shipped clusters of a GPU as torch describes it: model, memory, units; best of that name."""
    model = _MODEL.search(device["name"].upper())
    found = []
    for cluster in Cluster.shipped().values():
        own = _MODEL.search(cluster.gpu.upper())
        memory = device["memory_bytes"] / cluster.memory_bytes
        units = {cluster.compute_units, device["compute_units"]} - {None}
        same = model and own and model[1] == own[1] and len(units) <= 1
        if same and abs(memory - 1) < _SAME_MEMORY:
            found.append(cluster)
    return [c for c in found if c.name == name] or found


class Preflight:
    """A machine as ``trainer.preflight`` measured it, each fact with its source.

    Raises ValueError if not even the matrix products were measured.
    """

    def __init__(self, result: Mapping[str, Any], name: str) -> None:
        if not result.get("gemm"):
            raise ValueError(result.get("message") or "no matrix product was measured")
        self.name, self.result, self.device = name, result, result["device"]
        self.per_node = int(result["ranks_per_node"])
        self.num_nodes = len(result["hosts"]) // self.per_node
        self.points = facts.points(result.get("collectives", []))
        known = clusters_with(self.device, name)
        self.known = known[0] if known else None
        alike = [c for c in known if c.gpus_per_node == self.per_node]
        self.links = self._agreed([c.links for c in alike])
        self.nic, self.nic_source = self._nic(alike)

    def file(self, when: datetime, failure: str = "") -> str:
        """The text of a cluster file; ``failure`` says why the measurement is not complete."""
        versions = f"torch {self.result['torch']}, {self.device['library']}"
        source = f"meshtune preflight, {when:%Y-%m-%d}, {self.result['hosts'][0]}, {versions}"
        lines = [
            "# Measured by `meshtune preflight`; check what says so, and state num_nodes.",
            "# Rates per direction; 1 GB/s = 1e9 bytes/s.",
            *([f"# INCOMPLETE: {' '.join(failure.split())}"] if failure else []),
            f"name: {_scalar(self.name)}",
            f"source: {json.dumps(source)}",
            *self._lines(),
        ]
        text = "\n".join(lines) + "\n"
        Cluster.model_validate(yaml.safe_load(text))  # the file can be read
        return text

    def summary(self) -> list[str]:
        """One line for each matrix product, copy and group of ranks."""
        lines = []
        for gemm in self.result["gemm"]:
            label = f"{gemm['dtype']} {gemm['rows']} x {gemm['columns']} x {gemm['inner']}"
            lines.append(f"{label:44s}{median(gemm['tflops']):10.4g} TFLOP/s")
        for key, label in (("copy", "memory copy"), ("host_copy", "host to device")):
            for copy in self.result.get(key, []):
                lines.append(f"{label:44s}{median(copy['gb_per_s']):10.4g} GB/s")
        for gpus, nodes, stride in dict.fromkeys(p.group for p in self.points):
            label = f"{gpus} ranks on {counted(nodes, 'node')}, stride {stride}"
            if ring := facts.best_ring(self.points, gpus, nodes, stride):
                lines.append(
                    f"{label:44s}{ring.bus_gb_per_s:10.4g} GB/s bus bandwidth, {ring.operation} of "
                    f"{ring.size_bytes / 2**20:.4g} MiB"
                )
        return lines

    def warnings(self) -> list[str]:
        """Slow links, slow GPUs, communicators that hang."""
        found = facts.link_warnings(self.points, self.data_sheet())
        if self.device["type"] != "cpu":
            tflops = self.result["gemm"][-1]["tflops"]
            found += facts.slow_gpu_warnings(tflops, self.result["hosts"], self.per_node)
        if self.result.get("side_by_side") is False:
            found.append(_HANG.format(library=self.device["library"]))
        return found

    def _lines(self) -> list[str]:
        known, device = self.known, self.device
        like = f"as in {known.name}.yaml" if known else ""
        half, full = self._best("bfloat16", "float16"), self._best("float32")
        copied = self._middle_of("copy")
        memory = known.memory_gb_per_s if known else None
        if memory is None and copied:
            memory = significant(copied / ComputeConstants().memory_share)
        peak = known.peak_bf16_tflops if known else None
        unstated = "the best product measured: state the data sheet's peak"
        host = known.host_link_gb_per_s if known else None
        pinned = self._middle_of("host_copy")
        entries: list[tuple[str, Any, str]] = [
            ("gpu", device["name"], ""),
            ("gpus_per_node", self.per_node, "ranks that were started on a node"),
            ("cpus_per_node", self.result["cpus_per_node"], ""),
            ("shared_by", self._shared_by(), "ranks to a core"),
            ("compute_units", 1 if device["type"] == "cpu" else device["compute_units"], ""),
            ("power_watts", known.power_watts if known else None, like),
            ("memory_gib", significant(device["memory_bytes"] / 2**30, 4), ""),
            ("memory_gb_per_s", memory, self._measured_at(copied, like, "a copy")),
            ("peak_bf16_tflops", peak or _rounded(half), like if peak else unstated),
            ("peak_fp32_tflops", _rounded(full), unstated),
            ("gemm_bf16_tflops", _rounded(half), "measured"),
            ("overlap", _rounded(self.result.get("overlap")), "measured"),
            ("host_memory_gib", self._host_memory_gib(), "all of a node's"),
            ("host_link_gb_per_s", host or _rounded(pinned), self._measured_at(pinned, like, "")),
        ]
        lines = [_line(key, value, note) for key, value, note in entries if value is not None]
        measured = [c.model_dump(exclude_defaults=True) for c in facts.collectives(self.points)]
        lines += [*self._link_lines(), *(["measured:"] if measured else [])]
        return lines + [f"  - {_flow(each)}" for each in measured]

    def data_sheet(self) -> Cluster:
        """The links by their data sheets; unstated ones are left out."""
        return Cluster(
            name=self.name,
            gpus_per_node=self.per_node,
            memory_gib=self.device["memory_bytes"] / 2**30,
            peak_bf16_tflops=1.0,
            links=self.links or [],
            nic=self.nic if self.nic_source != "measured" else None,
        )

    def _shared_by(self) -> float | None:
        """Ranks per core, where CPU ranks outnumber the cores."""
        cores = self.result["cpus_per_node"]
        shared = self.device["type"] == "cpu" and self.per_node > cores
        return significant(self.per_node / cores) if shared else None

    def _host_memory_gib(self) -> float | None:
        """None for CPUs, whose memory is the ranks' own."""
        total = self.result.get("host_memory_bytes")
        return None if total is None or self.device["type"] == "cpu" else _rounded(total / 2**30)

    def _nic(self, alike: Sequence[Cluster]) -> tuple[Nic | None, str]:
        named = [c for c in alike if c.name == self.name and c.nic]
        if named:
            return named[0].nic, f"as in {self.name}.yaml"
        adapters = self.result.get("adapters") or {}
        real = len(set(self.result["hosts"])) == self.num_nodes  # not several nodes on one machine
        if adapters and real:
            rates = sorted(adapters.values())
            return Nic(count=len(rates), gb_per_s=rates[0]), ", ".join(sorted(adapters))
        agreed = self._agreed([c.nic for c in alike])
        if agreed and real:
            return agreed, f"as in {alike[0].name}.yaml"
        return facts.derived_nic(self.points, self.per_node), "measured"

    def _agreed(self, stated: Sequence[Any]) -> Any:
        """The common value; None if they differ or there is none."""
        return stated[0] if stated and all(s == stated[0] for s in stated) else None

    def _best(self, *formats: str) -> float | None:
        """TFLOP/s of the best square product, on the median rank."""
        squares = [g for g in self.result["gemm"] if g["of"] == "square"]
        return max((median(g["tflops"]) for g in squares if g["dtype"] in formats), default=None)

    def _middle_of(self, kind: str) -> float | None:
        return max((median(c["gb_per_s"]) for c in self.result.get(kind, [])), default=None)

    def _measured_at(self, rate: float | None, like: str, what: str) -> str:
        if rate is None:
            return like
        seen = f"measured {rate:.4g}{' by ' + what if what else ''}"
        return f"{like}; {seen}" if like else seen

    def _link_lines(self) -> list[str]:
        lines = []
        links: Sequence[Link] = self.links or facts.derived_links(self.points, self.per_node)
        if links:
            share = f"{100 * LinkConstants().node_share:.0f} %"
            how = "by data sheet" if self.links else f"measured; collectives are {share} of it"
            lines = [f"links:  # {how}"]
            lines += [f"  - {_flow(link.model_dump(exclude_defaults=True))}" for link in links]
        if self.nic:
            stated = _flow(self.nic.model_dump(exclude_defaults=True))
            lines.append(f"nic: {stated}  # {self.nic_source}")
        return lines


def _rounded(value: float | None) -> float | None:
    return None if value is None else significant(value, 4)


def _line(key: str, value: Any, note: str) -> str:
    text = f"{key}: {json.dumps(value)}"
    return f"{text:<{_OWN_WIDTH}}# {note}" if note else text


def _flow(record: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_scalar(value)}" for key, value in record.items()) + "}"


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) and value.isidentifier() else json.dumps(value)
