"""The ``trainer`` section of a space file: what a trial runs, and how its metrics are found."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, model_validator

from foundation.records import Record
from foundation.values import Identifier, VariableName
from search_spaces.language.log_schema import ResultPatterns
from search_spaces.shipped import known_trainers
from slurm import parsed_python
from trainer.plan.axes import FURTHER_AXES
from trainer.plan.config import Precision
from trainer.plan.loss_tokens import Documents, Goldfish
from trainer.plan.optimizer import LRScheduler, OptimizerConfig
from trainer.plan.output import Metrics, Validation

ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=200)]


class BuiltinTrainer(Record):
    """Settings of the built-in trainer that every trial shares (see ``trainer.plan.config``)."""

    data: str = Field(
        min_length=1,
        description="prefix of an indexed token file, or python-source: the text of Python's own "
        "standard library, prepared when the search starts",
    )
    precision: Precision | None = None
    optimizer: OptimizerConfig | None = None
    lr_scheduler: LRScheduler | None = Field(
        default=None, description="the learning rate over the steps; default constant"
    )
    documents: Documents | None = Field(
        default=None, description="heed the boundaries of documents within samples"
    )
    loss_mask: str | None = Field(
        default=None,
        min_length=1,
        description="prefix of an indexed file as long as data: 0 for tokens outside of the loss",
    )
    goldfish: Goldfish | None = Field(
        default=None, description="leave tokens out of the loss, against memorizing them"
    )
    validation: Validation | None = Field(
        default=None, description="loss on held-out data while a trial runs; between steps"
    )
    metrics: Metrics | None = Field(
        default=None, description="figures of single steps in a file of the trial's folder"
    )
    seed: int | None = Field(default=None, ge=0)
    device: Literal["auto", "cpu", "cuda"] | None = None
    device_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        description="limit per rank on what torch's allocator reserves of the device, on a CPU on "
        "private memory; default the device's own",
    )
    ddp_bucket_size: int | None = Field(
        default=None,
        ge=1,
        description="parameters whose gradients are reduced at once, with ZeRO 0 to 2",
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
    async_save: bool | None = Field(
        default=None, description="write checkpoints while training goes on; default false"
    )
    load: str | None = Field(
        default=None,
        description="folder with checkpoints of this model. An absolute path: every trial goes on "
        "from the latest; the same as save: a trial that is repeated goes on from its own",
    )
    initial_load_path: str | None = Field(
        default=None, description="folder of Hugging Face weights to begin from"
    )
    last_save_in_hf: bool | None = Field(
        default=None, description="at the end also write the weights so, as hf in the folder save"
    )

    @property
    def splits_samples(self) -> bool:
        """Whether documents within a sample are told apart."""
        return self.documents is not None and self.documents.splits_samples


class Flags(Record):
    """Arguments that a command has in some configurations only."""

    when: str = Field(description="an expression, such as sequence_parallel or recompute == 'full'")
    args: list[str] = Field(min_length=1)


def _entry(value: Any) -> str:
    return "<flags>" if isinstance(value, (dict, BaseModel)) else "<argument>"


CommandEntry = Annotated[
    Annotated[str, Tag("<argument>")] | Annotated[Flags, Tag("<flags>")], Discriminator(_entry)
]


_CONTINUED = re.compile(r"\\\n|\\\s+(?=-|$)")  # YAML's ">" makes a space of the line's end


def _arguments(value: Any) -> Any:
    """A command line as one text, as in a shell; numbers need no quotes."""
    if isinstance(value, str):
        try:
            return shlex.split(_CONTINUED.sub(" ", value), comments=True)
        except ValueError as error:
            raise ValueError(f"accepted a command line ({error})") from None
    if isinstance(value, (list, tuple)):
        return [str(v) if type(v) in (int, float) else v for v in value]
    return value


class FileCase(Record):
    """What a file has in some configurations only."""

    when: str = Field(description="an expression, such as recompute == 'full'")
    set: dict[str, Any] = Field(min_length=1)


class ConfigFile(Record):
    """A file that is written into a trial's folder before it starts."""

    base: str | None = Field(
        default=None, description="a file with everything else, beside the space or absolute"
    )
    content: dict[str, Any] | None = Field(default=None, description="the same, written out here")
    set: dict[str, Any] = Field(
        default={}, description="dotted path: value, in which {tp} and the like are replaced"
    )
    cases: list[FileCase] = Field(default=[], description="further ones, where 'when' is true")

    @model_validator(mode="after")
    def _one(self) -> ConfigFile:
        if self.base is not None and self.content is not None:
            raise ValueError("accepted one of: base, content")
        return self


