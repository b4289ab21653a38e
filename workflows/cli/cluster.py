"""``meshtune preflight``, ``minicluster`` and ``prepare-data``: before a search."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from shlex import join

import trainer
from workflows.cli.arguments import UsageError, check_site, launched


def preflight(arguments: Namespace) -> int:
    from workflows import preflight as measuring
    from workflows.launching import first_nodes

    check_site(arguments)
    name = measuring.cluster_name(os.environ)
    out: Path = arguments.out or Path(f"{name}.yaml")
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out {out}: a space finds a cluster's file by its suffix .yaml")
    if out.exists():
        raise UsageError(f"{out} exists: choose another --out, or remove it")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    with launched(arguments, arguments.nodes or 1) as launcher:
        nodes = arguments.nodes or len(launcher.nodes())
        if nodes > len(launcher.nodes()):
            raise UsageError(f"--nodes {nodes}: the allocation has {len(launcher.nodes())}")
        ranks = arguments.ranks_per_node or measuring.default_ranks(launcher, nodes)
        spec = measuring.preflight_spec(
            out.with_name(f"{out.stem}-preflight"), nodes, ranks, arguments.quick
        )
        if arguments.dry_run:
            print(join(launcher.command(spec, first_nodes(launcher, spec))))
            return 0
        return measuring.run_preflight(launcher, spec, out, name)


def verify_gpu(arguments: Namespace) -> int:
    from workflows.verify_gpu import NoGpuError, verify

    parts = (arguments.part,) if arguments.part else (1, 2, 3, 4)
    try:
        wrong = verify(arguments.out, arguments.device, parts)
    except NoGpuError as error:
        raise UsageError(str(error)) from error
    for one in wrong:
        print(one)
    return 1 if wrong else 0


def prepare_data(arguments: Namespace) -> None:
    tokens = trainer.prepare_data(arguments.files, arguments.out, arguments.tokenizer)
    print(f"{tokens} tokens in {arguments.out}.bin and {arguments.out}.idx")


def minicluster(arguments: Namespace) -> None:
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
    elif arguments.action == "status" and (status := mini.status(arguments.dir)):
        print(status)
    else:
        stopped = arguments.action == "down" and mini.down(arguments.dir)
        print(
            "stopped" if stopped else "no minicluster is up; `meshtune minicluster up` starts one"
        )
