"""``meshtune init``: a first search space."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import fields
from pathlib import Path

import search_spaces
from foundation.messages import shown
from foundation.writing import write_atomically
from workflows.cli.arguments import UsageError
from workflows.cli.predict import option

ASKED = {
    "adapter": "trainer",
    "model": "model (a name, *.yaml, or Hugging Face's config.json)",
    "cluster": "cluster (a name, or *.yaml)",
}


def init(arguments: Namespace) -> None:
    from workflows.first_space import Wanted, first_space

    file: Path = arguments.file
    if file.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{shown(file)}: accepted a file *.yaml")
    if file.exists():
        raise UsageError(f"{shown(file)} exists; remove it, or name another file")
    if not file.parent.is_dir():
        raise UsageError(f"{shown(file)}: there is no folder {shown(file.parent)}; make it first")
    _ask(arguments)
    given = {each.name: getattr(arguments, each.name) for each in fields(Wanted)}
    try:
        first = first_space(Wanted(**given), str(file))
    except search_spaces.SpaceArgumentError as error:
        raise UsageError(f"{option(error.argument)}: {error.what}") from None
    write_atomically(file, first.space)
    print(*first.notes, sep="\n")
    site = file.with_name(f"{file.stem}-site.yaml")
    if first.site and site.exists():
        print(f"not written, as {shown(site)} exists, the site's part:", first.site, sep="\n")
    elif first.site:
        write_atomically(site, first.site)
        print(f"wrote {shown(site)}, the site's part: --site {shown(site)}")
    print(f"wrote {shown(file)}; next: meshtune check {shown(file)}")
    if first.site and first.submit:
        words = " ".join(first.submit)
        print(f"and: meshtune submit {shown(file)} --site {shown(site)} {words}")


def _ask(arguments: Namespace) -> None:
    missing = [name for name in ASKED if getattr(arguments, name) is None]
    if arguments.arguments is not None or arguments.config:  # either has the model
        missing = [name for name in missing if name != "model"]
    if missing and not sys.stdin.isatty():
        names = " and ".join(f"--{name}" for name in missing)
        raise UsageError(f"{names} missing; give them, as there is no terminal to ask on")
    for name in missing:
        if name != "model":
            print(f"{ASKED[name]}: {', '.join(sorted(search_spaces.shipped_records(name)))}")
        setattr(arguments, name, input(f"{ASKED[name]}? ").strip())
