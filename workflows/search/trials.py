"""A configuration as a trial for the launcher, and the launcher's outcome as objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from analysis import Ended, Metrics, MissingMetricError, Proposed, Run, RunFolder, StartUp, Trial
from search_spaces import SearchSpace
from slurm import BLAMELESS, Kept, Kind, Outcome, TrialSpec, clear_attempt
from trainer.plan.limits import ConfigError
from workflows.optimizer.policy import Proposal
from workflows.search.objectives import values_of, with_prices
from workflows.search.throughput import completed, contradiction, job_of, named_by_meaning

LONGEST_MESSAGE = 1000  # characters
MAX_RETRIES = 3  # of a trial whose nodes, launch or driver failed
PYTHON_SOURCE = "python-source"  # value of trainer.builtin.data: the standard library's source


@dataclass(frozen=True)
class TrialFactory:
    """Makes the trial specifications of a space."""

    space: SearchSpace
    folder: RunFolder
    run_id: str  # a name that no other run on this cluster has
    data: str | None  # prefix of the built-in trainer's token file; None for a user's own command

    @property
    def mark(self) -> str:
        """The name of processes that outlive a trial of this run; no trial has it."""
        return f"{self.run_id}-ranks"

    def kept(self, run: Run) -> Kept | None:
        """The processes that trials' ranks are forked from; None if ranks start afresh.

        Ranks are forked if the space asks for it, else once starting takes longer than the steps.
        The first trial that shows it decides: later ones start faster because of this.
        """
        modules = tuple(self.space.program.preload)
        asked = self.space.trainer.preload is not None
        if modules and (asked or StartUp.exceeds_steps(self.space, run.trials.values())):
            return Kept(self.mark, modules)
        return None

    def write(self, number: int, attempt: int, config: Mapping[str, Any]) -> TrialSpec:
        """Write the trial's ``config.json`` and ``trial.json``; returns its specification.

        Files of an earlier attempt are removed first, so that they cannot pass for this one's.
        """
        spec = self.spec(number, attempt, config)
        clear_attempt(spec.directory)
        texts = self.space.files(config, spec.directory)
        trial = {
            "name": spec.name,
            "config": dict(config),
            "argv": list(spec.argv),
            "num_nodes": spec.num_nodes,
            "ranks_per_node": spec.ranks_per_node,
            "env": dict(spec.env),
            **({"log": asdict(spec.log)} if spec.log else {}),
            **({"workdir": str(spec.workdir)} if spec.workdir else {}),
            **({"container": spec.container.model_dump()} if spec.container else {}),
            **({"files": dict(texts)} if texts else {}),
        }
        files = {"trial.json": trial, "config.json": self.space.train_config(config, self.data)}
        self.folder.write_trial(number, files, texts)
        return spec

    def spec(self, number: int, attempt: int, config: Mapping[str, Any]) -> TrialSpec:
        """The specification of a trial; writes nothing."""
        directory = self.folder.trial(number)
        trial = self.space.trial
        return TrialSpec(
            name=f"{self.run_id}-{number:04d}-{attempt}",
            directory=directory,
            argv=self.space.command(config, directory),
            num_nodes=self.space.num_nodes(config),
            ranks_per_node=self.space.ranks_per_node,
            timeout_s=trial.timeout_s,
            no_progress_timeout_s=trial.no_progress_timeout_s,
            env=self.space.environment(config, directory),
            log=self.space.program.log,
            warmup_steps=trial.warmup_steps,
            total_steps=trial.steps,
            config=dict(config),
            workdir=self.space.workdir,
            container=self.space.trainer.container,
        )


def proposed(run: Run, proposal: Proposal) -> Proposed:
    return Proposed(
        trial=max(run.trials, default=0) + 1,
        config=proposal.config,
        by=proposal.by,
        why=proposal.why,
        expected=dict(proposal.expected),
    )


def judge(
    space: SearchSpace, outcome: Outcome, config: Mapping[str, Any]
) -> tuple[Outcome, dict[str, float], dict[str, float]]:
    """The checked outcome of an ended attempt, its objectives and bounded metrics by key.

    An ``ok`` without one of them is a crash (the trainer broke its contract); one with an infinite
    or impossible value has diverged. Neither may pass for a fast result. A trial that was stopped
    early may lack a bounded metric; it is never the best.
    """
    outcome = checked_outcome(space, outcome, config)
    if outcome.kind is not Kind.OK:
        return outcome, {}, {}
    result = outcome.result or {}
    try:
        reached = values_of(space.objectives, space, config, result)
        bounds = () if outcome.stopped_early else space.subject_to
        bounded = values_of(bounds, space, config, result)
    except MissingMetricError as error:
        message = "; ".join(filter(None, (outcome.message, str(error))))  # after what ended it
        return replace(outcome, kind=Kind.CRASH, message=message[:LONGEST_MESSAGE]), {}, {}
    for key, value in (reached | bounded).items():
        if not math.isfinite(value):
            return replace(outcome, kind=Kind.DIVERGED, message=f"{key} is not finite"), {}, {}
        if not Metrics.possible(value):
            message = f"{key} is {value:g}, which is impossible"
            return replace(outcome, kind=Kind.DIVERGED, message=message), {}, {}
    return outcome, reached, bounded


def checked_outcome(space: SearchSpace, outcome: Outcome, config: Mapping[str, Any]) -> Outcome:
    """An outcome with all metrics that follow from the trainer's own.

    If two metrics of a user's own trainer contradict each other, it is a crash that names both.
    """
    job = job_of(space, config)
    if outcome.kind is not Kind.OK or outcome.result is None:
        return outcome
    if space.trainer.builtin is not None:
        return replace(outcome, result=with_prices(space, config, outcome.result))
    result = named_by_meaning(space, config, outcome.result)
    if job is not None and (problem := contradiction(space, job, result, outcome.elapsed_s)):
        return replace(outcome, kind=Kind.CRASH, message=problem)
    return replace(outcome, result=with_prices(space, config, completed(job, result)))


def ended(
    space: SearchSpace, trial: Trial, attempt: int, nodes: Sequence[str], outcome: Outcome
) -> Ended:
    """The journal's event for the end of an attempt on ``nodes``; ``trial`` as it was before."""
    outcome, objectives, bounded = judge(space, outcome, trial.config)
    kind = outcome.kind
    costs_retry = kind in BLAMELESS and not outcome.excused
    retries = sum(a.costs_retry for a in trial.attempts) + costs_retry
    final = not kind.retried or (costs_retry and retries > MAX_RETRIES)
    early = outcome.stopped_early and kind is Kind.OK
    return Ended(
        trial=trial.number,
        attempt=attempt,
        kind=str(kind),
        objective=next(iter(objectives.values()), None),
        objectives=objectives if len(objectives) > 1 else {},
        bounded=bounded,
        result=outcome.kept_result,
        message=outcome.message,
        stderr_tail=outcome.stderr_tail,
        elapsed_s=outcome.elapsed_s,
        steps=outcome.steps,
        nodes=nodes,
        final=final and not trial.ended,  # a repeat leaves the first result as it is
        excused=outcome.excused,
        early=early,
        saved_node_s=outcome.saved_s * len(nodes) if early else None,
    )


