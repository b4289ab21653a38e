"""Container runtimes: from an image to srun's options, or to a wrapper around each rank's command.

A runtime is a record, ``runtimes/*.yaml``. If srun itself starts the container, the agents run in
it, by the image's Python; otherwise they stay outside, and start the wrapper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field

from foundation.container import Container, Mount
from foundation.documents import read_document
from foundation.files import FileError
from foundation.messages import shown
from foundation.records import Named, OneOrSeveral, Record, validate
from slurm import agent
from slurm.launcher import LauncherError
from slurm.trial import TrialSpec, rank_environment, rendezvous_environment

FILE_NAME = "container.toml"
PYTHON = "python3"  # of an image, for the agent
_SHIPPED = Path(__file__).with_name("runtimes")
# Variables of the driver's own Python, and of the libraries that its modules load.
_OF_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX")
_OF_LOADER = ("LD_LIBRARY_PATH", "LD_PRELOAD")


class RuntimeRecordError(LauncherError, FileError):
    """A runtime's record that cannot be used."""


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"accepted a regular expression ({error})") from None
    return text


_PLACEHOLDERS = {
    *("image", "workdir", "file", "mounts", "mount", "names", "name", "value", "options")
}


def _template(text: str) -> str:
    try:
        names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise ValueError(f"accepted text with {{image}} and the like ({error})") from None
    if unknown := names - _PLACEHOLDERS:
        raise ValueError(
            f"unknown placeholder {{{min(unknown)}}}, accepted: {', '.join(sorted(_PLACEHOLDERS))}"
        )
    return text


Template = Annotated[str, AfterValidator(_template)]


class Failure(Record):
    """Message of a runtime that could not start a container; the configuration is not to blame."""

    text: Annotated[str, AfterValidator(_regex)]
    remedy: str


class WrapperOptions(Record):
    """Options of a wrapper in launch scripts; any other option takes the word after it."""

    image: list[str] = Field(default=[])
    mounts: list[str] = Field(default=[])
    workdir: list[str] = Field(default=[])
    alone: list[str] = Field(default=[])  # without a value


class Runtime(Record):
    """How one program starts containers.

    ``words`` and ``file`` may have ``{image}``, ``{workdir}``, ``{file}``, and all ``{mounts}`` and
    ``{names}`` of variables, with commas. An entry with ``{mount}``, or ``{name}`` and ``{value}``,
    is repeated for each mount or variable; ``{options}`` are the site's.
    """

    source: str  # where these facts are from
    place: Literal["srun", "command"]  # options of srun, or a wrapper around the rank's command
    words: list[OneOrSeveral[Template, list[Template]]] = Field(min_length=1)
    registry_sign: str = "/"  # between a registry and an image's name
    reference: Template = "{image}"  # of an image in a registry
    prepare: Template = ""  # to be run once, lest each trial fetch the image
    file: dict[str, Template | list[Template] | dict[Template, Template]] | None = (
        None  # content of a TOML file that describes the container
    )
    base: str = ""  # key there for an image's file of the same kind, in place of ``image``
    variable: Template = (
        "{name}"  # name under which a variable reaches the rank even if the image sets it
    )
    own_mounts: bool = True  # false: the site mounts its shared file systems in every container
    spoken: WrapperOptions = WrapperOptions()
    exit_codes: list[int] = Field(default=[])  # of a wrapper's own failures; none: any
    failures: list[Failure] = Field(default=[])

    @property
    def inside(self) -> bool:
        """Whether a step's tasks, and so the agents, start in the container."""
        return self.place == "srun"

    def texts(
        self, exit_code: int | None, *, started: bool
    ) -> tuple[tuple[re.Pattern[str], str], ...]:
        """Patterns of failed starts, each with its remedy; none if the container has started.

        ``started``: all agents have sent hello. ``exit_code``: of the first rank that failed.
        """
        own = not self.exit_codes or exit_code in (None, *self.exit_codes)
        if (started and self.inside) or not own:
            return ()
        return tuple((re.compile(each.text, re.MULTILINE), each.remedy) for each in self.failures)

    def named(self, container: Container) -> str:
        """The image as this runtime names it."""
        name = container.image
        if container.file is not None:
            return name
        if container.registry:
            rest = name[len(container.registry) + 1 :]
            name = f"{container.registry}{self.registry_sign}{rest}"
        return self.reference.format(image=name)

    @staticmethod
    def shipped() -> list[str]:
        return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))

    @classmethod
    def load(cls, reference: str) -> Self:
        """Read a shipped record by its name, or a YAML file by its absolute path.

        Raises RuntimeRecordError if there is none, or it is wrong.
        """
        shipped = reference in cls.shipped()
        path = _SHIPPED / f"{reference}.yaml" if shipped else Path(reference)
        return validate(cls, read_document(path, RuntimeRecordError))


def _runtime(text: str) -> str:
    if text not in Runtime.shipped() and not (text.startswith("/") and text.endswith(".yaml")):
        names = ", ".join(Runtime.shipped())
        raise ValueError(f"accepted {names}, or the absolute path of a record of your own (*.yaml)")
    return text


RuntimeName = Annotated[str, AfterValidator(_runtime)]


