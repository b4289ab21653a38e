"""Objectives of a space, checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from foundation.bounds import Bound
from foundation.documents import Document, Where, as_written
from foundation.files import FileError, read_text
from foundation.messages import nearest
from search_spaces.language.schema import SpaceFile
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.parameters import Parameter
from search_spaces.rules import facts
from search_spaces.space import ENERGY_FIGURES, Objective, SearchSpace
from trainer import FIGURES

_SPEEDS = ("tokens_per_second", "tokens_per_second_per_gpu", "tflops_per_gpu")  # with a model
_STEPS = (
    *("step_time_s.median", "step_time_s", "steps_per_second", "micro_batch_time_s"),
    *("samples_per_second", "micro_batches_per_second"),
)
MAX_SCRIPT_BYTES = 1 << 20  # no more of a script is read
_KEY = re.compile(r"[^\s+*()<>=]{1,200}")
_STATEMENTS = ("MESHTUNE_RESULT", "MESHTUNE_STEP", "result.json")


def objectives_of(
    document: Document, file: SpaceFile, own: Mapping[str, Parameter], found: Collection[str] | None
) -> tuple[Objective, ...]:
    """The objectives of a space file with parameters ``own``.

    ``found`` are the keys that results have; None: any.

    Raises SpaceError for one that is repeated, never varies, or is never reported.
    """
    given = file.objective
    several = isinstance(given, list)
    objectives: list[Objective] = []
    for index, spec in enumerate(given if isinstance(given, list) else [given]):
        path: Where = ("objective", index) if several else ("objective",)
        if spec.key in (objective.key for objective in objectives):
            raise document.error(path, f"found {as_written(spec.key)} twice, accepted once")
        widths = own.get("dp" if facts.derived_nodes(own) else "num_nodes")
        if several and spec.key == "num_nodes" and (widths is None or not widths.varies):
            raise document.error(
                path,
                "num_nodes is the same in every configuration: remove it here, or give it "
                "several values under parameters",
            )
        where = (*path, "maximize" if spec.is_maximized else "minimize")
        _check_key(document, file, spec.key, where, found)
        objectives.append(Objective(spec.key, spec.is_maximized))
    return tuple(objectives)


def bounds_of(
    document: Document, file: SpaceFile, facts: Collection[str], found: Collection[str] | None
) -> tuple[Bound, ...]:
    """The bounds of a space file on measured values.

    ``facts`` are known before a trial runs, ``found`` are the keys that results have; None: any.

    Raises SpaceError for text that is no bound, or a metric that is never reported.
    """
    bounds = []
    for index, text in enumerate(file.subject_to):
        path: Where = ("subject_to", index)
        try:
            bound = Bound.of(text)
        except ValueError as error:
            raise document.error(path, f"found {as_written(text)}, {error}") from None
        if bound.key in facts:
            raise document.error(
                path,
                f"found {bound.key}, which is known before a trial runs: state it under "
                "constraints",
            )
        _check_key(document, file, bound.key, path, found)
        unit = text.rstrip()[-1].isalpha()
        if bound.key.endswith("_bytes") and 0 < bound.value < 1 << 20 and not unit:
            raise document.error(
                path, f"found {as_written(text)}: write its unit, such as GiB or B"
            )
        bounds.append(bound)
    return tuple(bounds)


def keys_found(
    spec: TrainerSpec, patterns: Iterable[str], names: Collection[str], has_model: bool
) -> set[str] | None:
    """Keys of the results of a user's own trainer, and of metrics derived from them; None: any.

    ``patterns`` are the keys that its log has patterns for, ``names`` those that expressions use.
    """
    found = {*patterns}
    stated = _own_statements(spec) if spec.command and found else True
    if stated:
        return None
    if stated is None:  # it may print the usual keys
        found |= {*_SPEEDS, *_STEPS}
    if "global_batch_size" in names and found & {*_STEPS, *(_SPEEDS[:2] if has_model else ())}:
        found |= {"step_time_s.median", "samples_per_second", *(_SPEEDS if has_model else ())}
    found.add("num_nodes")
    if {"tokens", "run_time_s"} <= found:
        found.add("tokens_per_second")
    if "tokens_per_second" in found:
        found.add("node_seconds_per_token")
        found.add("cost")
        if "joules_per_step_per_gpu" in found:
            found.add("energy_joules")
        if {"energy_joules", "step_time_s.median"} <= found:
            found |= {"joules_per_token", "co2"}
    return found


def _own_statements(spec: TrainerSpec) -> bool | None:
    """Whether a script of the command writes results itself; None if one cannot be read here."""
    if any(_STATEMENTS[-1] in word for word in spec.words):
        return True
    here: bool | None = False
    for script in (word for word in spec.words if word.endswith((".py", ".sh"))):
        try:
            text = read_text(Path(spec.workdir or "") / script, MAX_SCRIPT_BYTES)
        except FileError:
            here = None
        else:
            if any(statement in text for statement in _STATEMENTS):
                return True
    return here


def _check_key(
    document: Document, file: SpaceFile, key: str, where: Where, found: Collection[str] | None
) -> None:
    """Refuse an expression, or a metric that no result of the trainer has."""
    root = key.split(".")[0]
    known = (*FIGURES, "num_nodes", "node_seconds_per_token", *ENERGY_FIGURES, "cost")
    builtin = file.trainer.builtin is not None and not root.startswith("communication_")
    if builtin and (root not in known or key == "step_time_s"):
        often = ("tflops_per_gpu", "tokens_per_second", "step_time_s.median")
        names = [*often, *(name for name in known if name != "step_time_s")]
        such = f"{', '.join(often)}{nearest(key, names)}"
        problem = f"accepted a figure of the built-in trainer, such as {such}"
    elif not _KEY.fullmatch(key):
        problem = (
            "accepted one key of the trainer's result, not an expression; let the trainer print "
            "it: MESHTUNE_RESULT {...}"
        )
    elif found is not None and key not in found:
        problem = (
            "which neither the trainer's log nor what follows from it has: accepted "
            f"{', '.join(sorted(found))}; or state its pattern under "
            f"trainer.result.patterns{nearest(key, found)}"
        )
    else:
        return
    raise document.wrong(where, f"found {as_written(key)}, {problem}")


TOKENS = "tokens_per_second"
_OF_TOKENS = (
    *(TOKENS, f"{TOKENS}_per_gpu", "node_seconds_per_token", "joules_per_token", "cost", "co2"),
)
_COUNTED = {TOKENS, f"{TOKENS}_per_gpu", "tokens"}


def check_sources(document: Document, space: SearchSpace, found: Collection[str] | None) -> None:
    """Check that the trainer's log counts the tokens of objectives, and that prices are known.

    ``found`` are the keys that results have; None: any. Raises SpaceError if lengths vary and no
    pattern counts real tokens, or the cluster lacks a price, or nothing measures priced energy.
    """
    patterns = space.program.log.patterns
    uncounted = space.uneven_lengths and patterns and _COUNTED.isdisjoint(patterns)
    builtin = space.trainer.builtin is not None
    priced = space.priced(builtin or found is None or "joules_per_token" in found)
    # If results are not known beforehand, the trainer may report such a metric itself.
    refused = builtin or found is not None
    sought: list[tuple[Where, str]] = [(("objective",), o.key) for o in space.objectives]
    sought += [(("subject_to", i), bound.key) for i, bound in enumerate(space.subject_to)]
    for where, key in sought:
        if uncounted and key in _OF_TOKENS:
            raise document.error(where, f"found {key}: {space.uncounted(patterns)}")
        if key in _PRICES and key not in priced and refused:
            raise document.error(where, f"found {key}, accepted with {_PRICES[key]} under cluster")


_PRICES = {
    "cost": "price_per_node_hour (or price_per_kwh, if the trainer measures energy)",
    "co2": "co2_grams_per_kwh, if the trainer measures energy,",
}
