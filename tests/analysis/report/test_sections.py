"""The page is a list of sections, to which one more object adds another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from markupsafe import escape

from analysis.report.figures import embedded
from analysis.report.page import write_report
from analysis.report.section import Content, Section
from analysis.report.sections import SECTIONS
from analysis.run.fold import read_run
from analysis.run.frame import frame_of

pytestmark = pytest.mark.usefixtures("quick_forests")


def node_hours(content: Content) -> str:
    """A body made of a run's own figures."""
    return f"<p>{escape('<all>')}: {content.frame['node_hours'].sum():.3f}</p>"


SPENT = Section(
    "Node-hours & more",
    node_hours,
    condition=lambda content: len(content.frame) > 0,
    anchor="spent",
)


def test_one_more_object_is_one_more_section(build: Callable[..., Path]) -> None:
    folder = build(6)
    page = write_report(folder, [*SECTIONS, SPENT]).read_text()
    own = page[page.index('<section id="spent">') :]
    spent = sum(t.node_seconds for t in read_run(folder).trials.values()) / 3600
    assert own.split("</section>")[0].startswith(
        f'<section id="spent">\n<h2>Node-hours &amp; more</h2>\n<p>&lt;all&gt;: {spent:.3f}</p>'
    )
    assert page.count("<section") == 1 + write_report(folder).read_text().count("<section")


def test_a_section_whose_condition_is_false_is_not_drawn(build: Callable[..., Path]) -> None:
    never = Section("Never", node_hours, lambda _: False)
    assert "<section" not in write_report(build(6), [never]).read_text()


def test_a_title_may_depend_on_the_run(build: Callable[..., Path]) -> None:
    section = Section(lambda content: f"{len(content.frame)} <trials>", lambda _: "")
    assert "<h2>6 &lt;trials&gt;</h2>" in write_report(build(6), [section]).read_text()


@pytest.mark.parametrize("count", [0, 12])
def test_every_section_is_drawn_from_a_run_of_any_length(
    build: Callable[..., Path], count: int
) -> None:
    page = write_report(build(count)).read_text()
    assert page.count("<section") == page.count("</section>") >= 5


def test_a_section_alone_is_as_on_the_whole_page(build: Callable[..., Path]) -> None:
    run = read_run(build(24))
    contents = [Content(run, frame_of(run), run.directory) for _ in range(1 + len(SECTIONS))]
    whole = contents.pop()
    drawn = [section for section in SECTIONS if section.condition(whole)]
    assert len(drawn) > 5
    for section, alone in zip(drawn[::-1], contents, strict=False):
        assert section.draw(alone) == section.draw(whole)
        assert embedded(section.data(alone)) == embedded(section.data(whole))
