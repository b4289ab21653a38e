"""``meshtune init``: a first search space, with comments, for a well-known trainer."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from foundation.documents import read_document, written_document
from foundation.messages import shown
from foundation.quantities import counted
from search_spaces import (
    AdapterFile,
    SearchSpace,
    SpaceArgumentError,
    SpaceError,
    StatedOptions,
    default_space,
    load_space,
)
from slurm import BatchError, BatchJob
from trainer.plan.model import ModelConfig
from workflows import launch_script
from workflows.estimate import Estimate
from workflows.launch_script import Launched
from workflows.launch_site import SitePart, site_part
from workflows.slurm_options import WORDS
from workflows.submission import least_s

_COMMENTS: dict[str, str] = read_document(Path(__file__).with_suffix(".yaml")).root.plain()


ROWS = 8  # of data per rank and step of fine-tuning, if no batch is stated
# The first one in the trainer's log is taken: rows may vary in length, not all logs count tokens.
_OBJECTIVES = (
    "tokens_per_second", "epochs_per_second", "labelled_tokens_per_second_per_gpu",
    "samples_per_second",
)  # fmt: skip
_GPU_MEMORY = re.compile(WORDS["gpu memory"], re.IGNORECASE)
MEMORY_MARGIN = 0.15  # relative, between the GB in a GPU's name and its GiB


@dataclass(frozen=True)
class Wanted:
    adapter: str  # name of the trainer's adapter
    model: str | None  # shipped, or a file; None where the trainer's own arguments describe it
    cluster: str  # shipped, or a file
    nodes: int = 0  # of each trial; 0 for what the launch script asks for, or else one
    entry: str = ""  # the trainer's script; empty for the adapter's default
    arguments: Path | None = None  # a file with the trainer's arguments, such as a launch script
    config: str = ""  # the trainer's own configuration file


@dataclass(frozen=True)
class FirstSpace:
    space: str  # text of the file
    notes: list[str]  # on it, and on what it leaves out
    site: str = ""  # text of a site profile; empty where none is needed
    submit: Sequence[str] = ()  # options of `meshtune submit`; the launch script's if they suffice


def first_space(wanted: Wanted, file: str) -> FirstSpace:
    """A space file, with notes on it and on the user's options that it leaves out.

    Other files are named as seen from ``file``, which it will be written to.

    Raises SpaceError if something named does not exist, or does not fit the rest.
    """
    try:
        record = AdapterFile.named(wanted.adapter)
    except SpaceError as error:
        raise SpaceArgumentError("adapter", str(error)) from None
    own = _own(wanted, record)
    trainer = {"adapter": wanted.adapter, **own.trainer()}
    least, stated = _least_space(trainer, wanted), StatedOptions.of(trainer)
    content, notes = _default_content(wanted, record, own, least, stated)
    content |= {"trainer": trainer, "budget": {"trials": 20}}
    content["objective"] = least.objective.as_dict()
    del content["name"]  # the file's
    if not wanted.model:
        del content["model"]  # the arguments say it
    elif content["model"].keys() == {"base"}:
        content["model"] = content["model"]["base"]
    # Checked before it is written; frozen, as its objective may need what the notes ask for.
    space = load_space(content, frozen=True)
    dropped = _drop_refused_values(content["parameters"], space)
    own_zero = stated.parameters().get("zero_stage")
    if own_zero in dropped.get("zero_stage", []):
        notes.append(f"your ZeRO {own_zero} is not searched: {wanted.adapter}'s record lacks it")
    notes += [f"left out: {words}" for words in own.left_out]
    notes += _differences(wanted, own, space)
    _name_as_seen_from(Path(file).parent, content)
    options = own.launched.batch_options
    scripts_time = next((o[7:] for o in options if o.startswith("--time=")), "")
    time = _job_time(space, scripts_time)
    if scripts_time and time != scripts_time:
        shortest = math.ceil(least_s(space) / 60)
        notes.append(f"a job shorter than {shortest}m starts no trial: submit for that of several")
    profile = own.part.profile
    return FirstSpace(
        _text(content, file),
        [content["description"], *own.notes, *notes],
        written_document({"source": str(wanted.arguments), **profile}) if profile else "",
        [f"--nodes {space.widths[-1]}", f"--time {time}"],
    )


def _default_content(
    wanted: Wanted, record: AdapterFile, own: _Own, least: SearchSpace, stated: StatedOptions
) -> tuple[dict[str, Any], list[str]]:
    """The default space with the trainer's own batch and stage of ZeRO, and notes on it."""
    model = wanted.model or least.model
    if model is None:
        raise SpaceError(_no_model(wanted, record, own, stated))
    batch = stated.batch(getattr(least.model, "seq_length", None))
    degrees = stated.parameters()
    settings = [
        n for n, each in record.settings.items() if any(s.applies(stated.keys) for s in each)
    ]
    whole = partial(
        default_space, model, wanted.cluster, own.nodes, record.framework,
        seq_length=stated.seq_length(), settings=settings, batch_is_stated=batch is not None,
        fixed={name: int(degrees[name]) for name in ("tp", "pp", "cp") if name in degrees},
    )  # fmt: skip
    ranks = own.launched.ranks or own.nodes * least.ranks_per_node
    stated_batch = stated.batch_on(ranks) if batch is None else batch
    if stated_batch is None and least.program.log.rows_vary:
        stated_batch = ROWS * ranks
    notes = []
    try:
        content = whole(global_batch_size=stated_batch)
    except SpaceArgumentError as error:
        # These nodes cannot share the batch, which only follows from the command line.
        if error.argument != "global_batch_size" or batch is not None:
            raise
        content, notes = whole(), [f"the trainer's own batch is left: {error.what}"]
    if batch is None and "mbs" not in record.settings:
        notes.append(
            f"no micro-batch is searched, as {wanted.adapter} has no option for it: add your "
            "script's to args, such as --batch-size {mbs}, and mbs to parameters"
        )
    zero, own_zero = content["parameters"].get("zero_stage"), degrees.get("zero_stage")
    for name, value in record.usual.items():
        content["parameters"].setdefault(name, value)
    if isinstance(zero, list) and isinstance(own_zero, int):
        content["parameters"]["zero_stage"] = sorted({*zero, own_zero})
    return content, notes


