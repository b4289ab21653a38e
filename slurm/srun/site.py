"""Site profiles: what a machine's own guide says about starting ranks there, as typed YAML."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from slurm.launcher import LauncherError

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Option = Annotated[str, Field(pattern=r"^--?[A-Za-z][^\s]*$")]


class SiteError(LauncherError, ValueError):
    """A site profile that cannot be used; the message names the file, the key and the remedy."""


class Site(BaseModel):
    """How srun and sbatch are spoken to at one site. Strict: an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(description="where these facts are from")
    gpus: Literal["none", "per_task", "per_node"] = Field(
        default="none",
        description=(
            "none: steps get what the job has. per_task: each rank sees one GPU, as device 0. "
            "per_node: each rank sees the node's GPUs and takes that of its LOCAL_RANK"
        ),
    )
    cpus_per_rank: int | None = Field(default=None, ge=1, description="unless the trial says")
    srun_options: tuple[Option, ...] = Field(default=(), description="added to every srun line")
    env: dict[Name, str] = Field(default_factory=dict, description="set for every rank")
    modules: tuple[str, ...] = Field(default=(), description="loaded by the batch script")
    batch_options: tuple[Option, ...] = Field(default=(), description="#SBATCH lines")
    max_concurrent_steps: int = Field(default=90, ge=1)
    launch_interval_s: float = Field(
        default=0.2, ge=0, description="least time between two sruns, for the controller's sake"
    )
    _reference: str = PrivateAttr(default="generic")

    @property
    def reference(self) -> str:
        """What ``--site`` has to be to get this profile: a shipped name, or an absolute path."""
        return self._reference


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader would let the last of two equal keys win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value}: written twice", problem_mark=key.start_mark
                )
        return super().construct_mapping(node, deep)


def shipped_sites() -> list[str]:
    """Names of the profiles that come with meshtune."""
    files = resources.files("slurm.srun").joinpath("sites").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def load_site(reference: str) -> Site:
    """Read a site profile.

    Args:
        reference: a shipped profile's name, or a YAML file's path.

    Raises:
        SiteError: if there is no such profile, or it is not one.
    """
    if reference in shipped_sites():
        text = resources.files("slurm.srun").joinpath("sites", f"{reference}.yaml").read_text()
        return _parse(text, f"site {reference}", reference)
    path = Path(reference)
    if path.suffix not in (".yaml", ".yml"):
        raise SiteError(
            f"no site {reference!r}; shipped are {', '.join(shipped_sites())}, "
            "or give a profile of your own as a .yaml file"
        )
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SiteError(f"{path}: cannot be read: {error}") from error
    return _parse(text, str(path), str(path.absolute()))


def _parse(text: str, where: str, reference: str) -> Site:
    try:
        values = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise SiteError(f"{where}: not YAML: {' '.join(str(error).split())}") from error
    try:
        site = Site.model_validate(values)
    except ValidationError as error:
        mistakes = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'profile'}: {e['msg']} (found {e['input']!r})"
            for e in error.errors()
        )
        known = ", ".join(Site.model_fields)
        raise SiteError(f"{where}: {mistakes}; keys are {known}") from error
    site._reference = reference
    return site
