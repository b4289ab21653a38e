"""Parts by name: meshtune's own, and those of other distributions.

Another distribution offers a part by a Python entry point. A launcher of its own::

    [project.entry-points."meshtune.launchers"]
    kube = "acme_kube.launcher:from_options"

A part is imported when it is asked for.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from foundation.messages import nearest

P = TypeVar("P")


class RegistryError(ValueError):
    """No part of that name, or one that cannot be loaded; the message names the remedy."""


class Registry(Generic[P]):
    """Parts of one ``sort``, a word for messages, with the ``group`` of their entry points.

    ``own`` has meshtune's parts, ``module:attribute`` by name; these names are reserved.
    """

    def __init__(self, sort: str, group: str, own: Mapping[str, str]) -> None:
        self._sort, self._group, self._own = sort, group, dict(own)

    def names(self) -> list[str]:
        """Names of all parts, meshtune's own first."""
        return list(dict.fromkeys([*self._own, *(entry.name for entry in self._installed())]))

    def titles(self) -> dict[str, str]:
        """Each part in a line: the first of its docstring, or why it cannot be loaded."""
        found = {}
        for name in self.names():
            try:
                part: Any = self.get(name)
            except RegistryError as error:
                found[name] = str(error)
            else:  # a class, a function, or a class's own constructor
                text = getattr(part, "__self__", part).__doc__ or ""
                found[name] = text.strip().partition("\n")[0].removesuffix(".").replace("``", "")
        return found

    def get(self, name: str, more: Mapping[str, P] = MappingProxyType({})) -> P:
        """The part of that name, imported now; ``more`` are parts that only the caller has.

        Raises RegistryError if there is none, two distributions offer one, or it cannot be
        imported.
        """
        if name in more:
            return more[name]
        if name in self._own:
            return cast(P, pkgutil.resolve_name(self._own[name]))
        offered = [entry for entry in self._installed() if entry.name == name]
        if not offered:
            known = [*self.names(), *more]
            raise RegistryError(
                f"no {self._sort} {name!r}: there are {', '.join(known)}; another distribution "
                f"adds one by an entry point of group {self._group}{nearest(name, known)}"
            )
        if len(offered) > 1:
            who = " and ".join(sorted(_distribution(entry) for entry in offered))
            raise RegistryError(f"{self._sort} {name!r} is offered by {who}: uninstall one")
        try:
            return cast(P, offered[0].load())
        except Exception as error:  # whatever its modules do when they are imported
            raise RegistryError(
                f"{self._sort} {name!r} of {_distribution(offered[0])} cannot be loaded "
                f"({offered[0].value}: {type(error).__name__}: {error}): repair that "
                "distribution, or uninstall it"
            ) from error

    def _installed(self) -> list[Any]:
        from importlib.metadata import entry_points  # 20 ms, and rarely needed

        return list(entry_points(group=self._group))


def _distribution(entry: Any) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
