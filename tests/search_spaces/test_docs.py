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

from search_spaces import SearchSpace, check, notes, shipped_records
from search_spaces.language.trainer_schema import TrainerSpec
from search_spaces.trainers.command import CommandTrainer
from slurm import Site
from trainer.deepspeed import rules as deepspeed
from trainer.plan.rules.catalog import REQUIREMENTS

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = (
    *(ROOT / "README.md", GUIDE / "spaces.md", GUIDE / "own-trainer.md", GUIDE / "training.md"),
    *(GUIDE / "faq.md", ROOT / "docs" / "how-it-works" / "plugins.md", GUIDE / "first-search.md"),
)
EXAMPLES = {page.name: YAML.findall(page.read_text()) for page in PAGES}
REFERENCE = (GUIDE / "reference.md").read_text()
IN_CONTAINER, *CONTAINER_SITES = YAML.findall((GUIDE / "containers.md").read_text())
SITE, OWN_CLUSTER = YAML.findall((GUIDE / "cluster.md").read_text())
ADAPTERS = [
    *("megatron-lm", "megatron-bridge", "megatron-deepspeed", "neox", "torchtitan", "nanotron"),
    *("picotron", "maxtext", "deepspeed", "transformers", "lightning", "accelerate", "trl"),
    *("llama-factory", "ms-swift", "axolotl", "torchtune", "litgpt"),
]

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


@pytest.mark.parametrize("example", [text for texts in EXAMPLES.values() for text in texts])
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
    space = load(yaml.safe_dump(content))
    assert check(space).valid > 0
    if "version" in yaml.safe_load(example):  # what people copy does not let the batch decide
        assert [note for note in notes(space) if "is free" in note] == []


def test_the_guide_begins_with_a_short_space_for_every_adapter() -> None:
    first = (GUIDE / "own-trainer.md").read_text().split("The *adapter* writes", 1)[0]
    blocks = YAML.findall(first)
    assert [yaml.safe_load(text)["trainer"]["adapter"] for text in blocks] == ADAPTERS
    assert sorted(ADAPTERS) == [*shipped_records("adapter")]
    assert max(len(text.splitlines()) for text in blocks) <= 15
    fine_tuners = blocks[ADAPTERS.index("trl") :]
    assert len(fine_tuners) == 6 and max(len(text.splitlines()) for text in fine_tuners) <= 12


def test_a_page_has_examples_and_the_reference_names_every_rule() -> None:
    assert len(EXAMPLES["spaces.md"]) >= 5
    for page in ("README.md", "spaces.md", "own-trainer.md"):
        assert any("version" in yaml.safe_load(text) for text in EXAMPLES[page])
    engine = (*deepspeed.deepspeed_requirements("cpu"), *deepspeed.deepspeed_requirements("cuda"))
    names = {requirement.name for requirement in (*REQUIREMENTS, *engine)}
    for name in (*names, *BESIDE):
        assert f"`{name}`" in REFERENCE


def test_the_site_profile_of_the_guide_has_every_key(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SITE)
    site = Site.load(str(tmp_path / "mine.yaml"))
    assert site.source and set(yaml.safe_load(SITE)) == set(type(site).model_fields)


def test_the_containers_of_the_guide_load(
    load: Callable[[str], SearchSpace], tmp_path: Path
) -> None:
    space = {**yaml.safe_load(EXAMPLES["own-trainer.md"][0]), **yaml.safe_load(IN_CONTAINER)}
    container = load(yaml.safe_dump(space)).trainer.container
    assert container is not None and container.mounts == ["/data:/data:ro", "/lustre:/lustre"]
    for text in CONTAINER_SITES:
        (tmp_path / "site.yaml").write_text(text)
        assert Site.load(str(tmp_path / "site.yaml")).containers is not None


def test_the_guide_names_a_cluster_file_beside_the_space(
    load: Callable[[str], SearchSpace], tmp_path: Path, good: str
) -> None:
    (tmp_path / "hal.yaml").write_text(
        "{name: hal, gpus_per_node: 4, memory_gib: 80, peak_bf16_tflops: 312}"
    )
    space = load(yaml.safe_dump({**yaml.safe_load(good), **yaml.safe_load(OWN_CLUSTER)}))
    assert space.cluster is not None and space.cluster.name == "hal"
