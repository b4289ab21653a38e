"""A space names a model by its ``config.json``, or by its name on the hub."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from search_spaces import SearchSpace, SpaceError, load_space, notes
from search_spaces.huggingface.architectures import architectures
from support.llama_config import LLAMA


def _space(folder: Path, model: Any) -> SearchSpace:
    content = {
        "version": 1,
        "model": model,
        "cluster": "dgx_h100",
        "trainer": {"command": ["train", "{tp}"]},
        "parameters": {"tp": [1, 2]},
        "objective": {"maximize": "speed"},
    }
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "space.yaml").write_text(yaml.safe_dump(content))
    return load_space(folder / "space.yaml")


def test_a_space_names_a_configuration_beside_it(tmp_path: Path) -> None:
    space = _space(tmp_path, "config.json")
    assert space.model is not None and space.model.seq_length == 8192
    assert any("sequences of 8,192 tokens" in note for note in notes(space))
    frozen = tmp_path / "frozen.yaml"
    frozen.write_text(space.frozen())
    assert load_space(frozen).fingerprint == space.fingerprint


@pytest.mark.parametrize("base", ["config.json", "llama_8b"])
def test_a_space_says_how_long_a_named_models_sequences_are(base: str, tmp_path: Path) -> None:
    space = _space(tmp_path, {"base": base, "seq_length": 1024})
    assert space.model is not None and space.model.seq_length == 1024
    assert not any("sequences of" in note for note in notes(space))


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("other.json", r"key 'model': found 'other.json':\n.*there is no such file"),
        ("config", r"accepted a file \(\*\.yaml or \*\.json\)"),
        ({"base": "config.json", "length": 9}, "accepted: base, seq_length"),
        ({"base": "config.json", "seq_length": 0}, "key 'model.seq_length': found 0, accepted 1"),
    ],
)
def test_a_model_that_cannot_be_named_so_is_refused(
    model: Any, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(SpaceError, match=complaint):
        _space(tmp_path, model)


def test_the_guide_names_every_architecture() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "spaces.md").read_text()
    words = set(
        re.findall(r"\w+", guide.split("**Hugging Face.**")[1].split("Keys that a file")[0])
    )
    assert architectures().keys() - {"gemma3_text", "gemma3n_text"} <= words


def test_a_name_of_the_hub_is_looked_up_in_the_local_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "models--acme--Llama-x.1" / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    space = {
        "version": 1,
        "model": "acme/Llama-x.1",
        "trainer": {"command": ["train", "{tp}"]},
        "parameters": {"tp": [1, 2]},
        "objective": {"maximize": "x"},
    }
    model = load_space(space).model
    assert model is not None and model.hidden_size == 2048
    with pytest.raises(SpaceError, match=r"acme/Llama-y.*hf download acme/Llama-y config.json"):
        load_space({**space, "model": "acme/Llama-y"})