class Containers(Record):
    """Settings of one site for containers."""

    runtime: RuntimeName
    options: list[str] = Field(default=[], max_length=100)  # further options, such as --nv
    mounts: list[Mount] = Field(default=[], max_length=100)  # in every container
    modules: list[str] = Field(default=[], max_length=100)  # for trials in containers


def _of_runtime(value: Any) -> Any:
    return Containers(runtime=value) if isinstance(value, str) else value


# A profile may have a runtime's name or Containers; it is read as Containers.
if TYPE_CHECKING:
    ContainersOrRuntime = Containers
else:
    ContainersOrRuntime = Annotated[Named[RuntimeName, Containers], AfterValidator(_of_runtime)]


@dataclass(frozen=True)
class ContainerLine:
    """The words that start one container for a trial's ranks, and the file that they name."""

    runtime: Runtime
    words: tuple[str, ...]
    file: str  # text; empty: there is none


def container_line(
    spec: TrialSpec, containers: Containers, site_env: Mapping[str, str]
) -> ContainerLine:
    """The words for a trial that has a container; pure, but for a look whether folders exist."""
    assert spec.container is not None
    runtime = Runtime.load(containers.runtime)
    env = variables(spec, site_env)
    names = list(dict.fromkeys([*env, "OMP_NUM_THREADS"]))
    if not runtime.inside:  # otherwise the agents set them, in the container
        names += [*rendezvous_environment(spec, ""), *rank_environment(0, 0, 0)]
    values: dict[str, Any] = {
        "image": runtime.named(spec.container),
        "workdir": str(spec.started_in),
        "file": str(spec.directory / FILE_NAME),
        "mounts": _mounts(spec, containers, runtime),
        "env": env,
        "names": names,
        "options": containers.options,
    }
    text = ""
    if runtime.file is not None:
        content = dict(runtime.file)
        if runtime.base and values["image"].endswith(".toml"):
            content = {runtime.base: content.pop("image"), **content}
        text = _toml(content, values)
    words = [word for each in runtime.words for word in _filled(each, values)]
    return ContainerLine(runtime, tuple(words), text)


def check_image(container: Container, containers: Containers) -> None:
    """Raise LauncherError if the runtime's record is wrong, or the image's file is missing."""
    Runtime.load(containers.runtime)
    if container.file is not None and not container.file.exists():
        raise LauncherError(
            f"trainer.container: there is no image {shown(container.file)} on this machine; give "
            "its path on a file system that the nodes share"
        )


def without_the_drivers_own(environ: Mapping[str, str], *, inside: bool) -> dict[str, str]:
    """The environment without what belongs to the driver's Python, which no image has."""
    dropped = {*_OF_PYTHON, *(_OF_LOADER if inside else ())}
    return {name: value for name, value in environ.items() if name not in dropped}


def variables(spec: TrialSpec, site_env: Mapping[str, str]) -> dict[str, str]:
    """Variables of ours that override the image's."""
    return {"PYTHONUNBUFFERED": "1", **site_env, **spec.env}


def _mounts(spec: TrialSpec, containers: Containers, runtime: Runtime) -> list[str]:
    """The user's mounts, the site's, and ours at places that none of these use."""
    assert spec.container is not None
    mounts = [*spec.container.mounts, *containers.mounts]
    if not runtime.own_mounts:
        return mounts
    own = [(str(spec.directory.parent), "")]
    if spec.workdir is not None and spec.workdir.is_dir():
        own.append((str(spec.workdir), ""))
    if runtime.inside:
        own.append((str(Path(agent.__file__).parent), ":ro"))
    taken = {mount.split(":")[1] for mount in mounts}
    return mounts + [f"{path}:{path}{flag}" for path, flag in own if path not in taken]


def _filled(template: str | Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Words of one entry of a record; a list of words is repeated for each mount or variable."""
    words = [template] if isinstance(template, str) else list(template)
    text = " ".join(words)
    if text == "{options}":
        return list(values["options"])
    return [word.format(**one) for one in _each(text, values) for word in words]


def _each(text: str, values: Mapping[str, Any]) -> Iterable[dict[str, str]]:
    """The values of one entry, once for each mount or variable that it names."""
    common = {key: v for key, v in values.items() if isinstance(v, str)}
    common |= {key: ",".join(values[key]) for key in ("mounts", "names")}
    if "{mount}" in text:
        return [{**common, "mount": mount} for mount in values["mounts"]]
    if "{value}" in text:
        return [{**common, "name": name, "value": v} for name, v in values["env"].items()]
    if "{name}" in text:
        return [{**common, "name": name} for name in values["names"]]
    return [common]


def _toml(content: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """A file's keys and tables as TOML."""
    import tomli_w  # rarely needed

    found: dict[str, Any] = {}
    for key, template in content.items():
        if isinstance(template, dict):
            [(name, value)] = template.items()
            words = _filled([name, value], values)
            found[key] = dict(zip(words[::2], words[1::2], strict=True))
        else:
            filled = _filled(template, values)
            found[key] = filled if isinstance(template, list) else filled[0]
    text: str = tomli_w.dumps(found)
    return text