def _name_as_seen_from(folder: Path, content: dict[str, Any]) -> None:
    """Name a space's files as seen from the folder that its own file is written to."""
    trainer, model = content["trainer"], content.get("model")
    based = model if isinstance(model, dict) else content
    for keys, key in ((content, "cluster"), (based, "model"), (based, "base"), (trainer, "adapter"),
                      (trainer, "config")):  # fmt: skip
        name = keys.get(key)
        if isinstance(name, str) and not Path(name).is_absolute() and Path(name).is_file():
            keys[key] = os.path.relpath(name, folder)


def _drop_refused_values(parameters: dict[str, Any], space: SearchSpace) -> dict[str, list[Any]]:
    """Drop values that a constraint on one parameter alone refuses; returns them by parameter."""
    refused = {}
    for name, values in parameters.items():
        if isinstance(values, list):
            alone = [e for e in space.constraints if e.names == {name}]
            parameters[name] = [v for v in values if all(e.value({name: v}) for e in alone)]
            refused[name] = [v for v in values if v not in parameters[name]]
    return refused


def _differences(wanted: Wanted, own: _Own, space: SearchSpace) -> Iterator[str]:
    """Notes on nodes of the launch script that are unlike those of the cluster."""
    launched = own.launched
    counts = launched.ranks and launched.nodes and not wanted.nodes
    per_node = launched.ranks / own.nodes if counts else space.ranks_per_node
    if per_node != space.ranks_per_node:
        yield (
            f"your script starts {per_node:g} ranks on a node, and a node of {wanted.cluster} has "
            f"{counted(space.ranks_per_node, 'GPU')}: name your nodes by --cluster"
        )
    asked = next(filter(None, map(_GPU_MEMORY.match, launched.batch_options)), None)
    has = space.cluster.memory_gib if space.cluster else 0.0
    if asked and abs(int(asked[1]) - has) > MEMORY_MARGIN * has:
        told = f"your script asks for GPUs of {asked[1]} GB ({asked.string}), and those of"
        yield f"{told} {wanted.cluster} have {has:g} GiB: name yours by --cluster"