def data_prefix(space: SearchSpace, folder: Path) -> str | None:
    """Absolute path of the built-in trainer's token file, without its suffix; writes nothing.

    The file may have to be made. None for a user's own trainer.

    Raises ConfigError if a file that the space names for the trainer does not exist.
    """
    builtin = space.trainer.builtin
    if builtin is None:
        return None
    validation = builtin.validation
    for key, path, suffix in (
        ("loss_mask", builtin.loss_mask, ".idx"),
        ("validation.data", validation and validation.data, ".idx"),
        ("initial_load_path", builtin.initial_load_path, "/config.json"),
    ):
        if path is not None and not (file := Path(f"{path}{suffix}").absolute()).exists():
            raise ConfigError(f"{space.file}: trainer.builtin.{key}: there is no {file}")
    if builtin.data != PYTHON_SOURCE:
        prefix = Path(builtin.data).absolute()
        if not Path(f"{prefix}.idx").exists():
            raise ConfigError(
                f"{space.file}: trainer.builtin.data: there is no {prefix}.idx; "
                f"`meshtune prepare-data FILES --out {builtin.data}` makes it from text"
            )
        return str(prefix)
    return str(folder.absolute() / "data" / PYTHON_SOURCE)


def make_data(prefix: str) -> None:
    """Make the token file of Python's own source unless it exists."""
    from trainer import prepare_data, python_source_files

    if not Path(f"{prefix}.idx").exists():
        Path(prefix).parent.mkdir(parents=True, exist_ok=True)
        prepare_data(python_source_files(), Path(prefix))
