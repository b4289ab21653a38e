"""The page's figures without a browser, as SVG and PDF: for notebooks, papers and scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import quickjs

from analysis.prediction.scaling import Scaled
from analysis.report import figures
from analysis.report.forests import Sensitivity
from analysis.report.page import content_of
from analysis.report.section import Content
from analysis.report.sections import SECTIONS
from analysis.run.fold import Run
from foundation.arguments import refused
from foundation.quantities import config_text
from foundation.writing import write_atomically

PAGE = 6.9  # inches: the text width of the usual papers; a column has 3.3
FORMS = ("svg", "pdf")
FIGURES = {name: section for section in SECTIONS for name in section.figures}
_TEMPLATES = Path(__file__).with_name("templates")
_SCRIPTS = ("offscreen", "draw", "filter", "charts", "space", "scaling", "paper")
# As ``templates/macros.html`` writes them.
_FIGURE = re.compile(
    r'<figure [^>]*data-draw="(\w+)" data-of="(.*?)" data-unit="(.*?)">(.*?)</figure>', re.DOTALL
)
_SELECT = re.compile(r'<select name="(\w+)">(.*?)</select>')
_OPTION = re.compile(r"<option( selected)?>(.*?)</option>")
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
        cls, what: Run | Sensitivity | Scaled, name: str = "", width: float = PAGE, **choices: str
    ) -> Drawn:
        """A figure ``width`` inches wide: of a run the one of this name, by default its history;
        of a sensitivity its SHAP values, in the unit ``name``; of a scaling its throughput.
        """
        if isinstance(what, Run):
            return _of_page(content_of(what), name or "history", width, **choices)
        if isinstance(what, Sensitivity):
            found = {"effects-found": figures.effects(what, figures.MAX_PARAMETERS)}
            return cls("effects", found, width, "found", name)
        return cls("scaling", {"scaling": _scaling(what)}, width)

    @staticmethod
    def by_name(run: Run) -> Plots:
        """Figures of a run's page."""
        return Plots(run)

    def encoded(self, form: str) -> bytes:
        """The content of an ``svg`` or ``pdf`` file."""
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

    def savefig(self, path: str | Path) -> None:
        """Write ``*.svg`` or ``*.pdf``."""
        form = Path(path).suffix.removeprefix(".")
        if form not in FORMS:
            raise ValueError(f"{path}: accepted a file *.svg or *.pdf")
        write_atomically(Path(path), self.encoded(form))

    def _repr_svg_(self) -> str:
        return self.encoded("svg").decode()


class Plots:
    """Figures of a run's page by name: ``plots.roofline(width=3.3)``.

    A figure takes what can be chosen beside it on the page, such as ``by="time"``.
    """

    def __init__(self, run: Run) -> None:
        self._content = content_of(run)

    def __dir__(self) -> list[str]:
        return [*FIGURES]

    def __getattr__(self, name: str) -> Callable[..., Drawn]:
        if name not in FIGURES:
            raise AttributeError(f"a run's page has no figure {name}, but {', '.join(FIGURES)}")
        return partial(_of_page, self._content, name)


def _of_page(content: Content, name: str, width: float = PAGE, **choices: str) -> Drawn:
    section = FIGURES.get(name)
    if section is None:
        raise refused("name", name, f"a figure of the page: {', '.join(FIGURES)}")
    html = section.draw(content) if section.condition(content) else ""
    draw = "effects" if name == "failures" else name
    found = [each for each in _FIGURE.findall(html) if each[0] == draw]
    wanted = choices.pop("of", None) if draw == "effects" else None
    of = {of: (unit, controls) for _, of, unit, controls in found if wanted in (None, of)}
    if not of:
        raise refused("name", name, f"a figure that the page of {content.run.where} has")
    first, (unit, controls) = next(iter(of.items()))
    chosen = {}
    for key, offered in _SELECT.findall(controls):
        options = {unescape(text): selected for selected, text in _OPTION.findall(offered)}
        start = max(options, key=lambda text: bool(options[text]))
        chosen[key] = choices.pop(key, start)
        if chosen[key] not in options:
            raise refused(key, chosen[key], ", ".join(options))
    if choices:
        raise refused("choices", ", ".join(choices), ", ".join(chosen) or f"none for {name}")
    data = {"trials": content.trials, **section.data(content)}
    return Drawn(draw, data, width, first, unescape(unit), chosen)


def _scaling(scaled: Scaled) -> dict[str, Any]:
    nodes, tokens = scaled.prediction.num_nodes, scaled.prediction.tokens_per_second
    (low, high), edges = scaled.tokens_per_second_interval, scaled.efficiency_interval
    values = {"nodes": nodes, "tokens": tokens, "low": low, "high": high,
              "ideal": tokens[0] * nodes / nodes[0], "efficiency": 100 * scaled.efficiency,
              "efficiency_low": 100 * edges[0], "efficiency_high": 100 * edges[1]}  # fmt: skip
    title = f"{scaled.mode} scaling: {config_text(scaled.config)}"
    return {"title": title, **{name: each.tolist() for name, each in values.items()}}
