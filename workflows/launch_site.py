"""The site's part of a launch script: a site profile, and the container that it starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, pairwise, takewhile
from pathlib import Path
from typing import Any

from foundation.secret_words import disclosed, has_secret
from slurm import Site
from workflows.launch_script import Launched
from workflows.slurm_options import NAMING, WORDS, by_agents, options_and_rest

_OURS, _PYXIS, _OF_OUR_LINE = WORDS["ours"], WORDS["pyxis"], WORDS["of our line"]
_SHELL = re.compile(r"(?:\S*/)?(?:ba|z|da)?sh|env")
_STARTED = re.compile(  # what is started by the programs around it
    rf"(?:\S*/)?(?:python[\d.]*|{'|'.join([*WORDS['agents'], *WORDS['commands']])})|\S+\.py"
)
_PYTHON = re.compile(r"([^\s=:]+)/(?:python[\d.]*|torchrun|accelerate)")  # an environment's own


@dataclass
class SitePart:
    """A launch script's part that goes to a site profile, and its container."""

    profile: dict[str, Any] = field(default_factory=dict)
    image: str = ""
    mounts: list[str] = field(default_factory=list)
    workdir: str = ""
    left_out: list[str] = field(default_factory=list)

    @property
    def container(self) -> Any:
        """Value of ``trainer.container``; None without an image."""
        if not self.image:
            return None
        return {"image": self.image, "mounts": self.mounts} if self.mounts else self.image

    def take(self, what: str, value: str) -> None:
        if "$" in value:
            self.left_out.append(f"the container's {what} {value}, which only a shell knows")
        elif what == "image":
            self.image = value
        elif what == "workdir":
            self.workdir = value
        else:
            for mount in filter(None, value.split(",")):
                source, *rest = mount.split(":")
                if source[:1] != "/":  # a volume's name, or words to replace: <DIRECTORIES>
                    self.left_out.append(f"the container's mount {mount}, which is no path")
                    continue
                same = len(rest) == 1 and source.rstrip("/") == rest[0].rstrip("/")
                self.mounts.append(source.rstrip("/") or "/" if same else mount)


def site_part(launched: Launched, cluster: str) -> SitePart:
    """The site's part of a launch script, on top of the shipped profile of this cluster."""
    part = SitePart(workdir=launched.folder)
    shipped: dict[str, Any] = {}
    if cluster in Site.shipped():
        shipped = Site.load(cluster).model_dump(exclude_defaults=True, exclude={"source"})
    part.profile = dict(shipped)
    srun: list[str] = []
    rest = list(launched.launcher)
    if rest[:1] == ["srun"]:
        srun, rest = options_and_rest(rest[1:])
    _of_steps(part, [*launched.batch_options, *srun], by_agents(launched.launcher))
    containers = shipped.get("containers", {})
    found = _of_pyxis(part, srun) or _of_wrapper(part, rest, launched.batch_options)
    if not part.image and (around := _around(rest)):
        part.left_out.append(f"{around} (trials are started without it)")
    if part.image and found:
        same = containers if containers.get("runtime") == found["runtime"] else {}
        part.profile["containers"] = {**same, **found}
    told = {
        "srun_options": _others(srun, of_job=False),
        "batch_options": _others(launched.batch_options, of_job=True),
    }
    for key, options in told.items():
        mine = {option.partition("=")[0] for option in options}
        before = [o for o in part.profile.get(key, []) if o.partition("=")[0] not in mine]
        part.profile[key] = [*before, *options]
    part.profile["modules"] = list(launched.modules) or shipped.get("modules", [])
    part.profile["setup"] = list(launched.set_up)
    if named := next(filter(None, map(_PYTHON.fullmatch, reversed(launched.launcher))), None):
        if part.image:
            part.left_out.append(f"{named[0]} (the image's python on its PATH is started)")
        else:  # a trial's python is the first on the PATH
            part.profile["setup"].append(f'export PATH="{named[1]}:$PATH"')
    part.profile = {key: value for key, value in part.profile.items() if value}
    if part.profile == shipped:
        part.profile = {}  # the shipped one says it all
    return part


