"""The records of a space file, version 1: types, defaults and units of every key.

Validation is strict (``true`` is no number, ``"4"`` is text) and an unknown key is a mistake.
Checks that need several keys (do the names in a constraint exist?) are in ``builder``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from foundation.messages import closest
from foundation.records import Described, Named, OneOrSeveral, inline
from foundation.values import Duration, Identifier, Number, Scalar
from search_spaces.cluster import Cluster
from search_spaces.language.model import ModelShape
from search_spaces.language.trainer_schema import TrainerSpec
from trainer.plan.limits import MAX_GPUS_PER_NODE
from trainer.plan.model import ModelConfig

MAX_OBJECTIVES = 3  # few trials cannot find a front in more dimensions


def _scalar(value: Any) -> Any:
    if not isinstance(value, Scalar):
        raise PydanticCustomError("scalar_type", "no scalar")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, Number):
        raise PydanticCustomError("float_type", "no number")
    return value


# One error for a mistake, not one per member.
_One = Annotated[Scalar, BeforeValidator(_scalar)]
_Number = Annotated[Number, BeforeValidator(_number)]


class ModelFile(ModelShape):
    """A model: its shape, its name and its source."""

    name: str = ""
    source: str = ""

    def config(self) -> ModelConfig:
        """The built-in trainer's record of a model that it can train; else the whole shape."""
        record = ModelShape if self.beyond_trainer else ModelConfig
        return record(**self.model_dump(include=set(record.model_fields)))


class BasedModel(Described):
    """A named model, trained on sequences of another length."""

    base: str = Field(description="a shipped model, or a file (*.yaml, config.json)")
    seq_length: int | None = Field(default=None, ge=1, le=1_000_000_000)


class Range(Described):
    """Numbers from the first to the last, which is included if a step lands on it."""

    range: list[_Number] = Field(min_length=2, max_length=2)
    step: _Number | None = Field(default=None, description="default 1, between whole numbers")


class Log2(Described):
    """Powers of two from the first to the last, both included."""

    log2: list[int] = Field(min_length=2, max_length=2)


class Float(Described):
    """Any number from the first to the last."""

    ends: list[_Number] = Field(alias="float", min_length=2, max_length=2)
    log: bool = Field(default=False, description="evenly by the logarithm, as a learning rate")


class Int(Described):
    """Any whole number from the first to the last, as a continuous parameter."""

    ends: list[int] = Field(alias="int", min_length=2, max_length=2)
    log: bool = Field(default=False, description="evenly by the logarithm")


class Ordered(Described):
    """Words in ascending order."""

    ordered: list[str] = Field(min_length=1)


class Categories(Described):
    """Values without an order, such as numbers that are mere names."""

    categories: list[_One] = Field(min_length=1)


_MAPPINGS: dict[str, type[Described]] = {
    "range": Range,
    "log2": Log2,
    "float": Float,
    "int": Int,
    "ordered": Ordered,
    "categories": Categories,
}


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        known = (key for key in _MAPPINGS if key in value)
        meant = (near for key in value if (near := closest(str(key), _MAPPINGS)))
        return f"<{next(known, None) or next(meant, 'list')}>"
    if isinstance(value, BaseModel):
        return next(f"<{key}>" for key, record in _MAPPINGS.items() if isinstance(value, record))
    return "<list>" if isinstance(value, (list, tuple)) else "<fixed>"


ParameterSpec = Annotated[
    Annotated[Range, Tag("<range>")]
    | Annotated[Log2, Tag("<log2>")]
    | Annotated[Float, Tag("<float>")]
    | Annotated[Int, Tag("<int>")]
    | Annotated[Ordered, Tag("<ordered>")]
    | Annotated[Categories, Tag("<categories>")]
    | Annotated[list[_One], Field(min_length=1), Tag("<list>")]
    | Annotated[_One, Tag("<fixed>")],
    Discriminator(_shape),
]


def _whole(value: Any) -> int:
    """A version: in Python true and 1.0 equal 1, but they are refused."""
    if type(value) is not int:
        raise ValueError("accepted 1")
    return value


def _model(value: Any) -> str:
    based = isinstance(value, BasedModel) or (isinstance(value, dict) and "base" in value)
    return "<based>" if based else inline(value)


Model = Annotated[
    Annotated[str, Tag("<name>")]
    | Annotated[BasedModel, Tag("<based>")]
    | Annotated[ModelFile, Tag("<inline>")],
    Discriminator(_model),
]


class ObjectiveSpec(Described):
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


Objectives = OneOrSeveral[
    ObjectiveSpec, Annotated[list[ObjectiveSpec], Field(min_length=2, max_length=MAX_OBJECTIVES)]
]


class TrialSection(Described):
    """Length and limits of a trial."""

    warmup_steps: int = Field(default=2, ge=0, description="first steps, which are not measured")
    measured_steps: int = Field(default=5, ge=1, description="steps after the warm-up")
    timeout_s: Duration = Field(default=1200.0, alias="timeout")
    """a trial is ended after this time"""
    no_progress_timeout_s: Duration | None = Field(default=None, alias="no_progress_timeout")
    """a trial is ended when its logs have not grown for this time; default: never"""
    ranks_per_node: int | None = Field(default=None, ge=1, le=MAX_GPUS_PER_NODE)
    """processes of a trial on each node; default one for each of the cluster's GPUs, or 1 without a
    cluster. With a cluster, 1 is for a program that starts the others itself, as verl does; the
    cost model does not price it"""
    early_stop: bool = True
    """a trial is stopped when its steps so far are slower than the best's by more than noise
    explains"""

    @property
    def steps(self) -> int:
        return self.warmup_steps + self.measured_steps


