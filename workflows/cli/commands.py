"""What each command of ``meshtune`` does; every function returns the process's exit code."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from analysis.run.fold import read_run
from analysis.run.folder import RunFolder
from analysis.run.journal import driver_of
from analysis.units import counted
from search_spaces import SearchSpace, load_space
from slurm.registry import make_launcher
from slurm.srun.batch import SCRIPT_NAME
from workflows.cli.arguments import asked_space, choice, flags_again, run_directory, warm_prices
from workflows.cli.errors import UsageError
from workflows.cli.launchers import launcher_for, launcher_name, options_of
from workflows.optimizer.registry import POLICIES
from workflows.search.budget import Budget

if TYPE_CHECKING:
    from analysis.prediction.pricing import Pricing  # scipy: half a second


DEFAULT_TOKENS = 1e12  # to train on


def search(arguments: Namespace) -> int:
    """Start a search or go on with it, then write its report."""
    from workflows.search.session import dry_run, run_session

    space = asked_space(arguments)
    folder = RunFolder(run_directory(arguments, space))
    pricing = warm_prices(space, arguments.warm_start)
    if not folder.started:
        _warn(space, pricing)
    with closing(launcher_for(arguments, space, folder)) as launcher:
        if arguments.dry_run:
            for line in dry_run(space, folder, launcher, arguments.seed, arguments.policy, pricing):
                print(line)
            return 0
        return run_session(
            space,
            folder,
            launcher,
            arguments.seed,
            Budget.of(space),
            flags_again(arguments),
            arguments.policy,
            pricing,
        )


def _warn(space: SearchSpace, pricing: Pricing | None) -> None:
    """Print what will go wrong with a search, before anything is started for it."""
    from analysis.prediction.pricing import price
    from analysis.prediction.ranking import foreseen

    for warning in foreseen(space, pricing or price(space)):
        print(warning)


def submit(arguments: Namespace) -> int:
    """Write the batch script of a search and hand it to sbatch."""
    from slurm.srun import batch, site

    space = asked_space(arguments)
    folder = RunFolder(run_directory(arguments, space))
    POLICIES.get(arguments.policy)  # an error now, and not in the job
    pricing = warm_prices(space, arguments.warm_start)
    earlier = [run.absolute() for run in arguments.warm_start]
    seed = [] if arguments.seed is None else ["--seed", str(arguments.seed)]
    script = batch.batch_script(
        space=str(folder.space_file),  # frozen: what is edited while the job waits is another run
        run_dir=folder.path,
        site=site.load_site(arguments.site),
        nodes=arguments.nodes,
        time=arguments.time,
        account=arguments.account,
        partition=arguments.partition,
        qos=arguments.qos,
        options=[*seed, *choice(arguments.policy, earlier)],
    )
    if arguments.dry_run:
        print(script, end="")
        return 0
    _warn(space, pricing)
    folder.create(space)
    job = batch.submit(script, folder.path)
    print(f"submitted job {job}; `meshtune status {quote(str(folder.path))}` shows how it stands")
    return 0


def check(arguments: Namespace) -> int:
    """Print how many configurations a space has and what removes the others."""
    from analysis.prediction.ranking import likely_to_fit
    from search_spaces import check as count

    report = count(load_space(arguments.space))
    print(report.text())
    print(likely_to_fit(report))
    return 0


def predict(arguments: Namespace) -> int:
    """Print what the cost model expects of a space, or of one configuration."""
    from analysis.cost.groups import MissingFactError
    from analysis.prediction import ranking as prediction
    from analysis.prediction.pricing import NotPricedError, Pricing
    from analysis.run.best import parameters_of

    _check_scaling(arguments)
    config = parameters_of(Path(arguments.space))
    of_run = RunFolder.holding(Path(arguments.space)).space_file
    space = load_space(of_run if config is not None else arguments.space)
    where = space.file
    try:
        pricing = Pricing(space)
        if arguments.calibrate:
            where = str(RunFolder(arguments.calibrate).space_file)
            run, other = read_run(arguments.calibrate), Pricing(load_space(where))
            pricing.learn(run, other)
            print(prediction.lesson(other, run))
    except (NotPricedError, MissingFactError) as error:
        raise UsageError(f"{where}: {error}: there is nothing to predict from") from error
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
    if arguments.tokens and not (arguments.scaling or arguments.explain):
        raise UsageError("--tokens goes with --explain or --scaling")
    out: Path | None = arguments.picture
    if out is not None and (out.suffix != ".png" or not out.absolute().parent.is_dir()):
        raise UsageError(f"--picture {out}: accepted a file *.png in a folder that exists")


def _scale(arguments: Namespace, pricing: Pricing, config: dict[str, Any]) -> int:
    """Print the scaling of a configuration, and draw it."""
    from analysis.prediction import scaling

    try:
        scaled = scaling.scale(pricing, config, arguments.scaling, arguments.nodes or ())
    except ValueError as error:
        raise UsageError(f"{arguments.space}: {error}") from error
    print(scaling.text(scaled, arguments.tokens or DEFAULT_TOKENS))
    if arguments.picture:
        from analysis.report.plots import png
        from analysis.report.scaling import scaling_figure

        arguments.picture.write_bytes(png(scaling_figure(scaled)))
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
    chosen = launcher_name(arguments.launcher)
    with closing(make_launcher(chosen, options_of(arguments, arguments.nodes or 1))) as launcher:
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


def replay(arguments: Namespace) -> int:
    """Play a policy against a recorded table and print how soon it comes near the best."""
    from analysis.sweeps.record import TableError
    from workflows.replay import play as replaying
    from workflows.replay.landscapes import recorded

    columns = [name.strip() for name in (arguments.landscape or "").split(",") if name.strip()]
    out: Path | None = arguments.json
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"--json {out}: there is no folder {out.parent}")
    try:
        found = recorded(arguments.table, columns)
        figures = replaying.replay(
            found.landscapes,
            lambda landscape, seed: replaying.policy_for(landscape, arguments.policy, seed),
            arguments.seeds,
            arguments.parallel,
        )
    except TableError as error:
        raise UsageError(str(error)) from error
    print(replaying.text(figures))
    if found.left_out:
        print(replaying.left_out(found.left_out))
    if out is not None:
        how = {name: getattr(arguments, name) for name in ("policy", "parallel", "seeds")}
        content = {"table": str(arguments.table), **how, "left_out": found.left_out, **figures}
        out.write_text(json.dumps(content, indent=2))
    return 0


def schema(_: Namespace) -> int:
    """Print the JSON Schema of a space file."""
    from search_spaces import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def status(arguments: Namespace) -> int:
    """Print how a run stands; works while it runs, and after."""
    from workflows.search.progress import summary

    if (arguments.run / SCRIPT_NAME).exists() and not RunFolder(arguments.run).started:
        print("submitted, not started yet; squeue shows the job, and its log will be here")
        return 0
    run = read_run(arguments.run)
    space = load_space(RunFolder(arguments.run).space_file)
    driver = driver_of(arguments.run)
    killed = f"killed; `meshtune search {quote(str(space.file))}` goes on"
    state = f"running ({driver})" if driver else run.closed or killed
    now = time.time() if driver and run.launcher != "simulate" else run.last_t
    for label, text in [("run", run.space), ("state", state), *summary(run, Budget.of(space), now)]:
        print(f"{label:12s}{text}")
    return 0


def report(arguments: Namespace) -> int:
    """Write a run's report and print its path."""
    from analysis.report.page import write_report

    read_run(arguments.run)  # a clear error before slow imports have any effect
    print(write_report(arguments.run))
    return 0


def train(arguments: Namespace) -> int:
    """Train with a report's best.yaml and print the figures."""
    from analysis.run.best import load_best
    from workflows.train import train_best

    best = load_best(arguments.best)
    chosen = launcher_name(arguments.launcher)
    with closing(make_launcher(chosen, options_of(arguments, best.num_nodes))) as launcher:
        return train_best(best, launcher, arguments.out, arguments.steps)


def prepare_data(arguments: Namespace) -> int:
    """Tokenize files for the built-in trainer."""
    from trainer.data.prepare import prepare_data as tokenize

    tokens = tokenize(arguments.files, arguments.out)
    print(f"{tokens} tokens in {arguments.out}.bin and {arguments.out}.idx")
    return 0


def minicluster(arguments: Namespace) -> int:
    """Start, stop or show the Slurm on this machine."""
    from slurm.minicluster import cluster as mini

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
