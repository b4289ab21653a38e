"""Writes the tables of docs/guide/reference.md from the schema: ``python docs/reference.py``.

They stand between comments; the words around them are the page's own. ``make docs`` runs this,
and a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from search_spaces import json_schema
from search_spaces.parameters import SEARCHABLE
from trainer.deepspeed.rules import deepspeed_requirements
from trainer.plan.axes.mesh import GRID
from trainer.plan.config import TrainConfig
from trainer.plan.rules.catalog import requirements
from trainer.plan.rules.requirement import Requirement

Schema = dict[str, Any]
Records = list[tuple[str, list[Schema]]]
"""Path in the file, and the records that may stand there."""

PAGE = Path(__file__).parent / "guide" / "reference.md"
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def cell(text: str) -> str:
    """Text that fits into one cell of a table."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).replace("|", "\\|").strip()


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines) + "\n"


class Reference:
    """A schema's records as tables."""

    def __init__(self, schema: Schema) -> None:
        self.definitions: Schema = schema.get("$defs", {})
        self.schema = schema
        self.also: dict[str, list[str]] = {}
        """Further paths of a record."""
        self.headings: dict[str, str] = {}
        """Of the section that has a path's keys."""

    def records(self) -> Records:
        """Every record where it is first met, outer ones first."""
        found: dict[str, list[Schema]] = {}
        paths: dict[int, str] = {}
        waiting = [("", self.schema)]
        while waiting:
            path, record = waiting.pop(0)
            if id(record) in paths:
                if path != paths[id(record)]:
                    self.also.setdefault(paths[id(record)], []).append(path)
                continue
            paths[id(record)] = path
            found.setdefault(path, []).append(record)
            waiting[:0] = [
                (f"{path}.{key}{end}".lstrip("."), inner)
                for key, field in record["properties"].items()
                for end, inner in self.inside(field)
            ]
        for path in found:
            paths_here = dict.fromkeys((path, *self.also.get(path, ())))
            heading = ", ".join(f"`{each}`" for each in paths_here) if path else "Sections"
            self.headings |= dict.fromkeys(paths_here, heading)
        return list(found.items())

    def linked(self, values: str, path: str) -> str:
        """Values, with a link to the section that has the keys of a mapping."""
        for where in (path, f"{path}.NAME"):
            if heading := self.headings.get(where.lstrip(".")):
                anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
                return values.replace("mapping", f"[mapping](#{anchor})", 1)
        return values

    def about(self, field: Schema) -> str:
        """A field's description, or else that of the one record that it may be."""
        records = [record for _, record in self.inside(field)]
        if "description" not in field and len(records) == 1:
            field = records[0]
        said = str(field.get("description", "")).split("\n\n")[0].replace("*", "\\*")
        unit = field.get("unit") or field.get("prefixItems", [{}])[0].get("unit")
        return f"{said} In {unit}." if unit else said

    def inside(self, field: Schema) -> Iterator[tuple[str, Schema]]:
        """Records that a field holds, each with what its path ends with."""
        if "$ref" in field:
            field = self.definitions[field["$ref"].rpartition("/")[2]]
        if "properties" in field:
            yield "", field
        for each in (*field.get("anyOf", ()), *field.get("oneOf", ())):
            yield from self.inside(each)
        if "items" in field:
            yield from self.inside(field["items"])
        for each in (
            field.get("additionalProperties"),
            *field.get("patternProperties", {}).values(),
        ):
            if isinstance(each, dict):
                yield from ((f".NAME{end}", record) for end, record in self.inside(each))

    def values(self, field: Schema) -> str:
        """What a field accepts."""
        if "$ref" in field:
            return self.values(self.definitions[field["$ref"].rpartition("/")[2]])
        if "const" in field:
            return f"`{field['const']}`"
        if "enum" in field:
            return listed(f"`{value}`" for value in field["enum"])
        if options := field.get("anyOf", field.get("oneOf")):
            if any("smhd" in each.get("pattern", "") for each in options):
                return "duration"
            return " or ".join(dict.fromkeys(v for v in map(self.values, options) if v != "null"))
        kind = field.get("type", "")
        if kind == "array":
            items = field.get("items") or field["prefixItems"][0]
            return f"list of {self.values(items)}"
        if kind == "object" or "properties" in field:
            return "mapping"
        return {"boolean": "`true`, `false`", "string": "text", "null": "null"}.get(
            kind, f"{kind}{bounds(field)}"
        )

    def table(self, record: Schema, path: str = "") -> str:
        required = record.get("required", ())
        rows = (
            (
                f"`{key}`",
                self.linked(self.values(field), f"{path}.{key}"),
                "required" if key in required else default(field),
                self.about(field),
            )
            for key, field in record["properties"].items()
        )
        return table(("key", "value", "default", "meaning"), rows)


def bounds(field: Schema) -> str:
    """Limits of a number that say something: not how many digits a counter may have."""
    signs = (
        ("minimum", ">="),
        ("exclusiveMinimum", ">"),
        ("maximum", "<="),
        ("exclusiveMaximum", "<"),
    )
    said = [f"{sign} {field[key]}" for key, sign in signs if 1e-9 != field.get(key, 1e9) < 10_000]
    return f" {' and '.join(said)}" if said else ""


def default(field: Schema) -> str:
    value = field.get("default")
    if value in (None, "", [], {}) or isinstance(value, dict):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def rules(each: Iterable[Requirement]) -> str:
    """A table of requirements, those of one name in one row."""
    rows: dict[str, list[str]] = {}
    who = {"all": "", "builtin": " (built-in trainer)", "others": " (your own trainer)"}
    for rule in each:
        rows.setdefault(f"`{rule.name}`{who[rule.trainers]}", []).append(f"`{rule.text}`")
    return table(("rule", "requires"), ((name, listed(texts)) for name, texts in rows.items()))


def sections() -> str:
    """A table for each record of a space file."""
    reference = Reference(json_schema())
    text = ""
    for path, records in reference.records():
        text += f"## {reference.headings[path]}\n\n"
        for record in records:
            about = cell(record.get("description", "").split("\n\n")[0])
            text += f"{about}\n\n{reference.table(record, path)}"
    return text


def parameters() -> str:
    """The built-in trainer's fields that a space may search."""
    trained = TrainConfig.model_json_schema()
    ours = {name: field for name, field in trained["properties"].items() if name in SEARCHABLE}
    return Reference(trained).table({"properties": ours})


def page() -> str:
    """The page, its tables written anew."""
    every = requirements("cp", *GRID)
    engine = (*deepspeed_requirements("cpu"), *deepspeed_requirements("cuda"))
    tables = {
        "sections": sections(),
        "parameters": parameters(),
        "rules": rules(each for each in every if not each.name.startswith("world_by")),
        "engine": rules(engine),
    }
    return BLOCK.sub(lambda match: f"{match[1]}\n{tables[match[2]]}{match[3]}", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(page())
