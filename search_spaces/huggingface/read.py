"""Reading a model from ``config.json``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from foundation.documents import as_written, parse_document
from foundation.files import FileError, parse_json, read_text
from foundation.messages import nearest
from search_spaces.errors import SpaceError
from search_spaces.huggingface.architectures import (
    MOST_TOKENS,
    Architecture,
    architectures,
    tower_parameters,
)
from search_spaces.huggingface.keys import Keys
from search_spaces.language.schema import ModelFile
from trainer.plan.model import ROPE_DEFAULTS, ROPE_KEYS

MAX_BYTES = 1_000_000
USUAL_LENGTH = 8192  # tokens of a training sequence, if a model accepts more
_INSIDE = "text_config"  # the language model of a model that also reads pictures
_TOWER = "vision_config"  # its vision tower
_COUNTING_S = 300
_MOST_SCALE = 100  # of YaRN, as a model's record takes it
_PROGRAM = """
import json, sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
config = AutoConfig.for_model(**json.load(sys.stdin))
with torch.device("meta"):
    try:
        model = AutoModelForCausalLM.from_config(config)
    except ValueError:
        model = AutoModelForImageTextToText.from_config(config)
model.tie_weights()
print("parameters", sum(p.numel() for p in {id(p): p for p in model.parameters()}.values()))
"""


def read_config(path: Path, seq_length: int | None = None) -> ModelFile:
    """The model that Hugging Face's ``config.json`` describes.

    ``seq_length`` are tokens of a training sequence; default 8192, or fewer if the model was
    trained for fewer.

    Raises SpaceError if it is no such file, or a model's record cannot describe it.
    """
    try:
        text = read_text(path, MAX_BYTES)
        parse_json(text, str(path))
    except FileError as error:
        raise SpaceError(str(error)) from None
    document = parse_document(text, str(path), SpaceError)  # the same, with lines and columns
    keys = Keys(document)
    if isinstance(keys.given(_INSIDE), dict):
        keys = Keys(document, (_INSIDE,))
    kind, architecture, total = _architecture(keys, text)
    keys = Keys(document, keys.above, architecture.defaults, architecture.names)
    shape = architecture.shape(keys)
    tower = Keys(document, (_TOWER,))
    if keys.above and isinstance(Keys(document).given(_TOWER), dict):
        further = shape.get("further_parameters", 0)
        shape["further_parameters"] = further + tower_parameters(tower, shape["hidden_size"])
    shape["seq_length"] = seq_length or min(_longest(keys), USUAL_LENGTH)
    theta = keys.rope("rope_theta")
    if shape["positions"] == "rotary" and isinstance(theta, (int, float)):
        shape["rope_theta"] = float(theta)
    if isinstance(eps := keys.given("rms_norm_eps"), float):
        shape["norm_eps"] = eps
    shape |= _stretched(keys, "kv_lora_rank" in shape)
    model = _record(keys, kind, shape)
    return model if total is None else _with_all(keys, model, total)


def _stretched(keys: Keys, latent: bool) -> dict[str, Any]:
    """How positions are scaled, if the built-in trainer can do it; otherwise it is not priced."""
    way = keys.rope("rope_type") or keys.rope("type")
    if way == "yarn":
        # With unequal scales, or none, only the rotary channels of keys become larger.
        scales = [keys.rope(key) for key in ("mscale", "mscale_all_dim")]
        equal = scales[0] == scales[1] and isinstance(scales[0], (int, float))
        if not (latent and equal and 0 < scales[0] <= _MOST_SCALE):
            return {}
    elif way != "llama3":
        return {}
    found = {key: keys.rope(key) for key in ROPE_KEYS[way]}
    stated = ROPE_DEFAULTS[way] | {key: v for key, v in found.items() if v is not None}
    return {"rope_type": way, **{ROPE_KEYS[way][key]: value for key, value in stated.items()}}


def _with_all(keys: Keys, model: ModelFile, total: int) -> ModelFile:
    """A model of usual layers with further parameters up to ``total``."""
    further = total - model.num_parameters
    if further < 0:
        raise keys.error(
            "model_type",
            f"found {model.name}, of {total:,} parameters in transformers: fewer than a Llama of "
            f"these sizes has, {model.num_parameters:,}; describe it by a record (*.yaml)",
        )
    return model.model_copy(update={"further_parameters": further})


def _architecture(keys: Keys, text: str) -> tuple[str, Architecture, int | None]:
    """The architecture's name and record; a Llama with its total of parameters if unknown."""
    kind = keys.given("model_type")
    if kind is None:
        raise keys.error(
            "model_type",
            "found nothing, accepted a Hugging Face config.json: it names its architecture there",
        )
    known = isinstance(kind, str) and kind in architectures()
    if isinstance(kind, str) and not known and (total := counted_parameters(text)) is not None:
        return kind, Architecture(defaults={}), total
    if not known:
        classes = keys.given("architectures")
        of = f" of {as_written(classes[0])}" if isinstance(classes, list) and classes else ""
        raise keys.error(
            "model_type",
            f"found {as_written(kind)}{of}, accepted "
            f"{', '.join(sorted(architectures()))}{nearest(str(kind), architectures())}; describe "
            "another model by a record of its sizes (*.yaml)",
        )
    return kind, architectures()[kind], None


@cache
def counted_parameters(text: str) -> int | None:
    """Parameters of the model that a ``config.json`` describes, counted by ``transformers``.

    None if ``transformers`` is missing or does not know the architecture either. A process of its
    own builds the model, on torch's meta device: importing both takes seconds.
    """
    if find_spec("transformers") is None or find_spec("torch") is None:
        return None
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=text,
            capture_output=True,
            text=True,
            timeout=_COUNTING_S,
            env=quiet,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    found = words and done.returncode == 0 and words[-2:-1] == ["parameters"]
    return int(words[-1]) if found else None


def _longest(keys: Keys) -> int:
    """Sequence length for which the model was trained, before its positions were scaled."""
    before = keys.rope("original_max_position_embeddings")
    longest = keys.count("max_position_embeddings", most=MOST_TOKENS)
    is_count = isinstance(before, int) and not isinstance(before, bool) and before >= 1
    return min(longest, before) if is_count else longest


def _record(keys: Keys, kind: str, shape: Mapping[str, Any]) -> ModelFile:
    name = keys.document.name
    window = shape.get("window_size")
    if window and window >= shape["seq_length"]:  # it hides nothing
        shape = {k: v for k, v in shape.items() if k not in ("windowed_layers", "window_size")}
    try:
        return ModelFile(name=kind, source=name, **shape)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        what = str(first.get("ctx", {}).get("error") or f"{where}: {first['msg']}")
        raise keys.document.error((), f"found sizes that make no model: {what}") from None
