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
from workflows.cli.arguments import check_site, launcher_options
from workflows.cli.working import Working

if TYPE_CHECKING:
    from search_spaces import SearchSpace


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
