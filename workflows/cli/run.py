"""``meshtune try``, ``status``, ``export``, ``train`` and ``repair``: one trial, one run."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from shlex import join, quote

import analysis
import search_spaces
import slurm
from foundation.messages import printable, shown
from foundation.quantities import counted
from workflows.cli.arguments import UsageError, check_site, launched
from workflows.cli.json_output import of_run, print_json


def try_out(arguments: Namespace) -> int:
    from workflows.launching import refuse_too_many_ranks
    from workflows.search.stopping import code_of
    from workflows.try_out import choose, try_out, values_of

    space = search_spaces.load_space(arguments.space)
    given = values_of(space, arguments.config)
    config = choose(space, given, space.widths[-1])
    needed = space.num_nodes(config)
    ranks = needed * space.ranks_per_node
    refuse_too_many_ranks(Path(space.file), arguments.launcher, ranks)
    with launched(arguments, needed) as launcher:
        lines = try_out(space, config, launcher, arguments.out)
        while True:
            try:
                print(printable(next(lines)), flush=True)
            except StopIteration as end:
                return code_of(end.value)


def status(arguments: Namespace) -> None:
    from workflows.search.budget import Budget
    from workflows.search.progress import summary

    script = slurm.BatchJob.script_of(arguments.run)
    if script.exists() and not analysis.RunFolder(arguments.run).started:
        waiting = "submitted, not started yet"
        if arguments.json:
            print_json("status", {"run": str(arguments.run), "state": waiting, "running": False})
        else:
            print(f"{waiting}; squeue shows the job, and its log will be here")
        return
    run = analysis.read_run(arguments.run)
    budget, driver = Budget.of(run.folder.frozen_space()), run.folder.driver
    state = state_of(run, driver)
    # The machine's clock may have been set back since the driver began.
    now = max(run.last_t, time.time()) if driver and run.launcher != "simulate" else run.last_t
    if arguments.json:
        print_json("status", of_run(run, budget, now, state, bool(driver)))
        return
    rows = summary(run, budget, now, alive=bool(driver))
    if run.folder.base_file.exists():
        saved = [trial.result["saved"] for trial in run.trials.values() if "saved" in trial.result]
        rows = [row for row in rows if row[0] in ("time", "node-hours")]
        rows = [
            ("starts", f"{len(run.trials)}"),
            ("saved", f"{max(saved, default=0):,} steps"),
            *rows,
        ]
    if container := run.folder.frozen_space().trainer.container:
        rows = [*rows, ("container", container.image)]
    name = f"{run.space}, simulated" if run.launcher == "simulate" else run.space
    for label, text in [("run", name), ("state", state), *rows]:
        print(printable(f"{label:12s}{text}"))


def state_of(run: analysis.Run, driver: str | None) -> str:
    """Whether a run is searched, done, failed or interrupted, and what resumes it."""
    from workflows.search.stopping import CONTINUE, FAILED, INTERRUPTED

    if driver:
        return f"running ({driver})"
    if run.folder.base_file.exists():
        return "not running; where tokens are left, the same `meshtune train` command goes on"
    if not run.opened_t:
        return "no search has begun here yet"
    if run.closed is None:
        from workflows.search.study import LAUNCHER

        ended = "not open" if run.launcher == LAUNCHER else "killed"  # a study's end is not told
        return f"{ended}; {_resumption(run)}"
    if run.closed_code in (CONTINUE, INTERRUPTED):
        return f"{run.closed}; {_resumption(run)}"
    return f"failed: {run.closed}" if run.closed_code == FAILED else run.closed


def _resumption(run: analysis.Run) -> str:
    from workflows.search.study import LAUNCHER

    if run.launcher == LAUNCHER:
        return "the program that asked for its trials resumes it"
    space_file = quote(str(run.folder.space_file))
    by_hand = f"`meshtune search {space_file}{run.launcher_option}`"
    script = slurm.BatchJob.script_of(run.directory)
    if script.exists():
        again = f"`sbatch {quote(str(script))}`"
        return f"its job resumes it if squeue still lists the job, else {again}"
    if run.launcher == "srun":  # which fails outside an allocation
        return (
            f"`meshtune submit {space_file} --nodes N --time T`, or, inside an allocation, "
            f"{by_hand} resumes it"
        )
    return f"{by_hand} resumes it"


def export(arguments: Namespace) -> None:
    from workflows.export import of_best, text, write

    found, what = of_best(arguments.run, arguments.to, arguments.args)
    if arguments.out is None:
        print(*text(found, what), sep="\n")
        return
    print(f"{shown(arguments.out)}: {', '.join(write(found, what, arguments.out))}")
    for line in found.unmapped:
        print(f"not exported: {line}")


def train(arguments: Namespace) -> int:
    from workflows.launching import refuse_too_many_ranks
    from workflows.train import changed, dry_run, train_best

    if arguments.elastic:
        return _train_elastic(arguments)
    if arguments.tokens is not None:
        raise UsageError("--tokens goes with --elastic; else --steps says how long to train")
    if arguments.best.is_dir():
        file = shown(analysis.RunFolder(arguments.best).report / "best.yaml")
        raise UsageError(
            f"{shown(arguments.best)} is a folder; if it is a run's, train with {file}, which "
            "`meshtune report RUN` writes"
        )
    check_site(arguments)
    best = analysis.Best.read(arguments.best)
    if not arguments.dry_run:
        refuse_too_many_ranks(best.path, arguments.launcher, best.num_nodes * best.ranks_per_node)
    if arguments.save_interval and arguments.save is None:
        raise UsageError("--save-interval needs --save")
    with launched(arguments, best.num_nodes) as launcher:
        best = changed(best, arguments.steps, arguments.save, arguments.save_interval)
        if arguments.dry_run:
            print(dry_run(best, launcher, arguments.out))
            return 0
        return train_best(best, launcher, arguments.out)


def _train_elastic(arguments: Namespace) -> int:
    from workflows.elastic import Searched, train_elastic

    if arguments.tokens is None:
        raise UsageError("--elastic needs --tokens: how many to train on")
    for option in ("steps", "save_interval", "dry_run"):
        if getattr(arguments, option):
            name = option.replace("_", "-")
            raise UsageError(
                f"--{name} does not go with --elastic: `meshtune plan RUN --nodes N` shows what it "
                "chooses"
            )
    check_site(arguments)
    given: Path = arguments.best
    run = given if given.is_dir() else analysis.RunFolder.holding(given).path
    how = arguments.tokens, arguments.save, arguments.avoid_slow
    with launched(arguments, Searched.of(run).space.widths[-1]) as launcher:
        return train_elastic(run, launcher, arguments.out, *how)


def plan(arguments: Namespace) -> None:
    from workflows.elastic import Searched, resharding

    training = analysis.read_run(arguments.training) if arguments.training else None
    searched = Searched.of(arguments.run, training)
    how = resharding(searched.space)
    found = searched.plan(arguments.nodes, training)
    layout = found.config, analysis.Best.TRIAL_DIR
    line, files = found.space.command(*layout), found.space.files(*layout)
    if arguments.json:
        told = {"parameters": found.config, **found.expected, "num_nodes": found.nodes}
        told |= {"save_interval": found.save_interval, "resharding": how}
        print_json("plan", {**told, "command": line, "files": files})
        return
    print(printable(f"{found}\n{found.basis}\ncheckpoints resume {how}\n{join(line)}"))
    for name, text in files.items():
        print(printable(f"# ---- {name}\n{text.rstrip()}"))


def repair(arguments: Namespace) -> None:
    done = analysis.repair_run(arguments.run)
    for number, text in done.notes:
        print(f"line {number}: {text}")
    lines = counted(done.lines, "line")
    if done.backup is None:
        print(f"the journal is intact: {lines}")
        return
    trials = done.run.trials.values()
    ended = sum(trial.ended for trial in trials)
    count = counted(len(trials), "trial")
    print(f"the journal now has {lines}: {ended} of {count} have ended")
    print(f"backup of the damaged journal: {done.backup}")
    print(_resumption(done.run))
