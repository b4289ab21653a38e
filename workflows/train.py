"""``meshtune train best.yaml``: train with the best configuration of a search."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import join

from analysis import Best, RunBusyError, RunFolder
from foundation.files import FileError, is_number, read_json
from foundation.messages import printable
from foundation.python import module_argv
from foundation.quantities import counted
from foundation.writing import write_atomically
from search_spaces import load_space
from slurm import GrowingLog, Kind, Launcher, Lease, StepLog, StepReport, TrialSpec
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from workflows.launching import first_nodes, run_alone
from workflows.search.stopping import code_of

_NO_NAME = re.compile(r"[^\w.-]+", re.ASCII)  # characters that Slurm's listings change
ATTEMPT_NAME = "attempt.json"  # names the last attempt that was started in the folder
NO_LIMIT_S = 10 * 365 * 86400.0
GRACE_S, SAVE_S = 10.0, 300.0  # to end; to end with a last step and a checkpoint


def train_best(best: Best, launcher: Launcher, out: Path) -> int:
    """Train in the folder ``out``, print each step and the metrics; returns the exit code."""
    out = out.absolute()
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        held = RunFolder(out).lock()
    except RunBusyError:
        raise ConfigError(
            f"{out}: another meshtune works there ({RunFolder(out).driver}); choose another --out"
        ) from None
    with held:
        return _train(best, launcher, out)


def dry_run(best: Best, launcher: Launcher, out: Path) -> str:
    """The exact command; starts and writes nothing."""
    spec = spec_of(best, out.absolute())
    return join(launcher.command(spec, _lease(best, launcher, spec)))


def changed(
    best: Best, steps: int | None = None, save: Path | None = None, save_interval: int | None = None
) -> Best:
    """The best trial as a training, with the given changes.

    Args:
        steps: number of steps after the warm-up.
        save: folder of checkpoints; training resumes from them if there are any, else from the
            configuration's ``load``.
        save_interval: steps between checkpoints; default: only at the end.
    """
    best = best if steps is None else _of_steps(best, steps)
    if save is None:
        return best
    if best.train is None:
        raise ConfigError(
            f"{best.path}: --save is for the built-in trainer; change the command in best.yaml"
        )
    folder = str(save.absolute())
    begins, own = best.train.get("load"), best.train.get("save")
    begun = any(save.glob("step-*[0-9]"))
    load = folder if begun or begins in (None, own) else begins
    train = {**best.train, "save": folder, "load": load}
    if save_interval is not None:
        train["save_interval"] = save_interval
    TrainConfig.parse(train)
    return replace(best, train=train)


def _of_steps(best: Best, steps: int) -> Best:
    """The same with another number of steps; a user's own command is made from its space."""
    if best.train is not None:
        return replace(best, train={**best.train, "measured_steps": steps})
    file = RunFolder.holding(best.path).space_file
    if not file.exists():
        raise ConfigError(
            f"{best.path}: --steps needs the space, and there is no {file}: leave best.yaml in its "
            "run's report folder, or change the number of steps in its command"
        )
    space = load_space(file)
    reads = space.program.reads
    if reads is not None and "measured_steps" not in reads:
        raise ConfigError(
            f"{best.path}: --steps has no effect, for the command does not have "
            "{measured_steps}; change the number of steps in best.yaml's command"
        )
    longer = replace(space, trial=space.trial.model_copy(update={"measured_steps": steps}))
    trial = best.parameters, Best.TRIAL_DIR
    return replace(best, command=longer.command(*trial), files=dict(longer.files(*trial)))


