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
from workflows.cli.arguments import (
    Commands,
    UsageError,
    check_site,
    command,
    folder,
    launched,
    path,
    positive,
    tokens,
)
from workflows.cli.json_output import of_run, print_json


def add_commands(commands: Commands) -> None:
    text = "Run one trial of a space, and show its command and what was read from its output."
    parser = command(commands, "try", try_out, text)
    parser.add_space()
    text = "parameters; default: the configuration that the cost model expects to be the best"
    parser.add("--config", str, "NAME=VALUE", text, nargs="+", default=[])
    parser.add_launcher()
    parser.add("--out", folder, "DIR", "default: try", default=Path("try"))

    parser = command(commands, "status", status, "Show a run's progress.")
    parser.add("run", folder, "RUN")
    parser.add_json()

    text = "Write the best configuration as a well-known trainer's options or files."
    parser = command(commands, "export", export, text)
    parser.add("run", path, "RUN|BEST.yaml")
    parser.add("--to", str, "NAME", "the trainer: megatron-lm, torchtitan ...; default: the run's")
    text = "your launch script, whose options tell the trainer's version; default: the run's own"
    parser.add("--args", path, "FILE", text)
    parser.add("--out", folder, "DIR", "write files there; default: print them")

    parser = command(commands, "train", train, "Train with the best configuration of a search.")
    text = "best.yaml of a run's report; with --elastic the run's folder"
    parser.add("best", path, "BEST.yaml|RUN", text)
    parser.add_launcher()
    parser.add("--steps", positive, "N", "steps after the warm-up; default: those of the trials")
    parser.add("--out", folder, "DIR", "default: train", default=Path("train"))
    parser.add("--save", folder, "DIR", "folder for checkpoints; resume from its latest one")
    text = "steps between checkpoints; default: only at the end"
    parser.add("--save-interval", positive, "N", text)
    text = (
        "choose the layout anew at every start, for the nodes that are there, and go on from the "
        "latest checkpoint (folder checkpoints in --out)"
    )
    parser.add_flag("--elastic", text)
    parser.add("--tokens", tokens, "T", "with --elastic: tokens to train on, such as 300e9")
    text = "with --elastic: leave out nodes with which every start was slower than predicted"
    parser.add_flag("--avoid-slow", text)
    parser.add_flag("--dry-run", "print the command; start nothing")

    text = "Choose the layout with which a training goes on, on so many nodes."
    parser = command(commands, "plan", plan, text)
    parser.add("run", folder, "RUN", "whose best configuration is trained")
    parser.add("--nodes", positive, "N", "that are there", required=True)
    parser.add("--training", folder, "DIR", "folder of `train --elastic`, whose steps count, too")
    parser.add_json()

    text = "Repair a damaged journal: keep its intact lines, and list what was left out."
    parser = command(commands, "repair", repair, text)
    parser.add("run", folder, "RUN")


def try_out(arguments: Namespace) -> int:
    from workflows.launching import refuse_too_many_ranks
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
                return 0 if end.value else 1


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
    if container := run.folder.frozen_space().trainer.container:
        rows = [*rows, ("container", container.image)]
    for label, text in [("run", run.space), ("state", state), *rows]:
        print(printable(f"{label:12s}{text}"))


def state_of(run: analysis.Run, driver: str | None) -> str:
    """Whether a run is searched, done, failed or interrupted, and what resumes it."""
    from workflows.search.stopping import CONTINUE, FAILED, INTERRUPTED

    if driver:
        return f"running ({driver})"
    if not run.opened_t:
        return "no search has begun here yet"
    if run.closed is None:
        return f"killed; {_resumption(run)}"
    if run.closed_code in (CONTINUE, INTERRUPTED):
        return f"{run.closed}; {_resumption(run)}"
    return f"failed: {run.closed}" if run.closed_code == FAILED else run.closed


def _resumption(run: analysis.Run) -> str:
    from workflows.search.study import LAUNCHER

    if run.launcher == LAUNCHER:
        return "the program that asked for its trials resumes it"
    space_file = quote(str(run.folder.space_file))
    by_hand = f"`meshtune search {space_file}{run.launcher_option}` resumes it"
    if slurm.BatchJob.script_of(run.directory).exists():
        return f"its job resumes it if squeue still lists the job, else {by_hand}"
    return by_hand


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
    from workflows.train import Longer, dry_run, train_best

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
    refuse_too_many_ranks(best.path, arguments.launcher, best.num_nodes * best.ranks_per_node)
    if arguments.save_interval and arguments.save is None:
        raise UsageError("--save-interval needs --save")
    longer = Longer(arguments.steps, arguments.save, arguments.save_interval)
    with launched(arguments, best.num_nodes) as launcher:
        if arguments.dry_run:
            print(dry_run(best, launcher, arguments.out, longer))
            return 0
        return train_best(best, launcher, arguments.out, longer)


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
