"""Objectives of a space, checked."""

from __future__ import annotations

from collections.abc import Mapping

from foundation.documents import Document, Where, as_written
from foundation.messages import nearest
from search_spaces.language.schema import ObjectiveSpec, SpaceFile
from search_spaces.parameters import Parameter
from search_spaces.rules import facts
from search_spaces.space import ENERGY_FIGURES, Objective, SearchSpace
from trainer import FIGURES


def objectives_of(
    document: Document, file: SpaceFile, own: Mapping[str, Parameter]
) -> tuple[Objective, ...]:
    """The objectives of a space file with its ``own`` parameters.

    Raises:
        SpaceError: for a repeated one, one that never varies, or one that is never reported.
    """
    given = file.objective
    several = isinstance(given, list)
    found: list[Objective] = []
    for index, spec in enumerate(given if isinstance(given, list) else [given]):
        path: Where = ("objective", index) if several else ("objective",)
        if spec.key in (objective.key for objective in found):
            raise document.error(path, f"found {as_written(spec.key)} twice, accepted once")
        widths = own.get("dp" if facts.derived_nodes(own) else "num_nodes")
        if several and spec.key == "num_nodes" and (widths is None or not widths.varies):
            raise document.error(
                path,
                "num_nodes is the same in every configuration: remove it here, or give it "
                "several values under parameters",
            )
        _known_figure(document, file, spec, path)
        found.append(Objective(spec.key, spec.is_maximized))
    return tuple(found)


TOKENS = "tokens_per_second"
_OF_TOKENS = (TOKENS, f"{TOKENS}_per_gpu", "node_seconds_per_token", "joules_per_token")
_COUNTED = {TOKENS, f"{TOKENS}_per_gpu", "tokens"}


def check_tokens(document: Document, space: SearchSpace) -> None:
    """Refuse an objective of tokens that nothing in the trainer's log would count.

    Raises:
        SpaceError: where lengths vary, and the log's patterns have no real tokens.
    """
    patterns = space.program.log.patterns
    if not space.uneven_lengths or not patterns or not _COUNTED.isdisjoint(patterns):
        return
    for objective in space.objectives:
        if objective.key in _OF_TOKENS:
            raise document.error(
                ("objective",), f"found {objective.key}: {space.uncounted(patterns)}"
            )


def _known_figure(document: Document, file: SpaceFile, spec: ObjectiveSpec, path: Where) -> None:
    """Refuse a metric that the built-in trainer does not report."""
    key, root = spec.key, spec.key.split(".")[0]
    if file.trainer.builtin is None or root.startswith("communication_"):
        return
    known = (*FIGURES, "num_nodes", "node_seconds_per_token", *ENERGY_FIGURES)
    if root not in known or key == "step_time_s":
        often = ("tflops_per_gpu", "tokens_per_second", "step_time_s.median")
        names = [*often, *(name for name in known if name != "step_time_s")]
        raise document.error(
            (*path, "maximize" if spec.is_maximized else "minimize"),
            f"found {as_written(key)}, accepted a figure of the built-in trainer, such as "
            f"{', '.join(often)}{nearest(key, names)}",
            at_value=True,
        )
