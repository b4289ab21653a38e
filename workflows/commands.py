"""What each command of ``meshtune`` does; every function returns the process's exit code."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from analysis.run import RunError, read_run
from slurm.batch import SCRIPT_NAME, BatchError
from slurm.core import Launcher, LauncherError
from slurm.site import SiteError
from trainer.config import ConfigError
from workflows.budget import Budget
from workflows.folder import FingerprintError, RunFolder
from workflows.journal import RunBusyError, driver_of
from workflows.space import SearchSpace, SpaceError, load_space

if TYPE_CHECKING:
    from workflows.pricing import Pricing  # scipy: half a second


DEFAULT_TOKENS = 1e12  # to train on


class UsageError(Exception):
    """Arguments that do not fit together; the message names the remedy."""


def input_errors() -> tuple[type[Exception], ...]:
    """Mistakes of the caller's: exit code 2."""
    return (
        *(SpaceError, SiteError, BatchError, ConfigError, UsageError),
        *(FingerprintError, RunError, RunBusyError),
    )


def run_errors() -> tuple[type[Exception], ...]:
    """What can go wrong outside: exit code 1."""
    return (LauncherError, OSError)


def search(arguments: Namespace) -> int:
    """Start a search or go on with it, then write its report."""
    from workflows.session import run_session

    simulated = _simulated(arguments)
    space = load_space(arguments.space) if simulated else _searchable(arguments.space)
    if arguments.trials:  # frozen with the run, so that status and a continuation know of it
        budget = space.budget.model_copy(update={"trials": arguments.trials})
        space = replace(space, budget=budget)
    folder = RunFolder(_run_directory(arguments, space))
    pricing = _warm(space, arguments.warm_start)
    if simulated:
        launcher: Launcher = _simulated_launcher(space, folder, arguments.simulate)
    else:
        _refuse_simulated_run(folder)
        launcher = _launcher(arguments, space)
    if arguments.dry_run:
        from workflows.session import dry_run

        for line in dry_run(space, folder, launcher, arguments.seed, arguments.policy, pricing):
            print(line)
        return 0
    return run_session(
        space,
        folder,
        launcher,
        arguments.seed,
        _budget(space),
        _flags(arguments),
        arguments.policy,
        pricing,
    )


def submit(arguments: Namespace) -> int:
    """Write the batch script of a search and hand it to sbatch."""
    from slurm import batch, site

    space = _searchable(arguments.space)
    folder = RunFolder(_run_directory(arguments, space))
    script = batch.batch_script(
        space=str(folder.space_file),  # frozen: what is edited while the job waits is another run
        run_dir=folder.path,
        site=site.load_site(arguments.site),
        nodes=arguments.nodes,
        time=arguments.time,
        account=arguments.account,
        partition=arguments.partition,
        qos=arguments.qos,
    )
    if arguments.dry_run:
        print(script, end="")
        return 0
    folder.create(space)
    job = batch.submit(script, folder.path)
    print(f"submitted job {job}; `meshtune status {quote(str(folder.path))}` shows how it stands")
    return 0


def check(arguments: Namespace) -> int:
    """Print how many configurations a space has and what removes the others."""
    from workflows.predict import likely_to_fit
    from workflows.space import check as count

    report = count(load_space(arguments.space))
    print(report.text())
    print(likely_to_fit(report))
    return 0


def predict(arguments: Namespace) -> int:
    """Print what the cost model expects of a space, or of one configuration."""
    from analysis.cost.groups import MissingFactError
    from workflows import predict as prediction
    from workflows.best import parameters_of
    from workflows.pricing import NotPricedError, Pricing

    _check_scaling(arguments)
    config = parameters_of(Path(arguments.space))
    of_run = Path(arguments.space).parent.parent / "space.yaml"
    space = load_space(of_run if config is not None else arguments.space)
    try:
        pricing = Pricing(space)
        if arguments.calibrate:
            other = Pricing(load_space(arguments.calibrate / "space.yaml"))
            pricing.learn(read_run(arguments.calibrate), other)
    except NotPricedError as error:
        raise UsageError(f"{space.file}: {error}: there is nothing to predict from") from error
    try:
        ranking = (
            prediction.only(pricing, config) if config else prediction.rank(pricing, arguments.top)
        )
        if arguments.scaling and ranking.configs:
            return _scale(arguments, pricing, ranking.configs[0])
    except MissingFactError as error:
        raise UsageError(
            f"{space.file}: {error}; state it in the cluster's record, or let "
            "`meshtune preflight` measure it"
        ) from error
    print(prediction.table(ranking))
    if arguments.explain and ranking.configs:
        print()
        print(prediction.explain(ranking, arguments.tokens or DEFAULT_TOKENS))
    return 0


