"""A section of the report's page, its figures, and the content that both are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup

from analysis import units
from analysis.cost.groups import MissingFactError
from analysis.prediction.held_out import CrossValidation, cross_validated
from analysis.prediction.pricing import Pricing
from analysis.report import figures, tables
from analysis.report.forests import NotEnough, Sensitivity, folded
from analysis.report.interactions import dependence, interactions, memory_border
from analysis.report.outcomes import ranked_trials
from analysis.report.outlook import Outlook
from analysis.report.sensitivity import (
    LOW_R2,
    ModelSensitivity,
    failure_sensitivity,
    model_sensitivity,
    objective_sensitivity,
)
from analysis.run.fold import Run
from analysis.run.trial import Trial
from analysis.verdict import standard_errors
from foundation import quantities
from foundation.messages import printable
from foundation.quantities import number, percent, significant, value_text

Account = tuple[Sensitivity | None, str]
"""A sensitivity, or None and the reason."""

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    # Also plain text: a trial's output may hold escape sequences and bidirectional overrides.
    finalize=lambda value: printable(value) if type(value) is str else value,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "number": number,
    "duration": quantities.duration,
    "value": lambda value: value_text(significant(value, 5) if type(value) is float else value),
    "percent": lambda share: Markup(percent(share).replace(" ", "&nbsp;")),  # on one line
    "thousands": "{:,}".format,
    "hours": lambda h: number(h) if h >= 1 or not h else f"{h:.2g}" if h >= 1e-3 else "below 0.001",
    "digits": lambda value: significant(value, 6),
    "counted": quantities.counted,
    "measured": quantities.measured,
    "quoted": lambda path: quote(str(path)),
}


def page_from(template: str, **values: Any) -> str:
    """A page of its own; ``data`` is what its script reads."""
    data = figures.embedded(values.pop("data"))
    return _TEMPLATES.get_template(template).render({**values, "data": data})


@dataclass(frozen=True)
class Content:
    """A run and what is derived from it, each part computed when a section first asks for it."""

    run: Run
    frame: pd.DataFrame  # its ended trials, the objective in the unit in which it is shown
    home: Path  # the run's folder, as the page calls it
    tell: Callable[[str], object] = lambda _: None  # receives a line on each step
    best_problem: str = ""  # why there is no ``best.yaml``; empty if there is

    @cached_property
    def listed(self) -> dict[int, Trial]:
        """The trials that the page lists, by number."""
        return {trial.number: trial for trial in tables.listed(self.run)}

    def rows(self, trials: Iterable[Trial]) -> list[dict[str, Any]]:
        """Rows of a table of trials."""
        return [tables.trial_row(self.run, trial) for trial in trials]

    @property
    def objective(self) -> str:
        """Name and unit of the first objective."""
        return units.label(self.run.objective_key)

    @cached_property
    def validation(self) -> CrossValidation | None:
        """Cross-validation of the cost model on the run; None if it cannot price the trials."""
        if self.run.origin:
            return None
        self.tell("report: comparing the cost model with the trials")  # the longest step
        return cross_validated(self.run)

    @cached_property
    def pricing(self) -> Pricing | None:
        """Prices of the run's space, not calibrated; None where there are none."""
        return Pricing.of_run(self.run.folder)

    @cached_property
    def outlook(self) -> Outlook | None:
        """The calibrated model's view of the space; None where it cannot predict the objective."""
        try:
            return None if self.pricing is None else Outlook(self.run, self.pricing)
        except (NotEnough, MissingFactError):
            return None

    @cached_property
    def trials(self) -> dict[str, Any]:
        """The ended trials as the figures read them; see :func:`figures.trials`."""
        return figures.trials(self.run, self.frame, self.pricing)

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Parts of the listed successes' steps by the cost model; see :func:`figures.parts`."""
        assert self.validation is not None  # the section's condition
        ran = [t.number for t in ranked_trials(self.run) if t.number in self.listed]
        return figures.parts(self.validation, ran)

    @property
    def on_nodes(self) -> bool:
        """Whether it is known on which nodes trials ran."""
        return any(attempt.nodes for t in self.run.trials.values() for attempt in t.attempts)

    @cached_property
    def by_model(self) -> ModelSensitivity | None:
        """Drivers of the objective over the space; None where the model cannot tell."""
        try:
            return None if self.outlook is None else model_sensitivity(self.outlook)
        except NotEnough:
            return None

    @cached_property
    def by_trials(self) -> Account:
        """Drivers of the objective by the trials; beside the model only if the forest fits them."""
        found, refusal = self._account(objective_sensitivity)
        if self.by_model and found and found.oob_score < LOW_R2:
            refusal = (
                f"A random forest on the {found.total} successes explains too little to be shown "
                f"(out-of-bag R² = {found.oob_score:.2f}). More trials, farther apart, would help."
            )
            found = None
        return found, refusal

    @property
    def leading(self) -> Sensitivity | None:
        """Drivers of the objective by the model, else by the trials; None if neither can tell."""
        return self.by_model.found if self.by_model else self.by_trials[0]

    @cached_property
    def by_failures(self) -> Account:
        return self._account(failure_sensitivity)

    @cached_property
    def dependence(self) -> dict[str, Any]:
        """Effects of the leading parameters by their values; empty with fewer than two."""
        leading = self.leading
        return dependence(leading) if leading and len(leading.mean_abs) > 1 else {}

    @cached_property
    def interactions(self) -> list[tuple[str, str, float]]:
        """Pairs of leading parameters with the strength of their interaction, strongest first."""
        return interactions(self.leading) if self.leading else []

    @cached_property
    def border(self) -> dict[str, Any] | None:
        """The border between configurations that fit and others, by the model."""
        return memory_border(self.outlook) if self.outlook else None

    def _account(self, analyse: Callable[[pd.DataFrame], Sensitivity]) -> Account:
        """An analysis of the trials; inactive parameters have no effect of their own."""
        try:
            found = analyse(self.frame)
        except NotEnough as reason:
            return None, str(reason)
        return folded(found, self.pricing.space) if self.pricing else found, ""

    def html(self, template: str, **values: Any) -> Markup:
        """A template of ``templates/``; values are escaped unless they are markup."""
        return Markup(_TEMPLATES.get_template(template).render({**self._common, **values}))

    @cached_property
    def _common(self) -> dict[str, Any]:
        varied, fixed = tables.parameters(self.run)
        return {
            "content": self,
            "run": self.run,
            "home": self.home,
            "simulated": self.run.launcher == "simulate",
            "objective": self.objective,
            "more": [units.label(key) for key, _ in self.run.goals[1:]],
            "figures": lambda name: figures_named(name, self),
            "parameters": varied,
            "fixed": fixed,
            "metrics": tables.metric_columns(self.run, self.frame),
            "standard_errors": standard_errors(self.run),
        }


