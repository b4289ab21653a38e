"""docs/guide/reference.md is what docs/reference.py writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from search_spaces import json_schema

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guide" / "reference.md").read_text()


def test_the_tables_are_what_the_schema_says() -> None:
    script = [sys.executable, "-c", "import reference as r, sys; sys.stdout.write(r.page())"]
    run = subprocess.run(script, capture_output=True, text=True, check=True, cwd=DOCS)
    assert run.stdout == PAGE, "write them anew: python docs/reference.py"
    assert PAGE.count("<!-- generated: ") == 4


def test_every_key_of_a_space_has_a_row() -> None:
    schema = json_schema()
    records = (schema, *schema["$defs"].values())
    keys = {key for record in records for key in record.get("properties", ())}
    assert len(keys) > 100
    assert [key for key in keys if f"| `{key}` |" not in PAGE] == []