def _around(words: Sequence[str]) -> str:
    """The program that starts python or the launcher of ranks: an environment's, a profiler."""
    pairs = takewhile(
        lambda p: p[0] in NAMING or not _STARTED.fullmatch(p[1]), pairwise(["", *words])
    )
    before = [word for _, word in pairs]
    before = list(dropwhile(lambda word: word in ("eval", "exec", "time"), before))
    before = before[: next((i for i, word in enumerate(before) if _SHELL.fullmatch(word)), None)]
    if not before or Path(before[0]).name in WORDS["starts ranks"]:
        return ""
    return " ".join(disclosed(before))


def _disclosed(text: str) -> str:
    """An option that sets variables, without the values of secret ones."""
    return re.sub(r"(?<=[=, ])(\w+)=([^,]*)", lambda o: o[has_secret(o[1], o[2])], text)


def _name(option: str) -> str:
    return option.removeprefix("--").partition("=")[0]


def _others(options: Sequence[str], of_job: bool) -> list[str]:
    """Options that a site profile passes on; those of a job include its GPUs."""
    return [
        option
        for option in options
        if (_name(option) not in _OURS or (of_job and _name(option) == "gpus-per-node"))
        and not _name(option).startswith(("container-", "no-container-"))
        and _name(option) not in ("environment", "image", "module", "volume")
        and (of_job or not option.startswith("--gres=gpu"))
    ]


def _of_steps(part: SitePart, options: Sequence[str], tasks_are_nodes: bool) -> None:
    """Set GPUs and cores per rank, unless tasks are nodes; sbatch's options, then srun's."""
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name == "cpus-per-task" and value.isdecimal() and not tasks_are_nodes:
            part.profile["cpus_per_rank"] = int(value)
        elif name == "gpus-per-task" and not (tasks_are_nodes or "--gpu-bind=none" in options):
            part.profile["gpus"] = "per_task"
        elif name in ("gpus-per-node", "gpus-per-task") or option.startswith("--gres=gpu"):
            part.profile.setdefault("gpus", "per_node")
        elif name == "export" and value not in ("ALL", "all"):
            part.left_out.append(_disclosed(option))


def _of_pyxis(part: SitePart, options: Sequence[str]) -> dict[str, Any]:
    """The site's ``containers`` if srun's own options start the container."""
    further = []
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name == "environment":
            part.image = value if "/" in value else str(Path.home() / ".edf" / f"{value}.toml")
            return {"runtime": "environment"}
        if name in _PYXIS:
            part.take(_PYXIS[name], value)
        elif name == "container-env":
            part.left_out.append(option)
        elif name.startswith(("container-", "no-container-")) and option not in _OF_OUR_LINE:
            further.append(option)
    return {"runtime": "pyxis", **({"options": further} if further else {})} if part.image else {}


def _of_wrapper(part: SitePart, words: Sequence[str], batch: Sequence[str]) -> dict[str, Any]:
    """The site's ``containers`` if a program around each rank starts the container."""
    wrappers = Site.wrappers()
    at = next((i for i, word in enumerate(words) if Path(word).name in wrappers), None)
    if at is None:
        return {}
    runtime = Path(words[at]).name
    known, further = wrappers[runtime], []
    left = [word for word in words[at + 1 :] if word not in ("exec", "run", "shared-run")]
    for option in batch if runtime == "shifter" else ():
        name, _, value = option.removeprefix("--").partition("=")
        if name in ("image", "volume"):
            part.take("image" if name == "image" else "mounts", value.removeprefix("docker:"))
        elif name == "module":
            further.append(option)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        name, sign, value = word.partition("=")
        if not sign and name not in known.alone and left:
            value = left.pop(0)
        what = next((key for key in _PYXIS.values() if name in getattr(known, key)), "")
        if what:
            part.take(what, value)
        elif name in ("-e", "--env") and "=" in value:
            part.left_out.append(_disclosed(f"{name} {value}"))
        elif name not in ("--env", "-e") and word not in _OF_OUR_LINE:
            further += [word] if sign or not value else [word, value]
    if not part.image and left:
        part.image = left[0]
    return {"runtime": runtime, **({"options": further} if further else {})}
