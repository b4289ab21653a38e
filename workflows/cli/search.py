"""``meshtune search`` and ``submit``: start or resume a search, here or as a batch job."""

from __future__ import annotations

import signal
from argparse import ArgumentParser, Namespace
from contextlib import closing
from shlex import quote
from typing import TYPE_CHECKING

from workflows.cli.arguments import (
    Commands,
    add_launcher,
    add_policy,
    add_run_dir,
    add_site,
    add_space,
    check_site,
    command,
    folder,
    positive,
    seed,
    share,
)
from workflows.cli.working import Working

if TYPE_CHECKING:
    from analysis import Pricing
    from search_spaces import SearchSpace


def add_commands(commands: Commands) -> None:
    """Add this group's commands."""
    parser = command(commands, "search", search, "Start or resume a search.")
    add_space(parser)
    add_run_dir(parser)
    add_launcher(parser, "local, srun, mpiexec, simulate")
    parser.add_argument(
        "--simulate",
        default="",
        metavar="KEY=VALUE,...",
        help="settings of the simulated cluster: nodes, seed, noise, time ... "
        "(docs/guide/simulate.md)",
    )
    _add_course(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the first trials' commands; start nothing"
    )
    parser.add_argument(
        "--no-report",
        dest="report",
        action="store_false",
        help="do not write a report at the end; `meshtune report` does",
    )

    parser = command(
        commands, "submit", submit, "Submit a search as a batch job that is requeued until done."
    )
    add_space(parser)
    add_site(parser)
    parser.add_argument(
        "--nodes", type=positive, required=True, metavar="N", help="nodes to allocate"
    )
    parser.add_argument(
        "--time", required=True, metavar="T", help="time limit: 6h, or in sbatch's form, 06:00:00"
    )
    parser.add_argument("--account", metavar="A")
    parser.add_argument("--partition", metavar="P")
    parser.add_argument("--qos", metavar="Q")
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further option of sbatch, such as constraint=gpu; may be repeated",
    )
    _add_course(parser)
    add_run_dir(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the batch script only")


def _add_course(parser: ArgumentParser) -> None:
    """How a search goes: the same whether it starts now or as a batch job."""
    parser.add_argument(
        "--trials", type=positive, metavar="N", help="budget: trials in total; default: the space's"
    )
    parser.add_argument(
        "--explore",
        type=share,
        metavar="SHARE",
        help="share of the trials that are chosen to show what drives the objective, not to be "
        "the best; default: the space's, or 0",
    )
    parser.add_argument("--seed", type=seed, metavar="N", help="default: 0, or the run's own")
    add_policy(parser)
    parser.add_argument(
        "--warm-start",
        type=folder,
        nargs="+",
        default=[],
        metavar="RUN",
        help="earlier runs, of any model or machine, that the cost model learns from",
    )


def search(arguments: Namespace) -> int:
    """Start or resume a search, then write its report."""
    # Slurm's warning may come while there is no driver yet that could heed it.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    with Working(f"reading {arguments.space}", at_once=True) as tell:
        from analysis import RunFolder
        from workflows.cli.search_arguments import (
            asked_space,
            resume_flags,
            resumed,
            run_directory,
            warm_prices,
        )
        from workflows.launching import launcher_for
        from workflows.optimizer.registry import POLICIES
        from workflows.search.budget import Budget
        from workflows.search.session import dry_run, run_session

        check_site(arguments)
        space = asked_space(arguments)
        folder = RunFolder(run_directory(arguments, space))
        space = resumed(space, folder)
        POLICIES.get(arguments.policy)  # an error now: a launcher may have complaints of its own
        tell("pricing configurations")
        pricing = warm_prices(space, arguments.warm_start)
    if not folder.started:
        _warn(space, pricing)
    with closing(
        launcher_for(
            space,
            folder,
            arguments.launcher,
            arguments.simulate,
            arguments.site,
            arguments.hostfile,
        )
    ) as launcher:
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
            resume_flags(arguments),
            arguments.policy,
            pricing,
            arguments.report,
        )


def submit(arguments: Namespace) -> int:
    """Write the batch script of a search and hand it to sbatch."""
    from analysis import RunFolder
    from slurm import batch_script, load_site, submit as sbatch
    from workflows.cli.search_arguments import (
        asked_space,
        policy_options,
        refuse_second_job,
        resumed,
        run_directory,
        warm_prices,
    )
    from workflows.optimizer.registry import POLICIES
    from workflows.submission import time_limit, undone_if_refused

    space = asked_space(arguments)
    folder = RunFolder(run_directory(arguments, space))
    space = resumed(space, folder)
    POLICIES.get(arguments.policy)  # an error now, and not in the job
    pricing = warm_prices(space, arguments.warm_start)
    earlier = [run.absolute() for run in arguments.warm_start]
    seed = [] if arguments.seed is None else ["--seed", str(arguments.seed)]
    site = load_site(arguments.site)
    script = batch_script(
        space=str(folder.space_file),  # frozen: what is edited while the job waits is another run
        run_dir=folder.path,
        site=site,
        nodes=arguments.nodes,
        time=time_limit(arguments.time),
        account=arguments.account,
        partition=arguments.partition,
        qos=arguments.qos,
        further=arguments.sbatch,
        options=[*seed, *policy_options(arguments.policy, earlier)],
    )
    if arguments.dry_run:
        print(script, end="")
        return 0
    if site.environment is not None:
        site.environment.check()
    refuse_second_job(folder)
    _warn(space, pricing)
    with undone_if_refused(folder):
        if not folder.started:  # of a job that was cancelled before it began: nothing is mixed
            folder.space_file.unlink(missing_ok=True)
        folder.create(space)
        job = sbatch(script, folder.path)
    print(f"submitted job {job}; `meshtune status {quote(str(folder.path))}` shows its progress")
    return 0


def _warn(space: SearchSpace, pricing: Pricing | None) -> None:
    """Print what will go wrong with a search, before anything is started for it."""
    from analysis import price, search_warnings

    for warning in search_warnings(space, pricing or price(space)):
        print(warning)