def _train(best: Best, launcher: Launcher, out: Path) -> int:
    spec = spec_of(best, out)
    if spec.container is not None:
        launcher.check_container(spec.container)
    lease = _lease(best, launcher, spec)
    settle_earlier(launcher, out, spec.name)
    if best.train is not None:
        write_atomically(out / "config.json", json.dumps(best.train, indent=1) + "\n")
    for name, text in best.files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / name, text.replace(Best.TRIAL_DIR, str(out)), private=True)
    print(f"training on {', '.join(lease.nodes)}; logs in {out}")
    show = Steps(None if best.train is None else out)
    outcome = run_alone(launcher, spec, lease, show)
    show(StepLog.reported(out), ended=True)
    if outcome.kind is not Kind.OK:
        said = f"{outcome.kind}: {outcome.message}\n{outcome.stderr_tail}"
        print(printable(said), file=sys.stderr)
        return code_of(outcome.kind)
    for key, value in (outcome.result or {}).items():
        if is_number(value):
            print(printable(f"{key:28s}{value:.6g}"))
    return 0


class Steps:
    """Stop rule that prints the steps since its last call and never stops.

    Of the built-in trainer, whose logs are in ``folder``, it prints what that says of them (numbers
    that go on after a resume, losses, checkpoints), and its warnings.
    """

    def __init__(self, folder: Path | None) -> None:
        self._logs = GrowingLog.of_trial(folder) if folder else ()
        self.printed = 0

    def __call__(self, steps: Sequence[StepReport], ended: bool = False) -> None:
        """Print what is new: if the trial has ended, also a last line that has no end."""
        if self._logs:
            stdout, stderr = (_new_lines(log, ended) for log in self._logs)
            for line in stderr:
                if line.startswith("warning: "):
                    print(printable(line), file=sys.stderr, flush=True)
            for line in stdout:
                if not line.startswith("MESHTUNE_"):
                    print(printable(line), flush=True)
        else:
            for step in steps[self.printed :]:
                metrics = [f"{k} {v:.6g}" for k, v in step.items() if k != "step" and is_number(v)]
                print(printable(f"step {step['step']:5d}  {'  '.join(metrics)}"), flush=True)
        self.printed = max(self.printed, len(steps))


def _new_lines(log: GrowingLog, ended: bool) -> list[str]:
    texts = log.rest() if ended else [log.new_lines()]
    return [line for text in texts for line in text.splitlines()]


def settle_earlier(launcher: Launcher, out: Path, name: str, others: bool = True) -> None:
    """End ranks that a killed command left in this folder, and write the new attempt's name.

    If this folder is a copy, the ranks of the original are left alone.
    """
    file, inode = out / ATTEMPT_NAME, out.stat().st_ino
    names = []
    with suppress(FileError, KeyError, TypeError):
        earlier = read_json(file)
        if earlier["inode"] == inode and earlier["name"]:
            names.append(str(earlier["name"]))
    if others:
        launcher.settle(names)
    write_atomically(file, json.dumps({"name": name, "inode": inode}) + "\n")


def spec_of(best: Best, out: Path) -> TrialSpec:
    argv = tuple(argument.replace(Best.TRIAL_DIR, str(out)) for argument in best.command)
    if best.train is not None:
        argv = module_argv("trainer", str(out / "config.json"))
    return TrialSpec(
        # One allocation may train in several folders of one name at once.
        name=f"meshtune-train-{_NO_NAME.sub('-', out.name)[:40]}-{secrets.token_hex(4)}",
        directory=out,
        argv=argv,
        num_nodes=best.num_nodes,
        ranks_per_node=best.ranks_per_node,
        timeout_s=NO_LIMIT_S,
        env=best.env,
        grace_s=SAVE_S if best.train is not None and best.train.get("save") else GRACE_S,
        log=best.log,
        workdir=best.workdir,
        container=best.container,
        max_steps=None,
    )


def _lease(best: Best, launcher: Launcher, spec: TrialSpec) -> Lease:
    lease = first_nodes(launcher, spec)
    if len(lease.nodes) < best.num_nodes:
        needed = counted(best.num_nodes, "node")
        raise ConfigError(f"{best.path} needs {needed}; found {len(lease.nodes)}")
    return lease
