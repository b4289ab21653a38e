"""The pages on placements say what the code says: tables, picture, messages, counted bytes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.expected_traffic import expected_traffic
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.plan.presets import PRESETS

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "guide" / "training.md").read_text()
MECHANISM = (DOCS / "how-it-works" / "placements.md").read_text()
PAGES = GUIDE + MECHANISM
REFUSED = re.findall(r"^\| `(\{.*?\})` \| `(.*?)` \|$", MECHANISM, re.MULTILINE)
CONFIG, TOPO, ZERO3 = (json.loads(t) for t in re.findall(r"^```json\n(.*?)```", PAGES, re.M | re.S))
REFERENCE = (DOCS / "guide" / "reference.md").read_text()


def test_every_table_is_what_the_script_prints() -> None:
    script = [sys.executable, str(DOCS / "placements.py")]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    tables = printed.strip().split("\n\n")
    assert len(tables) == 3
    for table in tables:
        assert table in PAGES


@pytest.mark.parametrize("name", ["placements", "context"])
def test_a_picture_is_what_its_script_draws(name: str) -> None:
    code = f"import {name}_picture as p, sys; sys.stdout.write(p.picture())"
    command = [sys.executable, "-c", code]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True, cwd=DOCS).stdout
    assert drawn == (DOCS / "images" / f"{name}.svg").read_text()


@pytest.mark.parametrize(("settings", "answer"), REFUSED)
def test_what_is_refused_is_refused_in_these_words(settings: str, answer: str) -> None:
    config = TrainConfig.parse({"model": CONFIG["model"], "data": "", **yaml.safe_load(settings)})
    with pytest.raises(ConfigError) as caught:
        config.check(8)
    assert str(caught.value) == answer


@pytest.mark.parametrize(("placement", "quoted"), [("zero_topo", TOPO), ("zero3", ZERO3)])
def test_counted_bytes_are_those_of_the_example(placement: str, quoted: dict[str, Any]) -> None:
    config = TrainConfig.parse({**CONFIG, "placement": placement})
    assert expected_traffic(config, 8)["bytes"] == quoted


def test_every_setting_and_name_of_a_placement_is_there() -> None:
    about = re.compile(r"shard|quantize|secondary|placement|zero_stage|^reduce_|time_comm")
    settings = {name for name in TrainConfig.model_fields if about.search(name)}
    assert [name for name in settings if f"| `{name}` |" not in REFERENCE] == []
    assert len(REFUSED) >= 9
    assert all(f"| `{preset}` |" in MECHANISM for preset in PRESETS)