def _is_python(command: Sequence[str | Flags]) -> bool:
    """Whether its ranks can be forked from a process of Python's."""
    return parsed_python([entry for entry in command if isinstance(entry, str)]) is not None


class TrainerSpec(Record):
    """What a trial runs: the built-in trainer, a well-known one, the user's own command, or an
    installed trainer.
    """

    builtin: BuiltinTrainer | None = None
    adapter: str | None = Field(
        default=None, min_length=1, description="a well-known trainer, or a file (*.yaml) of one"
    )
    entry: str | None = Field(
        default=None, min_length=1, description="the script that the adapter's trainer starts"
    )
    args: Annotated[list[CommandEntry], BeforeValidator(_arguments)] = Field(
        default=[], description="its further arguments: a list, or a command line as one text"
    )
    config: str | None = Field(
        default=None, min_length=1, description="the configuration file of the adapter's trainer"
    )
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
    env: dict[VariableName, str] = Field(
        default={}, description="environment of every rank, in which {tp} and the like are replaced"
    )
    workdir: str | None = Field(
        default=None,
        min_length=1,
        description="folder in which every rank is started, beside the space or absolute; default "
        "the trial's own. Results, files and logs stay in that: {trial_dir}, MESHTUNE_TRIAL_DIR",
    )
    preload: list[ModuleName] | None = Field(
        default=None,
        description="modules that are imported once for many trials, as torch: srun's processes "
        "outlive a trial and fork the next one's ranks; default: once starting takes longer than "
        "the steps the built-in trainer's own, for a command none; []: never",
    )
    framework: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9.-]{0,39}$",
        description="whose habits the cost model assumes for a command "
        f"({', '.join(known_trainers('habits'))}; those of any other the search infers); default "
        "megatron-lm",
    )
    axes: list[Identifier] = Field(
        default=[],
        description="parameters that are further parallel axes of a command, innermost first, "
        "between tp and dp: the ranks are the product of all axes",
    )

    @model_validator(mode="after")
    def _one(self) -> TrainerSpec:
        if [self.builtin, self.adapter, self.command, self.use].count(None) != 3:
            raise ValueError("accepted exactly one of: builtin, adapter, command, use")
        for name in ("entry", "args", "config"):
            if getattr(self, name) and self.adapter is None:
                raise ValueError(f"'{name}' goes with 'adapter'")
        if self.workdir is not None and self.builtin is not None:
            raise ValueError("'workdir' goes with a trainer of your own")
        if self.options and self.use is None:
            raise ValueError("'options' goes with 'use'")
        own = self.command is not None or self.adapter is not None
        if self.framework is not None and not own:
            raise ValueError("'framework' goes with 'command'; the built-in trainer is known")
        if self.axes and not own and (self.builtin is None or not {*self.axes} <= {*FURTHER_AXES}):
            raise ValueError("'axes' goes with 'command'; the built-in trainer has its own")
        if self.files and not own:
            raise ValueError("'files' goes with 'command'")
        if self.preload and self.command and not _is_python(self.command):
            raise ValueError(
                "'preload' goes with a command that starts with python, then a script, -m or -c: "
                f"found {self.command[0]}"
            )
        if self.result is not None and not own:
            raise ValueError("'result' goes with 'command'; the built-in trainer writes its own")
        return self
