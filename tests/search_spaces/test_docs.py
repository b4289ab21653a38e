"""Every space in the README and the guide, and every part of one, loads."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from search_spaces import SearchSpace, check, shipped_records
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.trainers.command import CommandTrainer
from trainer.deepspeed import rules as deepspeed
from trainer.plan.rules.requirements import REQUIREMENTS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guide" / "spaces.md").read_text()
GUIDE = DOCS / "guide"
OTHERS = [DOCS.parent / "README.md", GUIDE / "own-trainer.md", GUIDE / "own-axes.md"]
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLES = YAML.findall(PAGE)
ADAPTERS = [
    *("megatron-lm", "megatron-bridge", "megatron-deepspeed", "neox", "torchtitan", "nanotron"),
    *("picotron", "maxtext", "deepspeed", "transformers", "lightning", "accelerate"),
]
WHOLE = [text for page in OTHERS for text in YAML.findall(page.read_text())]


# Rules of some spaces only, beside what the trainer requires.
BESIDE = (
    *("one_placement", "placement_counts_once", "experts_by_ep", "replicas_by_ep"),
    "tp_within_links",
)


class Megatron(CommandTrainer):
    """The trainer of another distribution that the guide supposes to be installed."""

    def __init__(self, spec: TrainerSpec) -> None:
        argv = ["python", str(spec.options["script"])]
        super().__init__(spec.model_copy(update={"command": argv}))


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(Megatron=Megatron)
    monkeypatch.setitem(sys.modules, "acme_megatron", module)  # type: ignore[arg-type]
    found = EntryPoints([EntryPoint("megatron", "acme_megatron:Megatron", "meshtune.trainers")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: found)


@pytest.mark.parametrize("example", EXAMPLES + WHOLE)
def test_an_example_loads_and_has_valid_configurations(
    load: Callable[[str], SearchSpace], tmp_path: Path, good: str, example: str
) -> None:
    content = yaml.safe_load(example)
    if own := content.get("trainer", {}).get("config"):  # the reader's own file
        (tmp_path / own).write_text("" if own.endswith(".toml") else "{}")
    if "version" not in content:  # a part: put into a small space
        content = {**yaml.safe_load(good), **content}
        content["parameters"] |= {"gas": [32, 64, 128], "recompute": ["none", "full"]}
        content["parameters"]["num_nodes"] = [1, 2]
        known = content["parameters"]
        content["conditions"] = {n: e for n, e in content["conditions"].items() if n in known}
        if "constraints" not in yaml.safe_load(example):
            del content["constraints"]
    assert check(load(yaml.safe_dump(content))).valid > 0


def test_the_guide_begins_with_a_short_space_for_every_adapter() -> None:
    first = (GUIDE / "own-trainer.md").read_text().split("The *adapter* writes", 1)[0]
    blocks = YAML.findall(first)
    assert [yaml.safe_load(text)["trainer"]["adapter"] for text in blocks] == ADAPTERS
    assert sorted(ADAPTERS) == [*shipped_records("adapter")]
    assert max(len(text.splitlines()) for text in blocks) <= 15


def test_the_page_has_examples_and_names_every_rule() -> None:
    assert len(EXAMPLES) >= 5
    for page in OTHERS:
        assert any("version" in yaml.safe_load(text) for text in YAML.findall(page.read_text()))
    engine = (*deepspeed.deepspeed_requirements("cpu"), *deepspeed.deepspeed_requirements("cuda"))
    names = {requirement.name for requirement in (*REQUIREMENTS, *engine)}
    for name in (*names, *BESIDE):
        assert f"`{name}`" in PAGE