def _check_scaling(arguments: Namespace) -> None:
    for option in ("nodes", "picture"):
        if getattr(arguments, option) and not arguments.scaling:
            raise UsageError(f"--{option} goes with --scaling weak or --scaling strong")
    out: Path | None = arguments.picture
    if out is not None and (out.suffix != ".png" or not out.absolute().parent.is_dir()):
        raise UsageError(f"--picture {out}: accepted a file *.png in a folder that exists")


def _scale(arguments: Namespace, pricing: Pricing, config: dict[str, Any]) -> int:
    """Print the scaling of a configuration, and draw it."""
    from workflows import scaling

    try:
        scaled = scaling.scale(pricing, config, arguments.scaling, arguments.nodes or ())
    except ValueError as error:
        raise UsageError(f"{arguments.space}: {error}") from error
    print(scaling.text(scaled, arguments.tokens or DEFAULT_TOKENS))
    if arguments.picture:
        from analysis.figures import png
        from analysis.scaling import scaling_figure

        arguments.picture.write_bytes(png(scaling_figure(scaled.curve())))
    return 0


def preflight(arguments: Namespace) -> int:
    """Measure the machine and write its cluster file."""
    from workflows import preflight as measuring

    name = measuring.cluster_name(os.environ)
    out: Path = arguments.out or Path(f"{name}.yaml")
    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out {out}: a space finds a cluster's file by its suffix .yaml")
    if out.exists():
        raise UsageError(f"{out} exists: choose another --out, or remove it")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    launcher = make_launcher(
        _launcher_name(arguments.launcher), arguments.nodes or 1, arguments.site
    )
    nodes = arguments.nodes or len(launcher.nodes())
    if nodes > len(launcher.nodes()):
        raise UsageError(f"--nodes {nodes}: the allocation has {len(launcher.nodes())}")
    ranks = arguments.ranks_per_node or measuring.default_ranks(launcher, nodes, os.environ)
    spec = measuring.preflight_spec(
        out.with_name(f"{out.stem}-preflight"), nodes, ranks, arguments.quick
    )
    if arguments.dry_run:
        print(measuring.dry_run(launcher, spec))
        launcher.close()
        return 0
    return measuring.run_preflight(launcher, spec, out, name)


def replay(arguments: Namespace) -> int:
    """Play a policy against a recorded table and print how soon it comes near the best."""
    from analysis.sweeps.table import TableError
    from workflows import replay as replaying
    from workflows.landscapes import landscapes_of
    from workflows.optuna_peer import OptunaMissingError

    columns = [name.strip() for name in (arguments.landscape or "").split(",") if name.strip()]
    out: Path | None = arguments.json
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"--json {out}: there is no folder {out.parent}")
    try:
        figures = replaying.replay(
            landscapes_of(arguments.table, columns),
            lambda landscape, seed: replaying.chooser(landscape, arguments.policy, seed),
            arguments.seeds,
            arguments.parallel,
        )
    except (TableError, OptunaMissingError) as error:
        raise UsageError(str(error)) from error
    print(replaying.text(figures))
    if out is not None:
        how = {name: getattr(arguments, name) for name in ("policy", "parallel", "seeds")}
        out.write_text(json.dumps({"table": str(arguments.table), **how, **figures}, indent=2))
    return 0


def schema(_: Namespace) -> int:
    """Print the JSON Schema of a space file."""
    from workflows.space import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def status(arguments: Namespace) -> int:
    """Print how a run stands; works while it runs, and after."""
    from workflows.progress import summary

    if (arguments.run / SCRIPT_NAME).exists() and not RunFolder(arguments.run).started:
        print("submitted, not started yet; squeue shows the job, and its log will be here")
        return 0
    run = read_run(arguments.run)
    space = load_space(arguments.run / "space.yaml")
    driver = driver_of(arguments.run)
    state = f"running ({driver})" if driver else run.closed or "stopped without a word (killed?)"
    now = time.time() if driver and run.launcher != "simulate" else run.last_t
    for label, text in [("run", run.space), ("state", state), *summary(run, _budget(space), now)]:
        print(f"{label:12s}{text}")
    return 0


def report(arguments: Namespace) -> int:
    """Write a run's report and print its path."""
    from analysis.report import write_report
    from workflows.forecast import forecast_of

    read_run(arguments.run)  # a clear error before slow imports have any effect
    print(write_report(arguments.run, forecast_of))
    return 0


def train(arguments: Namespace) -> int:
    """Train with a report's best.yaml and print the figures."""
    from workflows.best import load_best, train_best

    best = load_best(arguments.best)
    launcher = make_launcher(_launcher_name(arguments.launcher), best.num_nodes, arguments.site)
    return train_best(best, launcher, arguments.out, arguments.steps)


def prepare_data(arguments: Namespace) -> int:
    """Tokenize files for the built-in trainer."""
    from trainer.prepare import prepare_data as tokenize

    tokens = tokenize(arguments.files, arguments.out)
    print(f"{tokens} tokens in {arguments.out}.bin and {arguments.out}.idx")
    return 0


