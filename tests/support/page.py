"""A report's page as a browser sees it, without one."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "img", "br", "hr", "link", "input", "wbr"}


class Page(HTMLParser):
    """What a browser would see: text, tags with attributes, rows of tables."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data):
        if "style" not in self.open and "script" not in self.open:
            self.text += data

    def all(self, tag: str, attribute: str) -> list[str]:
        found = [attrs for name, attrs in self.tags if name == tag and attribute in attrs]
        return [attrs[attribute] or "" for attrs in found]