class BudgetSection(Described):
    """Limits of the search; it ends at the first that is reached. They can be raised later."""

    trials: int | None = Field(default=None, ge=1)
    """in all, over all sessions of the run"""
    wall_time_s: Duration | None = Field(default=None, alias="wall_time")
    """of the search, over all its sessions"""
    node_hours: float | None = Field(default=None, gt=0)
    """of all trials: time of each multiplied by its nodes"""
    expected_gain: float = Field(default=0.01, ge=0, lt=1)
    """the search ends once the cost model has expected, three times in a row, that another batch
    gains less than this share of the best; 0: never"""
    explore: float = Field(default=0.0, ge=0, lt=1)
    """share of the trials that are chosen to learn which parameters drive the objective"""
    probes: Annotated[int, Field(ge=0)] | Literal["auto"] = 0
    """short trials of a shallower model, before the others, from which the cost model learns how
    this trainer behaves on this machine; auto: 4, or 1 and each further unpriced value, if cheaper
    than a trial"""


class FinalistsSection(Described):
    """Repeated measurements of the leading configurations once the search ends by itself."""

    confidence: float = Field(default=0.9, gt=0.5, lt=1.0)
    """probability of being the best at which the winner is settled"""
    max_repeats: int = Field(default=6, ge=0, description="of all trials together; 0: none")


def _finalists(value: Any) -> Any:
    if isinstance(value, bool):
        return {} if value else {"max_repeats": 0}
    return value


class TuningSection(Described):
    """Fine-tuning: what is trained, and beside what. Each key is a parameter with that value, or a
    list of values, which trainers get under the names ``tuning``, ``lora_rank`` ...
    """

    method: ParameterSpec = Field(default="full", description="full, lora or qlora")
    rank: ParameterSpec | None = None
    """inner size of an adapter"""
    targets: ParameterSpec | None = None
    """linear (all matrices of a layer), attention, or qv"""
    dropout: ParameterSpec | None = None
    """of an adapter's inputs"""
    packing: ParameterSpec | None = None
    """several rows in one sequence"""
    reference: ParameterSpec | None = None
    """a reference model, as DPO has it"""

    def parameters(self) -> dict[str, Any]:
        names = {"rank": "lora_rank", "targets": "lora_targets", "dropout": "lora_dropout"}
        names |= {"method": "tuning", "packing": "packing", "reference": "reference_model"}
        given = {key: getattr(self, key) for key in type(self).model_fields}
        return {names[key]: value for key, value in given.items() if value is not None}


class SpaceFile(Described):
    """A search space: parameters and their rules, how a trial runs, and the objective."""

    version: Annotated[Literal[1], BeforeValidator(_whole)] = Field(description="of the format")
    name: str = Field(default="", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$|^$", max_length=100)
    """of the run's folder; default: the file's name"""
    description: str = ""
    model: Model | None = None
    """a shipped model, a file (*.yaml, or Hugging Face's config.json), or its record; or a mapping
    with one of the first two as base, and a seq_length"""
    cluster: Named[str, Cluster] | None = None
    """a shipped cluster, a file (*.yaml), or its record; without it a trainer of your own has one
    process per node, and the cost model prices nothing"""
    trainer: TrainerSpec
    parameters: dict[Identifier, ParameterSpec] = Field(min_length=1, max_length=40)
    """parameter: its values, or one fixed value"""
    tuning: TuningSection | None = None
    """what a fine-tuning job trains; default: all weights"""
    conditions: dict[Identifier, str] = Field(default={})
    """parameter: the condition under which it matters; otherwise it is left out"""
    constraints: list[str] = Field(default=[], max_length=100)
    """expressions that every configuration must satisfy"""
    objective: Objectives
    """one metric, or a list of two or three for a Pareto front"""
    subject_to: list[str] = Field(default=[], max_length=20)
    """bounds on measured values of the best: ``val_loss < 2.1``, ``peak_memory_bytes < 70 GiB``"""
    trial: TrialSection = TrialSection()
    budget: BudgetSection = BudgetSection()
    finalists: Annotated[
        FinalistsSection,
        BeforeValidator(_finalists),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, FinalistsSection.model_json_schema()]}),
    ] = FinalistsSection()
    failure_penalty: Literal["min", "mean", "ignore"] = "min"
    """value that the optimizer gets for a failure: the worst objective so far, the mean, or
    nothing"""
    allow: list[Literal["tp_across_nodes", "uneven_layers"]] = Field(default=[])
    """built-in rules that are switched off: tp within a node; the same number of layers on every
    pipeline stage (of one's own trainer only)"""


def json_schema() -> dict[str, Any]:
    """JSON Schema of a space file, for editors."""
    schema = SpaceFile.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