def _job_time(space: SearchSpace, scripts_own: str) -> str:
    """The time limit of the launch script, or one in which the search should end."""
    with suppress(BatchError):  # the limit is a variable
        if scripts_own and BatchJob.time_limit_s(scripts_own) >= least_s(space):
            return scripts_own
        search_h = 0.0
        with suppress(SpaceError):  # no configuration is valid: `meshtune check` says why
            search_h = (Estimate.of(space).expected_node_hours or 0.0) / space.widths[-1]
        return f"{math.ceil(least_s(space) / 60 + 60 * search_h)}m"
    return scripts_own


@dataclass
class _Own:
    """The user's own launch script and configuration file, as a space states them."""

    entry: str
    config: str
    nodes: int  # of each trial
    launched: Launched = field(default_factory=Launched)  # the script; empty without one
    part: SitePart = field(default_factory=SitePart)  # the site's part of it
    arguments: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # options whose value only a shell knows
    notes: list[str] = field(default_factory=list)  # on differences to the user's script

    def trainer(self) -> dict[str, Any]:
        """Keys of a space's ``trainer`` section."""
        args = _lines(self.arguments) if self.arguments else ""
        env = {name: _literal(text) for name, text in self.launched.environment.items()}
        keys = {
            "entry": self.entry,
            "config": self.config,
            "args": args,
            "env": env,
            "workdir": self.part.workdir,
            "container": self.part.container,
        }
        return {key: value for key, value in keys.items() if value}


def _literal(text: str) -> str:
    """A template whose result is this text: braces around an expression are doubled."""
    return re.sub(r"\{([^{}]*)\}", r"{{\1}}", text)


def _own(wanted: Wanted, record: AdapterFile) -> _Own:
    own = _Own(wanted.entry, wanted.config, wanted.nodes or 1)
    if wanted.arguments is None:
        return own
    by_equals = record.options == "key=value"
    own.launched = launched = launch_script.read(wanted.arguments, by_equals, record.together)
    own.nodes = wanted.nodes or launched.nodes or 1
    own.part = site_part(launched, wanted.cluster)
    own.arguments = launched.arguments
    own.left_out = [*launched.left_out, *launched.dropped, *own.part.left_out]
    if launched.entry and not own.entry and any("{entry}" in word for word in record.command):
        as_module = "-m" in record.command or record.is_module(launched.entry)
        if launched.module == as_module:
            own.entry = launched.entry
        else:
            own.left_out.append(f"{'-m ' * launched.module}{launched.entry}: name by --entry yours")
    bare = record.file is not None and not any(w[:1] == "-" for w in record.file.arguments)
    if record.file and (by_equals or bare):  # its word is no option: train.py base.yml steps=9
        words, at = own.arguments, _file_words(own.arguments, own.config)
        files = list(dict.fromkeys(words[i] for i in at))
        if bare and len(files) > 1 and not own.config:
            where = f"{shown(wanted.arguments)}: found {', '.join(files)}"
            raise SpaceError(f"{where}: put their options into one file, and name it by --config")
        own.config = own.config or next(iter(files), "")
        if bare and record.file and record.file.required and not own.config:
            where = f"{shown(wanted.arguments)}: no configuration file of {record.name}"
            raise SpaceError(f"{where} is named: put these options into one, and pass it instead")
        own.left_out = [*own.left_out, *(file for file in files if file != own.config)]
        own.arguments = [w for i, w in enumerate(words) if ("=" in w if by_equals else i not in at)]
        no_pairs = [w for i, w in enumerate(words) if by_equals and "=" not in w and i not in at]
        own.left_out += [" ".join(no_pairs)] if no_pairs else []
    if record.file is not None and not own.config:
        own.config = _named_file(own.arguments, record.file.arguments)
        if not record.file.required and not Path(own.config).suffix:
            own.config = ""  # the name of one of the trainer's own files: zero3
        if own.config and not record.file.required and not Path(own.config).is_file():
            own.notes.append(f"left out, as it is not here: {own.config}")
            own.config = ""
    if (folder := own.part.workdir) and not own.part.image and not Path(folder).is_dir():
        own.notes.append(f"left out, as it is not here: cd {folder} (trainer.workdir)")
        own.part.workdir = ""
    if not wanted.model and record.model_in == "arguments":
        words = [*own.arguments, *(word for each in own.left_out for word in each.split())]
        for option, value in StatedOptions.implied(record, words).items():
            own.arguments += [f"--{option}", str(value)]
            own.notes.append(f"--{option} is taken to be {value}: correct it if it is not")
    return own


