"""Patterns that find metrics in logs, in a space or in a known trainer's record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from foundation.records import Described, Named, OneOf, OneOrSeveral, inline
from search_spaces.errors import SpaceError
from search_spaces.shipped import known_trainers
from slurm.logs.patterns import PAUSES, LogFormat, Pattern, Reduction

FormatName = Annotated[str, OneOf(known_trainers("log"))]
_PLACEHOLDERS = {
    # 1,234.5, 1.2e3, 34.5K
    "{number}": r"(?P<value>[\d.,]+(?:[eE][-+]?\d+)?(?:[KMGB](?![A-Za-z]))?)",
    # 3.21, 1.2E+01, without separators: a comma may follow
    "{decimal}": r"(?P<value>\d+\.?\d*(?:[eE][-+]?\d+)?)",
    # a progress bar's 1.25it/s, or 2.31s/it when a step takes longer than a second
    "{rate}": r"(?P<value>\d{1,6}\.?\d{0,4})\s?(?:it/s|s/it)\b",
    "{pauses}": PAUSES,
}


class PatternSpec(Described):
    """Finds one metric in the lines of a log."""

    _described_in = (Pattern,)

    regex: str
    unit: str | None = None
    scale: float = 1.0
    reduce: Reduction = "median"
    skip: int | None = Field(default=None, ge=0)
    since_start: bool = False
    whole: str = ""
    unless: str | None = None
    only_if: str = ""


class LikePattern(Described):
    """The patterns of another known trainer's log for the same metric."""

    like: FormatName


def _form(value: Any) -> str:
    shared = isinstance(value, LikePattern) or (isinstance(value, dict) and "like" in value)
    return "<like>" if shared else inline(value)


PatternsSpec = OneOrSeveral[
    Named[str, PatternSpec], Annotated[list[Named[str, PatternSpec]], Field(min_length=1)]
]


class TokenFacts(Described):
    """Keys that say which tokens a log counts."""

    _described_in = (LogFormat,)

    rows_vary: bool = False
    padded_by: str = ""
    real_if: str = ""


TOKEN_FACTS = tuple(TokenFacts.model_fields)


class ResultPatterns(TokenFacts):
    """Patterns for the logs of a trainer that writes no result."""

    format: str | None = None
    """of a well-known trainer's log: megatron-lm, torchtitan ..."""
    patterns: dict[str, PatternsSpec] = Field(default={})
    """result key: regular expression with the number in a group, a record, or a list of these, of
    which the first that matches counts; the metric is the median of the steps after the warm-up"""
    pauses: str | None = None
    """regular expression of lines, such as a checkpoint's: the next step's time does not count"""

    @model_validator(mode="after")
    def _some(self) -> ResultPatterns:
        if self.format is None and not self.patterns:
            raise ValueError("needs format or patterns")
        formats = known_trainers("log")
        if self.format is not None and self.format not in formats:
            raise ValueError(f"format: found {self.format}, accepted one of {', '.join(formats)}")
        return self

    def own_patterns(self) -> dict[str, list[Pattern]]:
        """The patterns that are stated here, without those of the format."""
        return {
            metric: [
                Pattern(one) if isinstance(one, str) else Pattern(**one.model_dump())
                for one in (specs if isinstance(specs, (list, tuple)) else [specs])
            ]
            for metric, specs in self.patterns.items()
        }


_RecordPattern = Annotated[
    Annotated[str, Tag("<name>")]
    | Annotated[PatternSpec, Tag("<inline>")]
    | Annotated[LikePattern, Tag("<like>")],
    Discriminator(_form),
]


class LogRecord(TokenFacts):
    """The log of a known trainer.

    In a regular expression ``{number}``, ``{decimal}`` and ``{rate}`` find a number, and ``{step}``
    the number of the step. A record covers several versions of its trainer, and forks: a metric's
    first pattern that matches counts. Units are read beside the numbers; ``unit`` and ``scale`` are
    for logs that print 2^30 bytes as ``GB``.
    """

    step: str = Field(default="", description="regular expression for which {step} stands")
    patterns: dict[str, list[_RecordPattern]] = Field(description="result key: patterns")
    pauses: str = "{pauses}"
    """lines after which the next step's time does not count; {pauses}: the usual lines"""

    def resolved(self, formats: Mapping[str, LogFormat]) -> ResultPatterns:
        """The same patterns in a space's form; some may be those of other known trainers' logs.

        Raises SpaceError if such a log has no patterns of the metric.
        """
        found: dict[str, PatternsSpec] = {
            metric: [one for spec in specs for one in self._filled(spec, metric, formats)]
            for metric, specs in self.patterns.items()
        }
        facts = {key: getattr(self, key) for key in TOKEN_FACTS}
        return ResultPatterns(patterns=found, pauses=self._text(self.pauses), **facts)

    def _filled(
        self, spec: str | PatternSpec | LikePattern, metric: str, formats: Mapping[str, LogFormat]
    ) -> Iterator[PatternSpec]:
        if isinstance(spec, LikePattern):
            known = formats[spec.like].patterns
            if metric not in known:
                raise SpaceError(
                    f"log.patterns.{metric}: found like: {spec.like}, which has patterns of "
                    f"{', '.join(known)}"
                )
            yield from (PatternSpec(**vars(one)) for one in known[metric])
        else:
            own = PatternSpec(regex=spec) if isinstance(spec, str) else spec
            yield own.model_copy(update={"regex": self._text(own.regex)})

    def _text(self, regex: str) -> str:
        for name, stands_for in {"{step}": self.step, **_PLACEHOLDERS}.items():
            regex = regex.replace(name, stands_for)
        return regex
