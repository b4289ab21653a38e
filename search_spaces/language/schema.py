"""The records of a space file, version 1: types, defaults and units of every key.

Validation is strict (``true`` is no number, ``"4"`` is text) and an unknown key is a mistake.
What one key alone cannot show (do the names in a constraint exist?) is checked in ``load``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from search_spaces.cluster import Cluster
from search_spaces.frameworks import FRAMEWORKS
from search_spaces.log_formats import LOG_FORMATS
from slurm import REDUCTIONS, LogFormat, Pattern
from trainer import ModelConfig, OptimizerConfig, Precision

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|h|d)")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_DURATION_S = 366 * 86400.0


def seconds(value: Any) -> float:
    """Seconds in ``90``, ``90s``, ``20m``, ``6h`` or ``2d``; raises ValueError."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        value = float(match[1]) * _UNIT_S[match[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("accepted a duration: seconds, or 90s, 20m, 6h, 2d")
    if not 0 < value <= _MAX_DURATION_S:
        raise ValueError("accepted a duration above zero, of a year at most")
    return float(value)


Duration = Annotated[
    float,
    BeforeValidator(seconds),
    WithJsonSchema(
        {
            "description": "seconds, or text such as 90s, 20m, 6h, 2d",
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?[smhd]$"},
            ],
        }
    ),
]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
Scalar = bool | int | float | str
FRAMEWORK_NAMES = tuple(FRAMEWORKS)
REDUCTION_NAMES = tuple(REDUCTIONS)
MAX_OBJECTIVES = 3  # a front of more is neither found in few trials nor looked at
Number = int | float


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelFile(ModelConfig):
    """A model: the trainer's record, and what it is called and where its shape is from."""

    name: str = ""
    source: str = ""

    def config(self) -> ModelConfig:
        return ModelConfig(**self.model_dump(exclude={"name", "source"}))


class Range(_Record):
    """From the first number to the last, which is included where a step lands on it."""

    range: list[Number] = Field(min_length=2, max_length=2)
    step: Number | None = Field(default=None, description="default 1, between whole numbers")


class Log2(_Record):
    """Powers of two from the first to the last, both included."""

    log2: list[int] = Field(min_length=2, max_length=2)


def _shape(value: Any) -> str:
    if isinstance(value, (dict, BaseModel)):
        log2 = "log2" in value if isinstance(value, dict) else isinstance(value, Log2)
        return "<log2>" if log2 else "<range>"
    return "<list>" if isinstance(value, (list, tuple)) else "<fixed>"


ParameterSpec = Annotated[
    Annotated[Range, Tag("<range>")]
    | Annotated[Log2, Tag("<log2>")]
    | Annotated[list[Scalar], Field(min_length=1), Tag("<list>")]
    | Annotated[Scalar, Tag("<fixed>")],
    Discriminator(_shape),
]


def _whole(value: Any) -> int:
    """Python takes true and 1.0 for equal to 1; a version is neither."""
    if type(value) is not int:
        raise ValueError("accepted 1")
    return value


def _inline(value: Any) -> str:
    return "<inline>" if isinstance(value, (dict, BaseModel)) else "<name>"


class BuiltinTrainer(_Record):
    """Settings of the built-in trainer that every trial shares (see ``trainer.config``)."""

    data: str = Field(
        min_length=1,
        description="prefix of an indexed token file, or python-source: the text of Python's own "
        "standard library, prepared when the search starts",
    )
    precision: Precision | None = None
    optimizer: OptimizerConfig | None = None
    seed: int | None = Field(default=None, ge=0)
    device: Literal["auto", "cpu", "cuda"] | None = None
    device_memory_bytes: int | None = Field(
        default=None, ge=1, description="memory limit per rank; default the device's own"
    )
    collective_timeout_s: float | None = Field(default=None, gt=0)
    time_communication: bool | None = Field(
        default=None, description="wait for every collective and report its time; slows training"
    )
    save: str | None = Field(
        default=None, description="folder for checkpoints, in the trial's own unless absolute"
    )
    save_interval: int | None = Field(
        default=None, ge=1, description="steps between checkpoints; default only at the end"
    )
    load: str | None = Field(
        default=None,
        description="folder with checkpoints of this model. An absolute path: every trial goes on "
        "from the latest; the same as save: a trial that is repeated goes on from its own",
    )


class PatternSpec(_Record):
    """Finds one figure in the lines of a log."""

    regex: str = Field(
        description="the number is its group 'value', or else its first one; 'step' is the step's"
    )
    unit: str | None = Field(
        default=None,
        description="of the number, as ms, GiB or K tokens/s; default what the log says beside it, "
        "or else the key's own; '' is always the key's own",
    )
    scale: float = Field(default=1.0, description="by which the number is multiplied")
    reduce: Literal[REDUCTION_NAMES] = Field(  # type: ignore[valid-type]
        default="median", description="how the steps' numbers become one"
    )
    skip: int | None = Field(
        default=None, ge=0, description="first matches that do not count; default warmup_steps"
    )

    def pattern(self) -> Pattern:
        return Pattern(**self.model_dump())


