"""Prints docs/guide/reference.md from the schema of spaces: ``python docs/reference.py``.

``make docs`` writes the page, and a test compares it with what this prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from search_spaces import json_schema
from search_spaces.parameters import SEARCHABLE
from trainer.deepspeed.rules import deepspeed_requirements
from trainer.plan.axes import GRID
from trainer.plan.config import TrainConfig
from trainer.plan.rules.requirement import Requirement
from trainer.plan.rules.requirements import requirements

Schema = dict[str, Any]
Records = list[tuple[str, list[Schema]]]
"""Path in the file, and the records that may stand there."""

HEAD = """\
# Reference of the space file

Generated from the schema by `python docs/reference.py`. `meshtune schema` prints the same for
editors. [Writing a search space](spaces.md) explains how the sections work together.
"""
PARAMETERS = """\
## Parameters of the built-in trainer

A [trainer of your own](own-trainer.md) may have parameters of any name. `num_nodes` counts the nodes
that a trial leases, by default 1. A space has at most 30 parameters, a parameter at most 10,000
values, and a space at most 2^62 combinations of them.

"""
FACTS = """\
## Names in expressions

`constraints`, `conditions`, `{placeholders}` of a command and `when` read the same expressions:
`+ - * / // %`, `== != < <= > >=` (also chained), `and`, `or`, `not`, `in [1, 2]`,
`1 if tp > 1 else 2`, parentheses, numbers, quoted text, `true` and `false`. A constraint that
divides by zero is violated, so put a guard first: `secondary_shard == 0 or dp % secondary_shard == 0`.

| from | names |
|---|---|
| the configuration | its parameters; `world_size` = `num_nodes * gpus_per_node`; `dp` = `world_size` over the other degrees; `global_batch_size` = `mbs * gas * dp` |
| the model | `num_parameters`, and the keys of its record |
| the cluster | `gpus_per_node`, `memory_gib`, `cpus_per_node`, its other numbers; `cluster_nodes`, nodes in all; `ranks_per_pair`, 2 where a card has two GPUs |
| the placement | its parameters, whether or not the space has them |
| defaults | parameters of the trainer that the space leaves out |

Conditions cannot use `world_size`, `dp` and `global_batch_size`, and parts of a placement only if
these are parameters. If a trainer of your own has `dp` as a parameter, the number of ranks is the
product of all degrees. Without a cluster, `gpus_per_node` is `trial.ranks_per_node`.

"""
RULES = """\
## Built-in rules

A rule applies where the space has every name that it reads. `meshtune check` lists the rules that
remove configurations, with counts. A parameter with a condition adds `inactive_NAME`; constraints are
`constraint_1`, `constraint_2` ...

"""
FURTHER = """\
And, where they apply:

| rule | requires |
|---|---|
| `world_by_tp_pp` | `world_size % (tp * pp) == 0`; with `cp`, a grid or axes of your own their degrees as well, as in `world_by_tp_cp_pp` |
| `degrees_make_world` | with `dp` as a parameter the degrees multiply to `world_size` |
| `layers_for_stages` | your own trainer: a layer on every stage, as its framework splits them |
| `tp_within_links` | in place of `tp_within_node` where links join several nodes: `gpus_on_links % tp == 0` |
| `one_placement`, `placement_counts_once` | `zero_stage` is 0 where a `placement` is given; of several names for one placement the first counts |
| `experts_by_ep`, `replicas_by_ep` | `num_experts % ep == 0`; `(dp * cp) % ep == 0`, with `etp` `(tp * dp * cp) % (etp * ep) == 0` |
| `layout_by_stages`, `stages_given_or_counted` | a `pipeline_layout` fits the model and `pp * vpp`; only one way to [split layers](own-trainer.md#stages-of-a-pipeline) is used |
| `first_stage_layers_needs_pp` and the like | without a pipeline only the first of several values counts |
| `documents_by_cp` | no `cp` with [documents](training.md#documents-and-loss-masks) kept apart |

`allow: [tp_across_nodes]` switches off `tp_within_node`; `allow: [uneven_layers]`, with a trainer of
your own, `layers_by_stages`.

"""
ENGINE = """\
### Rules of `engine: deepspeed`

They remove what [DeepSpeed cannot train](training.md#deepspeed). The limits of quantization and fp16
depend on the device.

"""


def listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def cell(text: str) -> str:
    """Text that fits into one cell of a table."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).replace("|", "\\|").strip()


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines) + "\n"


class Reference:
    """The page's sections, one for each path of a space file that has keys of its own."""

    def __init__(self, schema: Schema) -> None:
        self.definitions: Schema = schema.get("$defs", {})
        self.schema = schema
        self.also: dict[str, list[str]] = {}
        """Further paths of a record."""

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
        return list(found.items())

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
            return f"list of {self.values(field.get('items', {}))}"
        if kind == "object" or "properties" in field:
            return "mapping"
        return {"boolean": "`true`, `false`", "string": "text", "null": "null"}.get(
            kind, f"{kind}{bounds(field)}"
        )

    def table(self, record: Schema) -> str:
        required = record.get("required", ())
        rows = (
            (
                f"`{key}`",
                self.values(field),
                "required" if key in required else default(field),
                field.get("description", ""),
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
    for rule in each:
        who = " (built-in trainer)" if rule.builtin_only else ""
        who = " (your own trainer)" if rule.others_only else who
        rows.setdefault(f"`{rule.name}`{who}", []).append(f"`{rule.text}`")
    return table(("rule", "requires"), ((name, listed(texts)) for name, texts in rows.items()))


def page() -> str:
    """The page as Markdown."""
    reference = Reference(json_schema())
    text = HEAD
    for path, records in reference.records():
        paths = " and ".join(f"`{each}`" for each in (path, *reference.also.get(path, ())))
        text += f"\n## {paths if path else 'Sections'}\n"
        for record in records:
            about = cell(record.get("description", "").split("\n\n")[0])
            text += f"\n{about}\n\n{reference.table(record)}".rstrip() + "\n"
    trained = TrainConfig.model_json_schema()
    ours = {k: f for k, f in trained["properties"].items() if k in SEARCHABLE}
    text += f"\n{PARAMETERS}{Reference(trained).table({'properties': ours})}{FACTS}"
    every = requirements(("cp", *GRID))
    text += RULES + rules(each for each in every if not each.name.startswith("world_by")) + FURTHER
    text += ENGINE
    both = (*deepspeed_requirements("cpu"), *deepspeed_requirements("cuda"))
    return (text + rules(both)).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
