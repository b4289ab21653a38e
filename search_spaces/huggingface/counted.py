"""Parameters of an architecture without a record, counted by ``transformers`` if it is installed.

It builds the model without memory (torch's meta device), in a process of its own: importing it
takes seconds, and would load torch into commands that do without.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec

TIMEOUT_S = 300
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


@cache
def counted_parameters(text: str) -> int | None:
    """Parameters of the model that a ``config.json`` describes.

    None where ``transformers`` is missing, or does not know the architecture either.
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
            timeout=TIMEOUT_S,
            env=quiet,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    found = words and done.returncode == 0 and words[-2:-1] == ["parameters"]
    return int(words[-1]) if found else None
