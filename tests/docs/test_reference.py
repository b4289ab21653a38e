"""docs/guide/reference.md is what docs/reference.py prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from search_spaces import json_schema

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guide" / "reference.md").read_text()


def test_the_reference_is_what_the_schema_says() -> None:
    script = [sys.executable, str(DOCS / "reference.py")]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert printed == PAGE, "python docs/reference.py > docs/guide/reference.md"


def test_every_key_of_a_space_has_a_row() -> None:
    schema = json_schema()
    records = (schema, *schema["$defs"].values())
    keys = {key for record in records for key in record.get("properties", ())}
    assert len(keys) > 100
    assert [key for key in keys if f"| `{key}` |" not in PAGE] == []
