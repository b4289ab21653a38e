"""``meshtune init``: a first search space, with comments, for a well-known trainer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from search_spaces import (
    SearchSpace,
    SpaceArgumentError,
    SpaceError,
    default_space,
    load_space,
    read_adapter,
)
from slurm import read_text, written_document

MAX_BYTES = 1_000_000
# Of torchrun and of Slurm: meshtune's launchers start the ranks.
_LAUNCHER = re.compile(
    r"--(nproc|nnodes|nodes?|master|rdzv|max.restarts|monitor.interval|standalone|tee|redirects"
    r"|log.dir|role|start.method|run.path|no.python|local.addr|ntasks|gpus|cpus|cpu.bind|mpi"
    r"|export|kill.on.bad.exit|exclusive|label|partition|account|time|job.name|output|error)"
    r"(?![a-z])"
)
_MARKS = {"(", ")", "&&", "||", "|", ";", "&", "\\", ">", "2>&1"}
_COMMENTS = {
    "version": "check it, rank it, try one trial, then search:\n"
    "# meshtune check FILE; meshtune predict FILE; meshtune try FILE; meshtune search FILE",
    "model": "a shipped model, or a file: *.yaml, Hugging Face's config.json",
    "cluster": "a shipped cluster, or a file: `meshtune preflight` measures one and writes it",
    "trainer": "what a trial runs; what the search sets replaces your own arguments",
    "parameters": "what may vary; strike what you do not want to be tried",
    "conditions": "where a parameter matters",
    "constraints": "what every configuration has to satisfy",
    "objective": "also tflops_per_gpu, node_seconds_per_token, or minimize: step_time_s.median",
    "budget": "also wall_time: 6h, node_hours: 100",
}


@dataclass(frozen=True)
class Wanted:
    """What the user has said of a space.

    Attributes:
        adapter: of the trainer, by name.
        model: shipped, or a file; empty where the trainer's own arguments say it.
        cluster: shipped, or a file.
        nodes: of each trial.
        entry: the trainer's script; empty for the adapter's default.
        arguments: a file with the trainer's arguments, such as a launch script.
        config: the trainer's own configuration file.
    """

    adapter: str
    model: str
    cluster: str
    nodes: int = 1
    entry: str = ""
    arguments: Path | None = None
    config: str = ""


def first_space(wanted: Wanted, file: str) -> tuple[str, list[str]]:
    """The text of a space file, and notes on what was left out of the user's arguments.

    Args:
        wanted: what is known.
        file: that it will be written to; other files are named as seen from there.

    Raises:
        SpaceError: for what does not exist, or does not go together.
    """
    try:
        record = read_adapter(wanted.adapter)
    except SpaceError as error:
        raise SpaceArgumentError("adapter", str(error)) from None
    arguments, left_out = ([], []) if wanted.arguments is None else script(wanted.arguments)
    trainer: dict[str, Any] = {"adapter": wanted.adapter}
    if wanted.entry:
        trainer["entry"] = wanted.entry
    if wanted.config:
        trainer["config"] = wanted.config
    if arguments:
        trainer["args"] = _lines(arguments)
    told = _told(trainer, wanted)
    model = wanted.model or told.model
    if model is None:
        raise SpaceError(f"--model is missing: {wanted.adapter} is told none, or not all of it")
    batch = _batch(told)
    content = default_space(
        model, wanted.cluster, wanted.nodes, record.framework, global_batch_size=batch
    )
    known = {*record.settings, "num_nodes", "gas"}
    parameters = {n: v for n, v in content["parameters"].items() if n in known}
    unknown = content["parameters"].keys() - known
    kept = [c for c in content["constraints"] if unknown.isdisjoint(re.findall(r"\w+", c))]
    content["constraints"] = kept
    if batch is not None:  # which leaves gas no choice
        del parameters["gas"], content["constraints"][0]
    content |= {
        "trainer": trainer,
        "parameters": parameters,
        "conditions": {n: c for n, c in content["conditions"].items() if n in parameters},
        "budget": {"trials": 20},
    }
    del content["name"]  # the file's
    if not wanted.model:
        del content["model"]  # the arguments say it
    elif content["model"].keys() == {"base"}:
        content["model"] = content["model"]["base"]
    load_space(content)  # before anything is written
    return _text(content, file), left_out


def script(path: Path) -> tuple[list[str], list[str]]:
    """A trainer's arguments from a launch script, and what of it cannot be passed on.

    Variables of the shell, and options of torchrun and srun, are left out.

    Raises:
        FileError: if the file cannot be read.
    """
    text = read_text(path, MAX_BYTES)
    try:
        tokens = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError:  # a quote that is closed in another way than a shell's
        tokens = text.split()
    options: list[list[str]] = []
    for token in tokens:
        if token.startswith("--"):
            options.append([token])
        elif token in _MARKS or token.endswith(("=(", ".py")) or re.match(r"[A-Z_]+=", token):
            options.append([])  # whatever follows belongs to no option
        elif options and options[-1]:
            options[-1].append(token.rstrip(")"))
    found = [option for option in options if option and not _LAUNCHER.match(option[0])]
    passed = [option for option in found if not any("$" in word for word in option)]
    left_out = [" ".join(option) for option in found if any("$" in word for word in option)]
    return [word for option in passed for word in option], left_out


def _told(trainer: Mapping[str, Any], wanted: Wanted) -> SearchSpace:
    """A space that says no more than the trainer's own arguments or file do."""
    least: dict[str, Any] = {"version": 1, "cluster": wanted.cluster, "trainer": dict(trainer)}
    least |= {"parameters": {"tp": 1, "mbs": 1}, "objective": {"maximize": "tokens_per_second"}}
    return load_space(least)


def _batch(told: SearchSpace) -> int | None:
    """The global batch that the trainer's own arguments or file say."""
    found = (re.fullmatch(r"global_batch_size == (\d+)", e.text) for e in told.constraints)
    return next((int(match[1]) for match in found if match), None)


def _lines(arguments: list[str]) -> str:
    """A command line with one option on each line."""
    starts = [n for n, word in enumerate(arguments) if word.startswith("--")]
    parts = [arguments[start:end] for start, end in pairwise([*starts, len(arguments)])]
    return "".join(shlex.join(part) + "\n" for part in parts)


def _text(content: Mapping[str, Any], file: str) -> str:
    """A document with comments above its keys."""
    text = written_document({key: value for key, value in content.items() if value not in ({}, [])})
    for key, comment in _COMMENTS.items():
        comment = comment.replace("FILE", file)
        text = re.sub(rf"^{key}:", lambda key: f"# {comment}\n{key[0]}", text, flags=re.MULTILINE)  # noqa: B023
    return text