@dataclass(frozen=True)
class Section:
    title: str | Callable[[Content], str]  # its heading, or a function that gives it
    draw: Callable[[Content], str]  # gives its body as HTML; see ``Content.html``
    condition: Callable[[Content], bool] = lambda _: True  # whether the page of a run has it
    anchor: str = ""  # the target of links on the page
    data: Callable[[Content], Mapping[str, Any]] = lambda _: {}  # of its figures, by name
    figures: tuple[str, ...] = ()  # names of figures that it may have; see ``figures_named``

    def heading(self, content: Content) -> str:
        return self.title if isinstance(self.title, str) else self.title(content)


class Figure(NamedTuple):
    draw: str  # the function of the page's script
    of: str = ""  # which of several that this function draws
    unit: str = ""
    # options of each choice beside it, and the one that is chosen first
    choices: Mapping[str, tuple[Sequence[str], str]] = {}


def figures_named(name: str, content: Content) -> list[Figure]:
    """The figures of this name on the page of a run; none if it lacks what they show."""
    run, unit = content.run, units.unit_or_name(content.run.objective_key)
    match name:
        case "history":
            by = {"trials": True, "time": run.opened_t, "nodes": content.on_nodes}
            choices = {"by": ([option for option, told in by.items() if told], "trials")}
            return [Figure(name, choices=choices)] if run.ended else []
        case "effects":
            found = {"model": content.by_model, "trials": content.by_trials[0]}
            return [Figure(name, of, unit) for of in found if found[of]]
        case "dependence":
            names = list(content.dependence)
            first = content.interactions[0][:2] if content.interactions else names
            return _of_two(name, ("of", "by"), names, first, unit)
        case "failures":
            return [Figure("effects", "failure", "probability")] if content.by_failures[0] else []
        case "border":
            names = list(content.border["parameters"]) if content.border else []
            return _of_two(name, ("across", "up"), names, names)
        case "compare":
            names = [str(number) for number in content.parts["of"]]
            return _of_two(name, ("a", "b"), names, [*names[:1], *names[-1:]])
        case "stacks":
            return [Figure(name)] if ranked_trials(run) else []
        case "heat":  # it begins with the leading parameters
            varied = list(content.trials["parameters"])
            leading = [] if content.leading is None else list(content.leading.mean_abs.index)
            known = [each for each in leading[: figures.MAX_PARAMETERS] if each in varied]
            names = tables.parameters(run)[0]
            first = list(dict.fromkeys(known + varied)) or names
            return _of_two(name, ("across", "up"), names, 2 * first)
        case "slices":
            of = ["objective", *content.trials["metrics"]]
            return [Figure(name, choices={"of": (of, of[0])})]
    return [Figure(name)]


def _of_two(
    draw: str, keys: tuple[str, str], names: list[str], first: Sequence[str], unit: str = ""
) -> list[Figure]:
    """A figure of two of the ``names`` if there are as many; ``first`` are chosen first."""
    choices = {key: (names, name) for key, name in zip(keys, first, strict=False)}
    return [Figure(draw, "", unit, choices)] if len(names) > 1 else []
