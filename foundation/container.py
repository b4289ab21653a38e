"""A container as a space file states it: an image, and what is mounted in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from foundation.records import Described, Named

_FILES = (".sif", ".simg", ".img", ".sqsh", ".squashfs", ".toml")
_IN_SHELL = re.compile(r"^~|[$`]")
_REGISTRY = re.compile(r"([\w-]+(?:\.[\w-]+)+(?::\d+)?|localhost(?::\d+)?)[/#]")
_SPACE_OR_SIGN = re.compile(r"[\s,;]|[^\x21-\x7e]")


def _plain(text: str, what: str) -> str:
    """The text; raises ValueError if it holds separators, or ``~`` and ``$`` for a shell."""
    if _IN_SHELL.search(text):
        raise ValueError(f"accepted {what} written out: no shell replaces ~ or $")
    if _SPACE_OR_SIGN.search(text) or text.startswith("-"):
        raise ValueError(f"accepted {what} without spaces, commas and a leading dash")
    return text


def _image(text: str) -> str:
    """A file, or an image name in docker's form, without ``docker://`` and pyxis' ``#``."""
    name = _plain(text, "a file, or a name such as nvcr.io/nvidia/pytorch:25.04-py3")
    name = name.removeprefix("docker://").removeprefix("docker:")
    if not name or name.count("#") > 1:
        raise ValueError("accepted a file, or a name such as nvcr.io/nvidia/pytorch:25.04-py3")
    return name.replace("#", "/")


def _mount(text: str) -> str:
    """``SOURCE:TARGET`` or ``SOURCE:TARGET:ro``; a path alone is mounted under its own name."""
    accepted = "SOURCE:TARGET or SOURCE:TARGET:ro, such as /data:/data:ro, with absolute paths"
    source, *rest = _plain(text, accepted).split(":")
    target, *flags = rest or [source]
    if flags not in ([], ["ro"], ["rw"]) or not (source[:1] == "/" and target[:1] == "/"):
        raise ValueError(f"accepted {accepted}")
    return ":".join([source, target, *(flag for flag in flags if flag == "ro")])


ImageName = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_image)]
Mount = Annotated[str, Field(min_length=2, max_length=8192), AfterValidator(_mount)]


class Container(Described):
    """An image, and the machine's folders mounted in it; the site profile has the runtime."""

    image: ImageName
    """a name in a registry, such as nvcr.io/nvidia/pytorch:25.04-py3, or a file (*.sqsh, *.sif, an
    environment's *.toml), beside the space or absolute"""
    mounts: list[Mount] = Field(default=[], max_length=100)
    """SOURCE:TARGET, SOURCE:TARGET:ro, or a path that stays the same inside. The trials' folder and
    workdir are mounted anyway"""

    @property
    def file(self) -> Path | None:
        """The image's file; None for a name in a registry."""
        is_file = self.image.startswith(("/", "./", "../")) or self.image.endswith(_FILES)
        return Path(self.image) if is_file else None

    @property
    def registry(self) -> str:
        """The registry in the image's name; empty for the runtime's own default."""
        found = None if self.file else _REGISTRY.match(self.image)
        return found[1] if found else ""

    @staticmethod
    def of(value: Any) -> Any:
        """A record from an image's name alone."""
        return Container(image=value) if isinstance(value, str) else value


# A file may give the image's name alone; a record always has a container.
if TYPE_CHECKING:
    ContainerOrImage = Container
else:
    ContainerOrImage = Annotated[Named[ImageName, Container], AfterValidator(Container.of)]
