"""``meshtune preflight``, ``minicluster`` and ``prepare-data``: before a search."""

from __future__ import annotations

import os
from argparse import Namespace
from contextlib import closing
from pathlib import Path

from workflows.cli.arguments import (
    Commands,
    add_launcher,
    check_site,
    command,
    folder,
    path,
    positive,
)


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    parser = command(
        commands,
        "preflight",
        preflight,
        "Measure this machine or allocation, and write its cluster file for a space.",
    )
    parser.add_argument(
        "--out", type=path, metavar="FILE.yaml", help="default: named after the cluster"
    )
    parser.add_argument("--nodes", type=positive, metavar="N", help="default: all there are")
    parser.add_argument(
        "--ranks-per-node", type=positive, metavar="N", help="default: one per GPU, or per core"
    )
    add_launcher(parser)
    parser.add_argument("--quick", action="store_true", help="fewer groups, sizes and repeats")
    parser.add_argument("--dry-run", action="store_true", help="print the command; start nothing")

    parser = command(
        commands, "prepare-data", prepare_data, "Tokenize text into PREFIX.bin and PREFIX.idx."
    )
    parser.add_argument("files", nargs="+", type=path, metavar="FILE")
    parser.add_argument("--out", type=path, required=True, metavar="PREFIX")
    parser.add_argument(
        "--tokenizer",
        default="bytes",
        metavar="NAME",
        help="a tokenizer.json, or a folder or name for transformers; default: bytes",
    )

    parser = command(
        commands,
        "minicluster",
        minicluster,
        "Run a private Slurm on this machine, for tests and experiments.",
    )
    parser.add_argument("action", choices=("up", "down", "status"))
    parser.add_argument("--nodes", type=positive, default=8, metavar="N", help="default: 8")
    parser.add_argument("--gpus-per-node", type=positive, default=2, metavar="N", help="default: 2")
    parser.add_argument("--mem-per-node", default="2G", metavar="SIZE", help="default: 2G")
    parser.add_argument("--dir", type=folder, metavar="DIR", help="folder for its files and logs")


def preflight(arguments: Namespace) -> int:
    """Measure the machine and write its cluster file."""
    from slurm import LauncherOptions, make_launcher
    from workflows import preflight as measuring
    from workflows.cli.errors import UsageError
    from workflows.launching import launcher_name

    check_site(arguments)
    name = measuring.cluster_name(os.environ)
    out: Path = arguments.out or Path(f"{name}.yaml")
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out {out}: a space finds a cluster's file by its suffix .yaml")
    if out.exists():
        raise UsageError(f"{out} exists: choose another --out, or remove it")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    chosen = launcher_name(arguments.launcher)
    options = LauncherOptions(arguments.nodes or 1, arguments.site, arguments.hostfile)
    with closing(make_launcher(chosen, options)) as launcher:
        nodes = arguments.nodes or len(launcher.nodes())
        if nodes > len(launcher.nodes()):
            raise UsageError(f"--nodes {nodes}: the allocation has {len(launcher.nodes())}")
        ranks = arguments.ranks_per_node or measuring.default_ranks(launcher, nodes)
        spec = measuring.preflight_spec(
            out.with_name(f"{out.stem}-preflight"), nodes, ranks, arguments.quick
        )
        if arguments.dry_run:
            print(measuring.dry_run(launcher, spec))
            return 0
        return measuring.run_preflight(launcher, spec, out, name)


def prepare_data(arguments: Namespace) -> int:
    """Tokenize files for the built-in trainer."""
    from trainer import prepare_data as tokenize

    tokens = tokenize(arguments.files, arguments.out, arguments.tokenizer)
    print(f"{tokens} tokens in {arguments.out}.bin and {arguments.out}.idx")
    return 0


def minicluster(arguments: Namespace) -> int:
    """Start, stop or show the Slurm on this machine."""
    from foundation.quantities import counted
    from slurm import minicluster as mini

    if arguments.action == "up":
        cluster = mini.up(
            arguments.dir, arguments.nodes, arguments.gpus_per_node, arguments.mem_per_node
        )
        nodes = counted(len(cluster.nodes), "node")
        print(f"{nodes} {'started' if cluster.started else 'up already'}")
        if cluster.notice:
            print(cluster.notice)
        print(cluster.export_line)
        return 0
    if arguments.action == "status" and (status := mini.status(arguments.dir)):
        print(status)
        return 0
    stopped = arguments.action == "down" and mini.down(arguments.dir)
    print("stopped" if stopped else "no minicluster is up; `meshtune minicluster up` starts one")
    return 0
