"""``meshtune try``: one trial, with its command and everything read from its output."""

from __future__ import annotations

import secrets
import shlex
import shutil
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis import Metrics, MissingFactError, NotPricedError, Pricing, RunFolder
from foundation.documents import plain_scalar
from foundation.quantities import config_text, counted, duration, number
from foundation.values import Scalar
from search_spaces import Candidates, SearchSpace, SpaceError, check, notes
from slurm import BatchJob, Kind, Launcher, Lease, Outcome, Site, TrialSpec
from slurm.logs.patterns import FoundNothingError, LogMetrics
from slurm.logs.text import cut_lines, read_log
from workflows.launching import first_nodes, run_alone
from workflows.search.session import NO_IDENTITY
from workflows.search.trials import TrialFactory, data_prefix, judge, make_data

DRAWN = 20_000  # configurations that are searched for the given values
LAST_LINES = 20


def values_of(space: SearchSpace, given: list[str]) -> dict[str, Scalar]:
    """Values of a space's parameters from texts such as ``tp=2``.

    Raises SpaceError if a text is no ``NAME=VALUE``, or has an unknown parameter or value.
    """
    values: dict[str, Scalar] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or key not in space.parameters:
            raise SpaceError(
                f"--config {text}: accepted NAME=VALUE, NAME being one of "
                f"{', '.join(space.parameters)}"
            )
        try:
            values[key] = space.parameters[key].member(plain_scalar(value))
        except ValueError as error:
            raise SpaceError(f"--config {text}: {error}") from None
    return values


def choose(space: SearchSpace, given: Mapping[str, Scalar], max_nodes: int) -> dict[str, Any]:
    """The valid configuration with the given values that the cost model expects to be best.

    Without prices it is the first one that is found. Raises SpaceError if none has them.
    """
    drawn = Candidates(space).draw(DRAWN, np.random.default_rng(0), [], max_nodes)
    # A value given for a continuous parameter is almost never among the drawn ones: substitute it.
    between = {key: value for key, value in given.items() if space.parameters[key].span}
    if between:
        drawn = [raw for c in drawn if space.first_violation(raw := {**c, **between}) is None]
    fitting = [c for c in drawn if all(c.get(key) == value for key, value in given.items())]
    if not fitting and len(given) == len(space.parameters):
        raise SpaceError(f"{space.file}: {space.first_violation(given)}")
    if not fitting:
        check(space)  # its own error, if no configuration is valid at all
        raise SpaceError(
            f"{space.file}: no valid configuration on {counted(max_nodes, 'node')} has "
            f"{config_text(given)}; `meshtune check` lists what each rule removes"
        )
    try:
        pricing = Pricing(space)
        prediction = pricing.predict(fitting)
    except (NotPricedError, MissingFactError):
        return space.canonical(fitting[0])
    value = pricing.promise(prediction) * prediction.fits
    return space.canonical(fitting[int(np.argmax(value))])


def try_out(
    space: SearchSpace, config: Mapping[str, Any], launcher: Launcher, out: Path
) -> Generator[str, None, Kind]:
    """Run one trial; yields lines on it, and returns how it ended."""
    folder = RunFolder(out)
    if space.trainer.container is not None:
        launcher.check_container(space.trainer.container)
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    if data := data_prefix(space, folder.path):
        make_data(data)
    factory = TrialFactory(space, folder, f"meshtune-try-{secrets.token_hex(4)}", data)
    spec = factory.write(0, 1, config)
    lease = first_nodes(launcher, spec)
    yield from _before(space, config, launcher, spec, lease)
    outcome, objectives, _ = judge(space, run_alone(launcher, spec, lease), config)
    yield from _after(space, spec, outcome)
    for key, value in objectives.items():
        yield _line("objective", _metric(key, value))
    try:
        prediction = Pricing(space).predict([config])
    except (NotPricedError, MissingFactError) as error:
        yield _line("cost model", f"has no price: {error}")
    else:
        memory = f"{prediction.peak_bytes[0] / 2**30:.1f} GiB on the fullest GPU"
        time_s = number(prediction.step_time_s[0])
        yield _line("cost model", f"predicts {time_s} s a step, {memory}")
    if outcome.kind is not Kind.OK:
        printed = cut_lines(read_log(spec.directory / "stdout.log")[0])
        for log, text in (("error", outcome.stderr_tail), ("output", printed)):
            if lines := text.splitlines()[-LAST_LINES:]:
                yield f"last lines of standard {log}:"
                yield from (f"  {line}" for line in lines)
    return outcome.kind


def _before(
    space: SearchSpace, config: Mapping[str, Any], launcher: Launcher, spec: TrialSpec, lease: Lease
) -> Iterator[str]:
    yield _line("configuration", config_text(config))
    yield _line("nodes", ", ".join(lease.nodes))
    yield _line("command", shlex.join(launcher.command(spec, lease)))
    if spec.container is not None:
        yield _line("container", spec.container.image)
    else:
        here = shutil.which(spec.argv[0])
        yield _line("program", here or f"{spec.argv[0]} is not on this PATH")
    yield _line("folder", str(spec.directory))
    if spec.workdir:
        yield _line("started in", str(spec.workdir))
    names = sorted(space.files(config, spec.directory))
    yield _line("files", ", ".join(["config.json", "trial.json", *names]))
    if spec.env:
        yield _line("environment", ", ".join(sorted(spec.env)) + " of trainer.env")


def _after(space: SearchSpace, spec: TrialSpec, outcome: Outcome) -> Iterator[str]:
    yield _line("ended", f"{outcome.kind} after {duration(outcome.elapsed_s)}")
    if outcome.message:
        yield _line("because", outcome.message)
    if outcome.exit_code:
        yield _line("exit code", str(outcome.exit_code))
    for key, value in (outcome.result or {}).items():
        yield _line("result", f"{key} = {str(value)[:100]}")
    for log in ("stdout.log", "stderr.log"):
        reader = LogMetrics(spec.log, spec.warmup_steps, spec.world_size)
        try:
            for text in cut_lines(read_log(spec.directory / log)[0]).splitlines():
                reader.read(text)
        except FoundNothingError as error:
            yield _line("not read", str(error))
        for found in reader.readings():
            what = _metric(found.metric, found.value)
            yield _line("read", f"{what}, of {found.counted} of {found.lines} lines in {log};")
            yield _line("", f"the last one: {found.last.strip()[:120]}")
    for note in notes(space):
        yield _line("note", note)


def _metric(key: str, value: float) -> str:
    return f"{key} = {number(Metrics.scaled(key, value))} {Metrics.unit(key)}".rstrip()


def _line(label: str, text: str) -> str:
    return f"{label:14s}{text}"


def started_by(space: SearchSpace, site: Site, folder: RunFolder | None = None) -> Iterator[str]:
    """The srun line of the configuration expected to be best; none without site or container.

    Raises LauncherError if the site does not start the space's container.
    """
    container = space.trainer.container
    if container is None and site.reference == "generic":
        return
    if container is not None and site.containers is None and site.reference == "generic":
        yield f"trials run in {container.image}; --site shows the line by which they do"
        return
    folder = folder or RunFolder(Path("runs") / space.name)
    config = choose(space, {}, space.widths[-1])
    spec = TrialFactory(space, folder, f"meshtune-{NO_IDENTITY}", None).spec(1, 1, config)
    cores = space.cluster.cpus_per_node if space.cluster is not None else None
    if container is not None and (advice := site.advice(container)):
        yield f"beforehand: {advice}"
    yield f"a trial: {BatchJob.trial_line(spec, site, cores or spec.ranks_per_node)}"
