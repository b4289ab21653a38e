"""``meshtune train best.yaml``: train with what a search found."""

from __future__ import annotations

import json
import re
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join

from analysis import TRIAL_DIR, Best, RunBusyError, RunFolder, counted, driver_of, lock
from foundation.files import FileError, is_number, parse_json, read_text
from foundation.messages import printable
from foundation.python import module_argv
from foundation.writing import write_atomically
from search_spaces import load_space
from slurm import Kind, Launcher, Lease, ResultSource, StepReport, TrialSpec, reported_steps
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

_NO_NAME = re.compile(r"[^\w.-]+", re.ASCII)  # what Slurm's listings would not give back
ATTEMPT_NAME = "attempt.json"  # in the folder: what is, or was last, started there
NO_LIMIT_S = 10 * 365 * 86400.0
GRACE_S, SAVE_S = 10.0, 300.0  # to end when asked to; with a step and a checkpoint before


@dataclass(frozen=True)
class Longer:
    """How a training differs from the trial that it is of.

    Attributes:
        steps: measured ones, instead of the search's few.
        save: folder for checkpoints, and to go on from where it has any; before that, from
            ``load``.
        save_interval: steps between them; default only at the end.
    """

    steps: int | None = None
    save: Path | None = None
    save_interval: int | None = None


def train_best(best: Best, launcher: Launcher, out: Path, longer: Longer) -> int:
    """Train in ``out`` with progress and figures on the screen; returns the exit code.

    Args:
        best: what to train.
        launcher: gives it its processes.
        out: a folder for the configuration, the logs and ``result.json``.
        longer: what is not as in the trial.
    """
    out = out.absolute()
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        held = lock(out)
    except RunBusyError:
        raise ConfigError(
            f"{out}: another meshtune works there ({driver_of(out)}); choose another --out"
        ) from None
    with held:
        return _train(_changed(best, longer), launcher, out)


def dry_run(best: Best, launcher: Launcher, out: Path, longer: Longer) -> str:
    """The exact command; starts and writes nothing."""
    best = _changed(best, longer)
    return join(launcher.command(_spec(best, out.absolute()), _lease(best, launcher)))


def _changed(best: Best, longer: Longer) -> Best:
    best = best if longer.steps is None else _of_steps(best, longer.steps)
    if longer.save is None:
        return best
    if best.train is None:
        raise ConfigError(
            f"{best.path}: --save is for the built-in trainer; change the command in best.yaml"
        )
    folder = str(longer.save.absolute())
    begins, own = best.train.get("load"), best.train.get("save")
    begun = any(longer.save.glob("step-*[0-9]"))
    load = folder if begun or begins in (None, own) else begins
    train = {**best.train, "save": folder, "load": load}
    if longer.save_interval is not None:
        train["save_interval"] = longer.save_interval
    TrainConfig.parse(train)
    return replace(best, train=train)


def _of_steps(best: Best, steps: int) -> Best:
    """The same for another number of steps; a user's own command comes from its space again."""
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
    trial = space.trial.model_copy(update={"measured_steps": steps})
    longer = replace(space, trial=trial)
    return replace(
        best,
        command=longer.command(best.parameters, TRIAL_DIR),
        files=dict(longer.files(best.parameters, TRIAL_DIR)),
    )


def _train(best: Best, launcher: Launcher, out: Path) -> int:
    spec, lease = _spec(best, out), _lease(best, launcher)
    _settle_earlier(launcher, out, spec.name)
    if best.train is not None:
        write_atomically(out / "config.json", json.dumps(best.train, indent=1) + "\n")
    for name, text in best.files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / name, text.replace(TRIAL_DIR, str(out)), private=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # end the ranks, wherever they are
        signal.signal(number, lambda *_: stop.set())
    print(f"training on {', '.join(lease.nodes)}; logs in {out}")
    told = _Steps(out)
    outcome = launcher.run(spec, lease, stop, told)
    told.rest()
    if outcome.kind is not Kind.OK:
        said = f"{outcome.kind}: {outcome.message}\n{outcome.stderr_tail}"
        print(printable(said), file=sys.stderr)
        return 1
    for key, value in (outcome.result or {}).items():
        if is_number(value):
            print(printable(f"{key:28s}{value:.6g}"))
    return 0


class _Steps:
    """Prints each step that a training reports, as it is asked whether it may go on."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._told = 0

    def __call__(self, steps: Sequence[StepReport]) -> None:
        for step in steps[self._told :]:
            figures = [f"{k} {v:.6g}" for k, v in step.items() if k != "step" and is_number(v)]
            print(printable(f"step {step['step']:5d}  {'  '.join(figures)}"), flush=True)
        self._told = max(self._told, len(steps))

    def rest(self) -> None:
        """Those between the last question and the end."""
        self(reported_steps(self._out))


def _settle_earlier(launcher: Launcher, out: Path, name: str) -> None:
    """End what a killed command left running in this folder, and note the name of what comes now.

    Not what runs in another folder, of which this one is a copy.
    """
    file, inode = out / ATTEMPT_NAME, out.stat().st_ino
    names = []
    with suppress(FileError, KeyError, TypeError):
        earlier = parse_json(read_text(file, 10_000), str(file))
        if earlier["inode"] == inode:
            names.append(str(earlier["name"]))
    launcher.settle(names)
    write_atomically(file, json.dumps({"name": name, "inode": inode}) + "\n")


def _spec(best: Best, out: Path) -> TrialSpec:
    argv = tuple(argument.replace(TRIAL_DIR, str(out)) for argument in best.command)
    if best.train is not None:
        argv = module_argv("trainer", str(out / "config.json"))
    return TrialSpec(
        # Folders of one name may be trained in at once, in one allocation.
        name=f"meshtune-train-{_NO_NAME.sub('-', out.name)[:40]}-{secrets.token_hex(4)}",
        directory=out,
        argv=argv,
        num_nodes=best.num_nodes,
        ranks_per_node=best.ranks_per_node,
        timeout_s=NO_LIMIT_S,
        env=best.env,
        grace_s=SAVE_S if best.train is not None and best.train.get("save") else GRACE_S,
        result=ResultSource(best.log),
        workdir=best.workdir,
        max_steps=None,
    )


def _lease(best: Best, launcher: Launcher) -> Lease:
    nodes = tuple(launcher.nodes()[: best.num_nodes])
    if len(nodes) < best.num_nodes:
        needed = counted(best.num_nodes, "node")
        raise ConfigError(f"{best.path} needs {needed}; found {len(nodes)}")
    return Lease("train", nodes)
