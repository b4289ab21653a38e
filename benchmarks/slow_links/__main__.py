"""``python -m benchmarks.slow_links``: time the placements on nodes with slow links between them.

Needs root (network namespaces) and iproute2. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.slow_links import paper, report
from benchmarks.slow_links.cluster import preload
from benchmarks.slow_links.cpu_share import CpuShareError
from benchmarks.slow_links.measure import LARGEST, Bench, Case, Plan
from benchmarks.slow_links.network import NetworkError, check_machine
from benchmarks.slow_links.processes import ProcessError
from benchmarks.slow_links.schemes import MICRO_BATCH, MODEL
from benchmarks.slow_links.selfcheck import (
    SelfCheckError,
    check_network,
    compute_spread,
    load_average,
)
from trainer.data.prepare import prepare_data, python_source_files

_RANKS_PER_NODE = 2
# Of all cores, by all ranks of the largest cluster. The rest is for the kernel's network and for
# this process, which no quota covers.
_CPU_USE = 0.64
# Of compute speed between clusters of different size; more would pass for (bad) scaling.
_UNEQUAL = 0.03


def main() -> int:
    """Measure and print; returns the exit code."""
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that namespaces are removed
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        check_machine()
        preload()
        with tempfile.TemporaryDirectory(prefix="slow-links-data-") as folder:
            data = Path(folder) / "text"
            prepare_data(python_source_files(1_000_000), data)
            _measure(args, data)
    except (NetworkError, CpuShareError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ProcessError, SelfCheckError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slow_links", description=__doc__.splitlines()[2]
    )
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[2, 4, 8], help=f"cluster sizes, up to {LARGEST}"
    )
    parser.add_argument(
        "--rates", type=float, nargs="+", metavar="MBIT", help="links of the curve, in Mbit/s"
    )
    parser.add_argument("--gas", type=int, default=8, help="micro-batches per step (default 8)")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="the main ratios only, once")
    parser.add_argument(
        "--no-cpu-share", action="store_true", help="no quota: more nodes are then slower nodes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves")
    args = parser.parse_args()
    if not all(2 <= nodes <= LARGEST for nodes in args.nodes):
        parser.error(f"--nodes {args.nodes}: a cluster has 2 to {LARGEST} nodes")
    if args.quick and args.plot:
        parser.error("--plot draws the curves, which --quick leaves out")
    if args.plot:
        import matplotlib.pyplot  # noqa: F401 - without it the measurement has no picture
    if args.repeats < 1 or args.gas < 1 or any(rate <= 0 for rate in args.rates or []):
        parser.error("--repeats, --gas and --rates are above 0")
    return args


def _measure(args: argparse.Namespace, data: Path) -> None:
    begin = time.monotonic()
    cores = os.cpu_count() or 1
    share = None if args.no_cpu_share else _CPU_USE * cores / (LARGEST * _RANKS_PER_NODE)
    bench = Bench(data, share, _say)
    record: dict[str, Any] = _environment(cores, share)
    print("\n".join(f"{name}: {value}" for name, value in record.items()), "\n", flush=True)
    load = load_average()
    record["compute_gflops"] = _check(bench, args)
    record["micro_batch_s"] = bench.micro_batch_s
    record["scarcity_on_frontier"] = {k: v.value for k, v in paper.scarcities().items()}
    plan = _plan(bench, args)
    for name, scarcity in paper.scarcities().items():
        print(f"r on Frontier, {name}: {scarcity.value:.2f} ({scarcity.assumption})")
    for cases, repeats, tables in _sections(bench, plan, args.quick):
        bench.run(cases, repeats, plan.measured_steps)
        for table in tables():
            print(f"\n{table}", flush=True)
        # After every section, so that a run that breaks later has not been for nothing.
        record["load"] = f"{load} at the start, {load_average()} at the end (1, 5, 15 min)"
        record["cases"] = [s.to_json() for s in bench.samples.values() if s.runs]
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\n{(time.monotonic() - begin) / 60:.0f} min; load {record['load']}")
    if args.plot:
        from benchmarks.slow_links.plot import draw

        draw(bench, plan, args.plot)


Section = tuple[list[Case], int, Callable[[], list[str]]]


def _sections(bench: Bench, plan: Plan, quick: bool) -> list[Section]:
    """The measurements, their repeats, and the tables that can be printed after each."""
    main_cases, more = plan.main(), [*plan.others(), *plan.wide()]
    rates, gas = plan.over_rates(), plan.over_gas()

    def comparison(cases: list[Case]) -> list[str]:
        return [report.main_table(bench, cases), report.paper_table(bench, plan)]

    main_section: Section = (
        main_cases,
        plan.repeats,
        lambda: [*comparison(main_cases), report.efficiency_table(bench, plan)],
    )
    if quick:
        return [main_section]
    return [
        main_section,
        (more, plan.repeats, lambda: comparison(more)),
        (
            rates,
            1,
            lambda: [report.curve_table(bench, plan, rates), report.break_even(bench, plan)],
        ),
        (gas, 1, lambda: [report.curve_table(bench, plan, gas)]),
    ]


def _check(bench: Bench, args: argparse.Namespace) -> dict[int, float]:
    """Say what the cluster really gives: work on a micro-batch, links, equal compute."""
    micro_batch_s = bench.calibrate()
    rate = bench.rate(1.0)
    print(
        f"a rank's own work on a micro-batch: {micro_batch_s:.2f} s, so r = 1 at {rate:.1f} Mbit/s"
    )
    with bench.cluster(min(args.nodes), _RANKS_PER_NODE, rate) as cluster:
        across, inside = check_network(cluster)
    print(f"links of {rate:.1f} Mbit/s carry {across:.1f}; inside a node {inside:.0f} Mbit/s")
    sizes = sorted({min(args.nodes), max(args.nodes)})
    speeds = compute_spread(lambda n: bench.cluster(n, _RANKS_PER_NODE, rate), sizes)
    listed = ", ".join(f"{speed:.1f} on {nodes} nodes" for nodes, speed in speeds.items())
    print(f"GFLOPS of a rank where all compute and none communicates: {listed}")
    change = speeds[sizes[-1]] / speeds[sizes[0]] - 1
    if abs(change) > _UNEQUAL:
        print(f"WARNING: not equal ({change:+.0%}): does anything else run here?")
    print(flush=True)
    return speeds


def _plan(bench: Bench, args: argparse.Namespace) -> Plan:
    known = paper.scarcities()
    first = known["ZeRO++, no overlap"].value
    others = (known["ZeRO-3, no overlap"].value, known["ZeRO++, full overlap"].value)
    curve = (0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0)
    if args.rates:
        curve = tuple(bench.rate(rate) for rate in args.rates)  # its own inverse
    nodes = tuple(sorted(set(args.nodes)))
    if args.quick:
        return Plan(tuple(sorted({nodes[0], nodes[-1]})), (first,), (), args.gas, (), 1, 2)
    return Plan(nodes, (first, *others), curve, args.gas, (1, 2, 4), args.repeats, 2)


def _environment(cores: int, share: float | None) -> dict[str, str]:
    names = (
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{next(names, platform.machine())}, {cores} cores, Linux {platform.release()}",
        "versions": f"Python {platform.python_version()}, torch {metadata.version('torch')}",
        "rank": "no CPU quota" if share is None else f"{share:.3f} cores, TCP {congestion}",
        "model": f"{MODEL.num_parameters:,} parameters ({MODEL.num_layers} layers of "
        f"{MODEL.hidden_size}), micro-batches of {MICRO_BATCH} x {MODEL.seq_length} tokens, bf16",
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