def _pattern(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "<several>"
    return "<record>" if isinstance(value, (dict, BaseModel)) else "<regex>"


_OnePattern = Annotated[
    Annotated[str, Tag("<regex>")] | Annotated[PatternSpec, Tag("<record>")],
    Discriminator(_pattern),
]
PatternsSpec = Annotated[
    Annotated[str, Tag("<regex>")]
    | Annotated[PatternSpec, Tag("<record>")]
    | Annotated[list[_OnePattern], Field(min_length=1), Tag("<several>")],
    Discriminator(_pattern),
]


class ResultPatterns(_Record):
    """How figures are found in the logs of a trainer that writes no result."""

    format: str | None = Field(
        default=None, description="of a well-known trainer's log: megatron-lm, torchtitan ..."
    )
    patterns: dict[str, PatternsSpec] = Field(
        default={},
        description="result key: regular expression with the number in a group, a record, or a "
        "list of them of which the first that is found counts; of the steps after the warm-up "
        "the median is taken",
    )
    pauses: str | None = Field(
        default=None,
        description="regular expression of lines after which a step's time does not count, as "
        "after a checkpoint",
    )

    @model_validator(mode="after")
    def _some(self) -> ResultPatterns:
        if self.format is None and not self.patterns:
            raise ValueError("needs format or patterns")
        if self.format is not None and self.format not in LOG_FORMATS:
            known = ", ".join(sorted(LOG_FORMATS))
            raise ValueError(f"format: found {self.format}, accepted one of {known}")
        return self

    def log_format(self) -> LogFormat:
        """The same for whoever reads logs."""
        known = LOG_FORMATS[self.format] if self.format else LogFormat()
        own = {key: [_as_pattern(s) for s in _each(spec)] for key, spec in self.patterns.items()}
        pauses = known.pauses if self.pauses is None else self.pauses
        return LogFormat({**known.patterns, **own}, pauses)


def _each(spec: Any) -> list[str | PatternSpec]:
    return list(spec) if isinstance(spec, (list, tuple)) else [spec]


def _as_pattern(spec: str | PatternSpec) -> Pattern:
    return Pattern(spec) if isinstance(spec, str) else spec.pattern()


class Flags(_Record):
    """Arguments that a command has in some configurations only."""

    when: str = Field(description="an expression, such as sequence_parallel or recompute == 'full'")
    args: list[str] = Field(min_length=1)


def _entry(value: Any) -> str:
    return "<flags>" if isinstance(value, (dict, BaseModel)) else "<argument>"


CommandEntry = Annotated[
    Annotated[str, Tag("<argument>")] | Annotated[Flags, Tag("<flags>")], Discriminator(_entry)
]


class ConfigFile(_Record):
    """A file that is written into a trial's folder before it starts."""

    base: str | None = Field(
        default=None, description="a file with everything else, beside the space or absolute"
    )
    content: dict[str, Any] | None = Field(default=None, description="the same, written out here")
    set: dict[str, Any] = Field(
        default={}, description="dotted path: value, in which {tp} and the like are replaced"
    )

    @model_validator(mode="after")
    def _one(self) -> ConfigFile:
        if self.base is not None and self.content is not None:
            raise ValueError("accepted one of: base, content")
        return self


class TrainerSpec(_Record):
    """What a trial runs: the built-in trainer, the user's own command, or an installed trainer."""

    builtin: BuiltinTrainer | None = None
    command: list[CommandEntry] | None = Field(
        default=None,
        min_length=1,
        description="argv of every rank, no shell reads it: {tp} and {dp // cp} are replaced, and "
        "{when: EXPRESSION, args: [...]} is there where the expression is true",
    )
    use: str | None = Field(default=None, min_length=1, description="name of an installed trainer")
    options: dict[str, Any] = Field(default={}, description="of the installed trainer")
    result: ResultPatterns | None = None
    files: dict[str, ConfigFile] = Field(
        default={}, description="JSON, YAML or TOML files of a command, by their name in the folder"
    )
    env: dict[VariableName, str] = Field(default={}, description="environment of every rank")
    framework: Literal[FRAMEWORK_NAMES] | None = Field(  # type: ignore[valid-type]
        default=None,
        description="whose habits the cost model assumes for a command; default megatron-lm",
    )
    axes: list[Identifier] = Field(
        default=[],
        description="parameters that are further parallel axes of a command, innermost first, "
        "between tp and dp: the ranks are the product of all axes",
    )

    @model_validator(mode="after")
    def _one(self) -> TrainerSpec:
        if [self.builtin, self.command, self.use].count(None) != 2:
            raise ValueError("accepted exactly one of: builtin, command, use")
        if self.options and self.use is None:
            raise ValueError("'options' goes with 'use'")
        if self.framework is not None and self.command is None:
            raise ValueError("'framework' goes with 'command'; the built-in trainer is known")
        if self.axes and self.command is None:
            raise ValueError("'axes' goes with 'command'; the built-in trainer has tp, dp and pp")
        if self.files and self.command is None:
            raise ValueError("'files' goes with 'command'")
        if self.result is not None and self.command is None:
            raise ValueError("'result' goes with 'command'; the built-in trainer writes its own")
        return self


class ObjectiveSpec(_Record):
    """``maximize: KEY`` or ``minimize: KEY``: a number of the trainer's result, dots reach inside;
    or ``num_nodes``, ``node_seconds_per_token``, ``joules_per_token``, which follow from it.
    """

    maximize: str | None = Field(default=None, min_length=1)
    minimize: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one(self) -> ObjectiveSpec:
        if (self.maximize is None) == (self.minimize is None):
            raise ValueError(
                "accepted exactly one of: maximize, minimize; several objectives are a list of such"
            )
        return self

    @property
    def key(self) -> str:
        return self.maximize or self.minimize or ""

    @property
    def is_maximized(self) -> bool:
        return self.maximize is not None


def _objectives(value: Any) -> str:
    return "<several>" if isinstance(value, (list, tuple)) else "<one>"


Objectives = Annotated[
    Annotated[ObjectiveSpec, Tag("<one>")]
    | Annotated[
        list[ObjectiveSpec], Field(min_length=2, max_length=MAX_OBJECTIVES), Tag("<several>")
    ],
    Discriminator(_objectives),
]


class TrialSection(_Record):
    """How long one trial is."""

    warmup_steps: int = Field(default=2, ge=0)
    measured_steps: int = Field(default=5, ge=1)
    timeout_s: Duration = Field(
        default=1200.0, alias="timeout", description="a trial is ended after so long"
    )
    no_progress_timeout_s: Duration | None = Field(
        default=None,
        alias="no_progress_timeout",
        description="a trial is ended when its logs did not grow for so long; default: never",
    )
    early_stop: bool = Field(
        default=True,
        description="a trial is stopped when its steps so far are slower than the best's by more "
        "than noise explains",
    )


class BudgetSection(_Record):
    """When the search ends: at whichever limit comes first. It may be raised later."""

    trials: int | None = Field(default=None, ge=1)
    wall_time_s: Duration | None = Field(default=None, alias="wall_time")
    node_hours: float | None = Field(default=None, gt=0)
    expected_gain: float = Field(
        default=0.01,
        ge=0,
        lt=1,
        description="the search ends once the cost model expects another batch to gain less than "
        "this share of the best; 0: never",
    )


class FinalistsSection(_Record):
    """The leading configurations are measured again when the search ends by itself."""

    confidence: float = Field(
        default=0.9, gt=0.5, lt=1.0, description="probability at which the winner is settled"
    )
    max_repeats: int = Field(default=6, ge=0, description="of all trials together; 0: none")


def _finalists(value: Any) -> Any:
    if isinstance(value, bool):
        return {} if value else {"max_repeats": 0}
    return value


class SpaceFile(_Record):
    """A search space: what may be tried, how a trial is run, and what is sought."""

    version: Annotated[Literal[1], BeforeValidator(_whole)] = Field(description="of this format")
    name: str = Field(default="", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$|^$", max_length=100)
    description: str = ""
    model: (
        Annotated[
            Annotated[str, Tag("<name>")] | Annotated[ModelFile, Tag("<inline>")],
            Discriminator(_inline),
        ]
        | None
    ) = Field(default=None, description="a shipped model, a file (*.yaml), or its record")
    cluster: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[Cluster, Tag("<inline>")],
        Discriminator(_inline),
    ] = Field(description="a shipped cluster, a file (*.yaml), or its record")
    trainer: TrainerSpec
    parameters: dict[Identifier, ParameterSpec] = Field(min_length=1, max_length=30)
    conditions: dict[Identifier, str] = Field(
        default={}, description="parameter: where it matters; elsewhere it is left out"
    )
    constraints: list[str] = Field(
        default=[], max_length=100, description="what every configuration must satisfy"
    )
    objective: Objectives = Field(
        description="what is sought: one figure, or a list of two or three for a Pareto front"
    )
    trial: TrialSection = TrialSection()
    budget: BudgetSection = BudgetSection()
    finalists: Annotated[
        FinalistsSection,
        BeforeValidator(_finalists),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, FinalistsSection.model_json_schema()]}),
    ] = FinalistsSection()
    failure_penalty: Literal["min", "mean", "ignore"] = Field(
        default="min",
        description="what the optimizer is told of a failure: the worst objective so far, the "
        "mean, or nothing",
    )
    allow: list[Literal["tp_across_nodes", "uneven_layers"]] = Field(
        default=[],
        description="built-in rules that are switched off: tp within a node; the same number of "
        "layers on every pipeline stage (of one's own trainer only)",
    )


def json_schema() -> dict[str, Any]:
    """JSON Schema of a space file, for editors."""
    schema = SpaceFile.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