def _file_words(words: list[str], config: str) -> list[int]:
    """Indices of words that name the file; an option's value only if no other word can."""
    named = [i for i, word in enumerate(words) if "=" not in word and word[:1] != "-"]
    alone = [i for i in named if i == 0 or words[i - 1][:1] != "-" or "=" in words[i - 1]]
    files = [i for i in named if words[i].endswith((".yaml", ".yml", ".json"))]
    others = [i for i in [*alone, *files] if config in ("", words[i])]
    return [i for i in files if i in alone] or others[:1]


def _least_space(trainer: Mapping[str, Any], wanted: Wanted) -> SearchSpace:
    """A space that adds nothing to what the trainer's own arguments or file state."""
    least: dict[str, Any] = {"version": 1, "cluster": wanted.cluster, "trainer": dict(trainer)}
    default_space(wanted.model or "tiny", wanted.cluster)  # its errors name the argument
    if wanted.model:
        length = StatedOptions.of(trainer).seq_length()
        least["model"] = {"base": wanted.model, **({"seq_length": length} if length else {})}
    least["parameters"] = {"tp": 1, "mbs": 1, "gas": 1}
    refusals = []
    for key in _OBJECTIVES:
        try:
            return load_space({**least, "objective": {"maximize": key}})
        except SpaceError as error:
            refusals.append(error)
    raise refusals[0]


def _named_file(arguments: list[str], naming: list[str]) -> str:
    """The file that the arguments name by the option in ``naming``, or "" without the option.

    Raises SpaceError if the option has no value.
    """
    option = next((text for text in reversed(naming) if text[:2] == "--"), "")
    for word, following in pairwise([*arguments, ""]):
        name, _, value = word.partition("=")
        if option and name == option:
            if not value and following[:2] in ("--", ""):
                raise SpaceError(f"{option} names no file here: write {option} FILE")
            return value or following
    return ""


def _no_model(wanted: Wanted, record: AdapterFile, own: _Own, stated: StatedOptions) -> str:
    """A message on the keys of a model that the user's arguments or file lack."""
    keys = {name: key.key for name, key in record.model.items()}
    needed = [name for name, field in ModelConfig.model_fields.items() if field.is_required()]
    lacking = [keys[name] for name in needed if name in keys and keys[name] not in stated.keys]
    lacking = lacking if stated.keys else []
    said = f"not told {', '.join(lacking)}" if lacking else "told none, or not all of it"
    if keys and not lacking and (unsaid := [name for name in needed if name not in keys]):
        said += f": it has no option for {', '.join(unsaid)}"
    remedy = f": add --{lacking[0]}, or" if len(lacking) == 1 else ":"
    remedy += " name a shipped model, Hugging Face's config.json or a *.yaml"
    unread = [
        words
        for words in own.left_out
        if words[:1] == "$" or words.lstrip("-").split()[0] in lacking
    ]
    reason = f"; no shell reads {', '.join(unread)}" if unread else ""
    lacks_all = lacking and len(lacking) == len(keys.keys() & {*needed})
    if wanted.arguments and not own.launched.entry and not unread and lacks_all:
        script = shown(wanted.arguments)
        reason = f"; {script} starts no script: name by --args the file that does"
    return f"--model is missing: {wanted.adapter} is {said}{reason}{remedy}"


def _lines(arguments: list[str]) -> str:
    """A command line with one option per line."""
    starts = [n for n, word in enumerate(arguments) if n and (word[:2] == "--" or "=" in word)]
    parts = [arguments[start:end] for start, end in pairwise([0, *starts, len(arguments)])]
    return "".join(shlex.join(part) + "\n" for part in parts)


def _text(content: Mapping[str, Any], file: str) -> str:
    """A document with comments above its keys."""
    text = written_document({key: value for key, value in content.items() if value not in ({}, [])})
    for key, comment in _COMMENTS.items():
        comment = comment.replace("FILE", file)
        text = re.sub(rf"^{key}:", lambda key: f"# {comment}\n{key[0]}", text, flags=re.MULTILINE)  # noqa: B023
    return text
