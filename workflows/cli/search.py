"""``meshtune search`` and ``submit``: start or resume a search, here or as a batch job."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from shlex import quote
from typing import TYPE_CHECKING

import analysis
import slurm
from workflows.cli.arguments import (
    Commands,
    Parser,
    check_site,
    command,
    folder,
    launcher_options,
    path,
    positive,
    seed,
    share,
)
from workflows.cli.working import Working

if TYPE_CHECKING:
    from search_spaces import SearchSpace


def add_commands(commands: Commands) -> None:
    parser = command(commands, "search", search, "Start or resume a search.")
    parser.add_space()
    parser.add_launcher("local, srun, mpiexec, simulate")
    text = (
        "settings of the simulated cluster: nodes, seed, noise, time ... (docs/guide/simulate.md)"
    )
    parser.add("--simulate", str, "KEY=VALUE,...", text, default="")
    _add_options_of_both(parser)
    parser.add_flag("--dry-run", "print the first trials' commands; start nothing")
    text = "do not write a report at the end; `meshtune report` does"
    parser.add_argument("--no-report", dest="report", action="store_false", help=text)
    parser.set_defaults(probe=False, probes=None)

    text = "Run a search's probes, short trials of a shallower model, and show what they tell."
    parser = command(commands, "probe", search, text)
    parser.add_space()
    parser.add_launcher("local, srun, mpiexec, simulate")
    parser.add("--simulate", str, "KEY=VALUE,...", "as for search", default="")
    parser.add("--run-dir", folder, "DIR", "of the search, default: runs/NAME")
    parser.add("--number", positive, "N", "of probes; default: the space's, or 4", dest="probes")
    parser.set_defaults(probe=True, dry_run=False, report=False, trials=None, explore=None)
    parser.set_defaults(seed=None, policy="random", warm_start=[], no_archive=True)

    text = "Submit a search as a batch job that is requeued until done."
    parser = command(commands, "submit", submit, text)
    parser.add_space()
    parser.add_site()
    parser.add("--nodes", positive, "N", "nodes to allocate", required=True)
    parser.add("--time", str, "T", "time limit: 6h, or in sbatch's form, 06:00:00", required=True)
    parser.add("--account", str, "A")
    parser.add("--partition", str, "P")
    parser.add("--qos", str, "Q")
    text = "a further option of sbatch, such as constraint=gpu; may be repeated"
    parser.add("--sbatch", str, "NAME=VALUE", text, action="append", default=[])
    parser.add_exclude()
    _add_options_of_both(parser)
    text = "make the run and this batch script, for `sbatch FILE`, and submit nothing"
    parser.add("--write", path, "FILE", text)
    parser.add_flag("--dry-run", "print the batch script only")
    parser.set_defaults(launcher=None, simulate="", probes=None)  # which the job chooses


def _add_options_of_both(parser: Parser) -> None:
    parser.add("--run-dir", folder, "DIR", "default: runs/NAME, NAME being the space's")
    parser.add("--trials", positive, "N", "budget: trials in total; default: the space's")
    text = (
        "share of the trials that are chosen to show what drives the objective, not to be the "
        "best; default: the space's, or 0"
    )
    parser.add("--explore", share, "SHARE", text)
    parser.add("--seed", seed, "N", "default: 0, or the run's own")
    parser.add_policy()
    text = "earlier runs, of any model or machine, that the cost model learns from"
    parser.add("--warm-start", folder, "RUN", text, nargs="+", default=[])
    parser.add_flag("--no-archive", "begin without the runs that `meshtune archive` keeps")


def search(arguments: Namespace) -> int:
    # Slurm's warning may come while there is no driver yet that could heed it.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    with Working(f"reading {arguments.space}", at_once=True) as tell:
        from workflows.cli.search_arguments import asked, resume_flags
        from workflows.launching import launcher_for
        from workflows.search.session import Search, dry_run, run_session

        check_site(arguments)
        space, folder, pricing = asked(arguments, lambda: tell("pricing configurations"))
    if not folder.started:
        _warn(space, pricing)

    def launch(space: SearchSpace, folder: analysis.RunFolder) -> slurm.Launcher:
        options = launcher_options(arguments, space.widths[-1])
        return launcher_for(space, folder, arguments.launcher, arguments.simulate, options)

    with closing(launch(space, folder)) as launcher:
        what = Search(space, folder, launcher, arguments.seed, arguments.policy, pricing)
        if arguments.dry_run:
            for line in dry_run(what):
                print(line)
            return 0
        from workflows.search.probing import begin_with_probes  # scipy

        flags = resume_flags(arguments)
        code = begin_with_probes(what, launch, flags, always=arguments.probe)
        if code or arguments.probe:
            return code
        code = run_session(what, flags, arguments.report)
    # Slurm's warning must not end the process from now on, either: while Python exits, it gives
    # signals that it handles their default back, but leaves those that are ignored.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return code


def submit(arguments: Namespace) -> None:
    from workflows.cli.search_arguments import (
        asked,
        policy_options,
        refuse_second_job,
        refuse_short_job,
    )
    from workflows.submission import time_limit, undone_if_refused, written

    space, folder, pricing = asked(arguments)
    refuse_short_job(space, arguments.time)
    earlier = [run.absolute() for run in arguments.warm_start]
    seed = [] if arguments.seed is None else ["--seed", str(arguments.seed)]
    site = slurm.Site.load(arguments.site)
    script = slurm.batch_script(
        space=str(folder.space_file),  # frozen: what is edited while the job waits is another run
        run_dir=folder.path,
        site=site,
        nodes=arguments.nodes,
        time=time_limit(arguments.time),
        account=arguments.account,
        partition=arguments.partition,
        qos=arguments.qos,
        further=[*arguments.sbatch, *(f"exclude={n}" for n in [arguments.exclude] if n)],
        options=[*seed, *policy_options(arguments.policy, earlier, arguments.no_archive)],
        container=space.trainer.container,
    )
    if site.environment is not None:
        site.environment.check()
    if arguments.dry_run:
        print(script, end="")
        print(*_foretold(space, folder, site, arguments.nodes), sep="\n", file=sys.stderr)
        print("nothing is made: a job of this script needs --write FILE", file=sys.stderr)
        return
    if arguments.write is None or folder.path.exists():  # a new folder has no job: ask no Slurm
        refuse_second_job(folder)
    _warn(space, pricing)
    # Scripts read the job's id from standard output.
    print(*_foretold(space, folder, site, arguments.nodes), sep="\n", file=sys.stderr)
    with undone_if_refused(folder):
        if not folder.started:  # of a job that was cancelled before it began: nothing is mixed
            folder.space_file.unlink(missing_ok=True)
        folder.create(space)
        if arguments.write is not None:
            written(script, arguments.write, folder)
            print(f"`sbatch {quote(str(arguments.write))}` starts the search in {folder.path}")
            return
        job = slurm.BatchJob.submit(script, folder.path)
    print(f"submitted job {job}; `meshtune status {quote(str(folder.path))}` shows its progress")


def _foretold(
    space: SearchSpace, folder: analysis.RunFolder, site: slurm.Site, nodes: int
) -> Iterator[str]:
    """The cost of a search that a job will run, and the line that starts a trial there."""
    from workflows.estimate import Estimate
    from workflows.try_out import started_by

    yield Estimate.of(space).text(nodes)
    yield from started_by(space, site, folder)


def _warn(space: SearchSpace, pricing: analysis.Pricing | None) -> None:
    """Print what will go wrong with a search, before anything is started for it."""
    for warning in analysis.search_warnings(space, pricing or analysis.Pricing.of(space)):
        print(warning)
