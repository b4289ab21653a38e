"""``meshtune preflight``: measure a machine through a launcher, and write its cluster file."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from analysis import Preflight
from foundation.messages import printable
from foundation.python import module_argv
from foundation.quantities import counted
from foundation.writing import write_atomically
from slurm import Kind, Launcher, LauncherError, TrialSpec, clear_attempt
from workflows.launching import first_nodes, run_alone

TIMEOUT_S = 3600.0
# Longer than the collectives' own timeout; a communicator of many nodes takes long to make.
NO_PROGRESS_TIMEOUT_S = 300.0
MAX_CPU_RANKS = 8
RESULT_NAME = "result.json"  # the file that launchers read


def preflight_spec(folder: Path, num_nodes: int, ranks_per_node: int, quick: bool) -> TrialSpec:
    """The trial that measures: a rank per GPU."""
    result = folder.absolute() / RESULT_NAME
    argv = module_argv("trainer.preflight", str(result), *(["--quick"] * quick))
    return TrialSpec(
        name=f"meshtune-preflight-{os.getpid()}",
        directory=folder.absolute(),
        argv=argv,
        num_nodes=num_nodes,
        ranks_per_node=ranks_per_node,
        timeout_s=TIMEOUT_S,
        no_progress_timeout_s=NO_PROGRESS_TIMEOUT_S,
    )


def default_ranks(launcher: Launcher, num_nodes: int) -> int:
    """Ranks per node: one per GPU; on nodes without GPUs, one per core of this machine.

    Raises LauncherError if the number of GPUs is unknown.
    """
    gpus = launcher.gpus_per_node()
    if gpus is None:
        raise LauncherError(
            f"the {launcher.name} launcher finds no GPUs on these nodes: state --ranks-per-node"
        )
    return gpus or min(MAX_CPU_RANKS, max(1, (os.cpu_count() or 1) // num_nodes))


def cluster_name(environ: Mapping[str, str]) -> str:
    """The machine's name: Slurm's name of the cluster, else this host's."""
    name = environ.get("SLURM_CLUSTER_NAME") or socket.gethostname().split(".")[0]
    return re.sub(r"[^\w-]", "_", name) or "cluster"


def run_preflight(launcher: Launcher, spec: TrialSpec, out: Path, name: str) -> int:
    """Measure, write the cluster file ``out``, print a summary; returns the exit code."""
    lease = first_nodes(launcher, spec)
    spec.directory.mkdir(parents=True, exist_ok=True)
    clear_attempt(spec.directory)
    ranks = f"{counted(spec.ranks_per_node, 'rank')} each"
    print(f"measuring {', '.join(lease.nodes)}, {ranks}; log: {spec.directory}/stdout.log")
    outcome = run_alone(launcher, spec, lease)
    ok = outcome.kind is Kind.OK
    failure = "" if ok else printable(f"{outcome.kind}: {outcome.message}")
    return conclude(spec.directory / RESULT_NAME, out, name, failure)


def conclude(result_file: Path, out: Path, name: str, failure: str) -> int:
    """Write the cluster file ``out`` from what was measured; the exit code, 1 after a failure."""
    try:
        result = json.loads(result_file.read_text())
        if not failure and result["status"] != "ok":
            failure = printable(str(result["message"]))
        found = Preflight(result, name)
        text = found.file(datetime.now(UTC), failure)
    except (OSError, ValueError, KeyError) as error:
        print(f"nothing to write to {out}: {failure or error}", file=sys.stderr)
        print(f"the logs are in {result_file.parent}", file=sys.stderr)
        return 1
    write_atomically(out, text)
    for line in found.summary():
        print(line)
    for warning in found.warnings():
        print(f"warning: {warning}", file=sys.stderr)
    print(f"wrote {out}; a space uses it with `cluster: {out.name}` beside it")
    if failure:
        print(f"incomplete: {failure}; the logs are in {result_file.parent}", file=sys.stderr)
    return 1 if failure else 0
