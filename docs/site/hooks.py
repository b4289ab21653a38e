"""Hooks of mkdocs: files outside docs/ that pages link to become pages of the site.

On GitHub such a link leads to the file; the site gets a copy under
source/, a Markdown file as a page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"\]\(((?:\.\./)+[\w./-]+)((?:#[\w-]*)?)\)")


def _copy(page: Path, link: str) -> str | None:
    """Where the site has the file that a page links to; None where mkdocs has it already."""
    target = (page.parent / link).resolve()
    if target.is_relative_to(ROOT / "docs") or not target.is_file():
        return None
    return f"source/{target.relative_to(ROOT)}{'' if target.suffix == '.md' else '.txt'}"


def on_files(files: Files, config: Any) -> Files:
    for file in list(files.documentation_pages()):
        page = Path(file.abs_src_path)
        for link, _ in OUTSIDE.findall(page.read_text()):
            if (copy := _copy(page, link)) and copy not in files.src_uris:
                content = (page.parent / link).resolve().read_text()
                content = content.replace("](../docs/", "](../../").replace("](docs/", "](../")
                files.append(File.generated(config, copy, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.generated_by:
        return markdown
    here = Path(page.file.abs_src_path)

    def inside(match: re.Match[str]) -> str:
        copy = _copy(here, match[1])
        if copy is None:
            return match[0]
        return f"]({os.path.relpath(copy, Path(page.file.src_uri).parent)})"

    return OUTSIDE.sub(inside, markdown)
