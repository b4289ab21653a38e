"""The page's figures without a browser, as SVG and PDF: for notebooks, papers and scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import quickjs

from analysis.prediction.scaling import Scaled
from analysis.report import figures
from analysis.report.forests import Sensitivity
from analysis.report.page import content_of
from analysis.report.section import Content, Figure, figures_named
from analysis.report.sections import SECTIONS
from analysis.run.fold import Run, read_run
from foundation.arguments import checked_text, refused
from foundation.quantities import config_text
from foundation.writing import write_atomically

PAGE = 6.9  # inches: the text width of the usual papers; a column has 3.3
FORMS = ("svg", "pdf")
_NO_OTHER = "PNG and other resolutions are saved from the report's page"
FIGURES = {name: section for section in SECTIONS for name in section.figures}
_TEMPLATES = Path(__file__).with_name("templates")
_SCRIPTS = ("offscreen", "draw", "filter", "charts", "space", "scaling", "paper")
_NO_TRIALS: dict[str, Any] = {
    "parameters": {}, "metrics": {}, "number": [], "kind": [], "by": [], "objective": [],
    "expected": [],
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A figure, with text of 8 pt, a title and a legend. Notebooks show it."""

    name: str
    data: Mapping[str, Any]  # what the page's script reads
    width: float = PAGE  # inches
    of: str = ""  # which of several figures of one name
    unit: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_what(
        cls,
        what: Run | Path | Sensitivity | Scaled,
        name: str = "",
        width: float = PAGE,
        **choices: str,
    ) -> Drawn:
        """A figure ``width`` inches wide. Of a run or its folder it is the figure ``name``, by
        default the history; of a sensitivity the SHAP values in the unit ``name``; of a scaling the
        throughput.
        """
        _check(width, choices)
        if isinstance(what, Path):
            what = read_run(what)
        if isinstance(what, Run):
            return _of_page(content_of(what), name or "history", width, **choices)
        if choices:
            unit = "; the unit of the effects is `name`" if "effect" in choices else ""
            raise refused("choices", ", ".join(choices), f"none but for a run's figure{unit}")
        if isinstance(what, Sensitivity):
            found = {"effects-found": figures.effects(what)}
            return cls("effects", found, width, "found", name)
        return cls("scaling", {"scaling": _scaling(what)}, width)

    def encoded(self, form: str) -> bytes:
        """The content of an ``svg`` or ``pdf`` file."""
        if form not in FORMS:
            raise refused("form", form, f"svg or pdf, as in figure.pdf; {_NO_OTHER}")
        css = json.dumps((_TEMPLATES / "page.css").read_text(encoding="utf-8"))
        given = figures.embedded({"trials": _NO_TRIALS, **self.data})
        scripts = [(_TEMPLATES / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
        context = quickjs.Context()
        context.eval("\n".join((f"const css = {css}, data = {given};", *scripts, "0")))
        asked = {
            "draw": self.name, "of": self.of, "unit": self.unit, "choices": dict(self.choices),
            "inches": self.width, "form": form,
        }  # fmt: skip
        text = context.eval(f"JSON.stringify(picture({figures.embedded(asked)}))")  # flat, no rope
        return bytes(json.loads(text), "utf-8")

    def savefig(self, path: str | Path, **more: Any) -> None:
        """Write ``*.svg`` or ``*.pdf``; refuses ``more`` options, such as ``dpi``."""
        for key, value in more.items():
            raise refused(key, value, f"a path alone; {_NO_OTHER}")
        if not isinstance(path, (str, Path)):
            raise refused("path", path, "the path of a file *.svg or *.pdf")
        write_atomically(Path(path), self.encoded(Path(path).suffix.removeprefix(".")))

    def _repr_svg_(self) -> str:
        return self.encoded("svg").decode()


class Plots:
    """Figures of a run's page by name: ``plots.roofline(width=3.3)``.

    A figure takes the choices that the page offers beside it, such as ``by="time"``.
    """

    def __init__(self, run: Run) -> None:
        self._content = content_of(run)

    def __dir__(self) -> list[str]:
        return [name for name, each in FIGURES.items() if each.condition(self._content)]

    def __getattr__(self, name: str) -> Callable[..., Drawn]:
        if name not in FIGURES:
            raise AttributeError(f"a run's page has no figure {name}, but {', '.join(FIGURES)}")
        return partial(_of_page, self._content, name)


def _check(width: float, choices: Mapping[str, str]) -> None:
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not 1 <= width <= 100:
        raise refused("width", width, "inches from 1 to 100")
    for key, value in choices.items():
        checked_text(key, value)


def _found(content: Content, name: str) -> list[Figure]:
    """The figures of this name that the page has."""
    return figures_named(name, content) if FIGURES[name].condition(content) else []


def _of_page(content: Content, name: str, /, width: float = PAGE, **choices: str) -> Drawn:
    _check(width, choices)
    if name not in FIGURES:
        raise refused("name", name, f"a figure of the page: {', '.join(FIGURES)}")
    drawn = {figure.of: figure for figure in _found(content, name)}
    if not drawn:
        there = ", ".join(other for other in FIGURES if _found(content, other))
        raise refused("name", name, f"a figure that the page of {content.run.where} has: {there}")
    first = next(iter(drawn))
    if drawn[first].draw == "effects":  # of which a page may have several
        first = choices.pop("of", first)
    if first not in drawn:
        raise refused("of", first, ", ".join(drawn))
    figure, chosen = drawn[first], {}
    for key, (options, start) in figure.choices.items():
        chosen[key] = choices.pop(key, start)
        if chosen[key] not in options:
            raise refused(key, chosen[key], ", ".join(options))
    if choices:
        raise refused("choices", ", ".join(choices), ", ".join(chosen) or f"none for {name}")
    data = {"trials": content.trials, **FIGURES[name].data(content)}
    return Drawn(figure.draw, data, width, first, figure.unit, chosen)


def _scaling(scaled: Scaled) -> dict[str, Any]:
    nodes, tokens = scaled.prediction.num_nodes, scaled.prediction.tokens_per_second
    (low, high), edges = scaled.tokens_per_second_interval, scaled.efficiency_interval
    values = {"nodes": nodes, "tokens": tokens, "low": low, "high": high,
              "ideal": tokens[0] * nodes / nodes[0], "efficiency": 100 * scaled.efficiency,
              "efficiency_low": 100 * edges[0], "efficiency_high": 100 * edges[1]}  # fmt: skip
    title = f"{scaled.mode} scaling: {config_text(scaled.config)}"
    return {"title": title, **{name: each.tolist() for name, each in values.items()}}