def minicluster(arguments: Namespace) -> int:
    """Start, stop or show the Slurm on this machine."""
    from slurm import minicluster as mini

    if arguments.action == "up":
        cluster = mini.up(
            arguments.dir, arguments.nodes, arguments.gpus_per_node, arguments.mem_per_node
        )
        print(f"{len(cluster.nodes)} nodes {'started' if cluster.started else 'were up already'}")
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


def make_launcher(name: str, num_nodes: int, site_name: str) -> Launcher:
    """The launcher of that name; ``num_nodes`` is what ``local`` pretends to have."""
    if name == "srun":
        from slurm.site import load_site
        from slurm.srun import SrunLauncher

        return SrunLauncher(load_site(site_name))
    from slurm.local import LocalLauncher

    return LocalLauncher(num_nodes)


def _launcher_name(asked: str | None) -> str:
    return asked or ("srun" if "SLURM_JOB_ID" in os.environ else "local")


def _launcher(arguments: Namespace, space: SearchSpace) -> Launcher:
    name = _launcher_name(arguments.launcher)
    ranks, cores = _widest(space) * space.cluster.gpus_per_node, os.cpu_count() or 1
    if name == "local" and arguments.launcher is None and ranks > max(8, 4 * cores):
        raise UsageError(
            f"{arguments.space}: a trial has up to {ranks} ranks, and this machine {cores} cores; "
            "`meshtune submit` searches on a cluster, --launcher local insists on this machine"
        )
    return make_launcher(name, _widest(space), arguments.site)


def _simulated(arguments: Namespace) -> bool:
    if arguments.simulate and arguments.launcher != "simulate":
        raise UsageError("--simulate goes with --launcher simulate")
    return bool(arguments.launcher == "simulate")


def _simulated_launcher(space: SearchSpace, folder: RunFolder, options: str) -> Launcher:
    from slurm.simulated_cluster import EPOCH
    from workflows.simulate import simulated_launcher

    start = EPOCH
    if folder.started:
        run = read_run(folder.path)
        if run.launcher not in ("", "simulate"):
            raise UsageError(
                f"{folder.path} holds a real run ({run.launcher}): choose another --run-dir"
            )
        start = max(start, run.last_t)
    return simulated_launcher(space, options, start)


def _refuse_simulated_run(folder: RunFolder) -> None:
    if folder.started and read_run(folder.path).launcher == "simulate":
        raise UsageError(
            f"{folder.path} holds a simulated run: go on with --launcher simulate, or choose "
            "another --run-dir"
        )


def _warm(space: SearchSpace, runs: list[Path]) -> Pricing | None:
    """Prices of the space by a model that has learnt from earlier runs; None without any."""
    from workflows.pricing import NotPricedError, Pricing

    if not runs:
        return None
    where = str(space.file)
    try:
        pricing = Pricing(space)
        for run in runs:
            where = str(run / "space.yaml")
            other = Pricing(load_space(where))
            pricing.learn(read_run(run), other)
    except NotPricedError as error:
        raise UsageError(f"{where}: {error}: --warm-start has nothing to learn from") from error
    return pricing


def _flags(arguments: Namespace) -> str:
    """What the command that goes on with a run needs beside the space."""
    flags = "" if arguments.policy == "meshtune" else f" --policy {arguments.policy}"
    if arguments.warm_start:
        flags += " --warm-start " + " ".join(quote(str(run)) for run in arguments.warm_start)
    if arguments.launcher != "simulate":
        return flags
    options = f" --simulate {quote(arguments.simulate)}" if arguments.simulate else ""
    return f" --launcher simulate{options}{flags}"


def _widest(space: SearchSpace) -> int:
    """Nodes of the widest trial: what the local launcher pretends to have."""
    nodes = space.parameters.get("num_nodes")
    return max(int(value) for value in nodes.values) if nodes else 1


def _searchable(reference: str) -> SearchSpace:
    space = load_space(reference)
    unknown = space.unsupported()
    if unknown:
        raise UsageError(
            f"{reference}: the built-in trainer has no {', '.join(unknown)}; "
            "search it with a trainer of your own (trainer: {command: [...]}), or remove it"
        )
    return space


def _run_directory(arguments: Namespace, space: SearchSpace) -> Path:
    """``--run-dir``, or the folder that a frozen space lies in, or ``runs/NAME``.

    A simulation never meets the real run of its space: its own is ``runs/NAME-simulated``.
    """
    if arguments.run_dir:
        return Path(arguments.run_dir)
    here = Path(arguments.space).parent
    if Path(arguments.space).is_file() and (here / "journal.jsonl").exists():
        return here
    simulated = getattr(arguments, "launcher", None) == "simulate"  # `submit` has none
    return Path("runs") / (f"{space.name}-simulated" if simulated else space.name)


def _budget(space: SearchSpace) -> Budget:
    budget = space.budget
    return Budget(budget.trials, budget.wall_time_s, budget.node_hours, budget.expected_gain)
