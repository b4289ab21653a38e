"""Site profiles: how ranks are started on a machine according to its guide, as typed YAML."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from foundation.container import Container
from foundation.documents import read_document
from foundation.files import FileError, open_regular
from foundation.messages import shown
from foundation.records import Record, validate
from foundation.values import VariableName
from slurm.launcher import LauncherError
from slurm.srun.containers import Containers, ContainersOrRuntime, Runtime, WrapperOptions


def _option(text: str) -> str:
    if not re.fullmatch(r"--?[A-Za-z]\S*", text):
        raise ValueError("accepted one option, such as --exclusive or --partition=batch")
    return text


def _of_srun(text: str) -> str:
    name = text.lstrip("-").partition("=")[0]
    ours = [option for option in _OUR_STREAMS if option.startswith(name)]
    if ours and (text.startswith("--") or name in ("e", "i", "l", "o")):
        raise ValueError(f"accepted no --{ours[0]}: agents speak over the streams of srun")
    return text


_OUR_STREAMS = ("label", "output", "error", "input", "pty", "multi-prog")
Option = Annotated[str, AfterValidator(_option)]
SrunOption = Annotated[Option, AfterValidator(_of_srun)]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\n]*[^/\n]$", max_length=4096)]

_SHIPPED = Path(__file__).with_name("sites")
_REMEDY = "make it with `conda-pack -o env.tar.gz`, or of a venv `tar -czf env.tar.gz -C .venv .`"


class SiteError(LauncherError, FileError):
    """A site profile that cannot be used; the message names the file, the key and the remedy."""


class Environment(Record):
    """A Python environment that a job copies to each node's local storage before it searches."""

    archive: AbsolutePath  # a tar, compressed or not, with bin/ at its top; nodes share this path
    folder: AbsolutePath  # where each node gets it; its parent folder must exist

    @property
    def sent(self) -> str:
        """Path of the archive on each node until it is unpacked."""
        return f"{self.folder}.meshtune.tar"

    def check(self) -> None:
        """List the archive with the program that will unpack it.

        Raises SiteError if it cannot be read here, or has no ``bin/python`` at its top.
        """
        what = f"environment: archive {shown(self.archive)}"
        try:
            open_regular(Path(self.archive)).close()  # a pipe would block
        except FileError as error:
            raise SiteError(f"environment: archive {error}; {_REMEDY}") from None
        deeper = None
        listing = ["tar", "-tf", self.archive]
        with subprocess.Popen(
            listing, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as tar:
            assert tar.stdout is not None and tar.stderr is not None
            for line in tar.stdout:
                name = line.rstrip("\n").removeprefix("./")
                if name == "bin/python":
                    tar.kill()  # the rest is of no interest, and may be gigabytes
                    return
                if name.endswith("/bin/python"):
                    deeper = deeper or name
            said = " ".join(tar.stderr.read().split())
        if tar.returncode != 0:
            raise SiteError(f"{what}: cannot be read: {shown(said)}; {_REMEDY}")
        has = f", only {shown(deeper)}" if deeper else ""
        raise SiteError(f"{what}: has no bin/python at its top{has}; {_REMEDY}")

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.archive == self.sent:
            raise ValueError(f"archive {self.archive} is where nodes get it: name another folder")
        return self


class Site(Record):
    """Options of srun and sbatch at one site."""

    source: str  # where these facts are from
    # none: steps get the job's GPUs. per_task: each rank sees one GPU, as device 0.
    # per_node: each rank sees the node's GPUs and uses that of its LOCAL_RANK
    gpus: Literal["none", "per_task", "per_node"] = "none"
    cpus_per_rank: int | None = Field(default=None, ge=1, le=10_000)  # unless the trial sets it
    srun_options: list[SrunOption] = Field(default=[], max_length=100)  # added to every srun line
    env: dict[VariableName, str] = Field(default={}, max_length=1000)  # set for every rank
    modules: list[str] = Field(default=[], max_length=100)  # loaded by the batch script
    setup: list[str] = Field(default=[], max_length=100)  # shell lines after these: source ...
    environment: Environment | None = None  # sent to the nodes by the job; all ranks use it
    containers: ContainersOrRuntime | None = None  # how trials in a container are started
    batch_options: list[Option] = Field(default=[], max_length=100)  # #SBATCH lines
    max_concurrent_steps: int = Field(default=90, ge=1, le=100_000)
    # least time between two sruns, for the controller's sake
    launch_interval_s: float = Field(default=0.2, ge=0, le=3600)
    _reference: str = PrivateAttr(default="generic")

    @property
    def reference(self) -> str:
        """The value of ``--site`` for this profile: a shipped name, or an absolute path."""
        return self._reference

    def containers_for(self, image: str) -> Containers:
        """The site's settings for an image; raises SiteError if it has no runtime."""
        if self.containers is None:
            raise SiteError(
                f"trainer.container: the site {self.reference} names no runtime for "
                f"{shown(image)}: copy its profile, add `containers: RUNTIME`, one of "
                f"{', '.join(Runtime.shipped())}, and name the copy with --site"
            )
        return self.containers

    def advice(self, container: Container) -> str:
        """Advice on an image that each trial would fetch; "" if none is needed."""
        if self.containers is None or container.file is not None:
            return ""
        runtime = Runtime.load(self.containers.runtime)
        return runtime.prepare.format(image=runtime.named(container))

    @staticmethod
    def wrappers() -> dict[str, WrapperOptions]:
        """Programs that start a container around a rank's command, with their options."""
        runtimes = {name: Runtime.load(name) for name in Runtime.shipped()}
        return {name: each.spoken for name, each in runtimes.items() if not each.inside}

    @staticmethod
    def shipped() -> dict[str, str]:
        """Names of the profiles that come with meshtune, each with a title."""
        files = sorted(_SHIPPED.glob("*.yaml"))
        return {f.stem: f.read_text().partition("\n")[0].strip("# .") for f in files}

    @classmethod
    def load(cls, reference: str) -> Self:
        """Read a shipped profile by its name, or a YAML file by its path.

        Raises SiteError if there is no such profile, or it is wrong.
        """
        if reference in cls.shipped():
            path = _SHIPPED / f"{reference}.yaml"
        else:
            path = Path(reference)
            if path.suffix not in (".yaml", ".yml"):
                raise SiteError(
                    f"no site '{shown(reference)}'; shipped are {', '.join(cls.shipped())}, "
                    "or give a profile of your own as a .yaml file"
                )
            reference = str(path.absolute())
        site = validate(cls, read_document(path, SiteError))
        site._reference = reference
        return site
