"""The page on paper, and its figures in files, by a real browser."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from support.browser import MISSING, Browser, installed
from support.page_run import FIGURES, TRIALS

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)

EXPORTED = """
return exported(document.getElementById('figure-effects-model'), '{as_}').then(
    async (blob) => [blob.type, blob.size, '{as_}' === 'svg' ? await blob.text() :
        await createImageBitmap(blob).then((b) => [b.width, b.height])])
"""
LONG = """
const table = document.getElementById('top');
table.classList.add('wide');
for (const row of table.rows) for (let k = 0; k < 8; k += 1) {
  const cell = row.insertBefore(row.cells[3].cloneNode(), row.cells[3]);
  const head = row.parentNode === table.tHead;
  cell.textContent = head ? k + '_param_gather_with_optimizer_step' : k + ',123';
}
"""
BROKEN = """
return [...document.querySelectorAll('td.n')].filter((cell) => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
  return lines.size > 1 && !cell.textContent.includes(' ');
}).map((cell) => cell.textContent)
"""
PAPER = (
    "return Promise.all(['svg', 'pdf'].map((as) =>"
    " forPaper(document.getElementById('{}'), '{} ' + as).text()))"
)


def test_a_figure_is_saved_as_svg_and_png_in_the_colours_of_the_theme(window: Browser) -> None:
    bar = (
        "const f = document.getElementById('figure-effects-model'); drawn.effects(f);"
        "return [getComputedStyle(f.querySelector('.bar')).fill,"
        " Number(f.querySelector('svg').getAttribute('width'))]"
    )
    saved = []
    for _ in range(2):
        colour, width = window.run(bar)
        kind, _, text = window.run(EXPORTED.replace("{as_}", "svg"))
        assert kind == "image/svg+xml" and colour in text and "class=" not in text
        kind, size, pixels = window.run(EXPORTED.replace("{as_}", "png"))
        assert kind == "image/png" and size > 1000 and pixels[0] == 3 * width
        saved.append(text)
        window.run("document.getElementById('theme').click()")
    assert saved[0] != saved[1]


def test_on_paper_every_figure_is_drawn_and_no_row_is_missing(window: Browser) -> None:
    window.run("location.reload()")
    state = (
        "return [[...document.querySelectorAll('figure[data-draw]')]"
        ".map((f) => Number((f.querySelector('svg') || {getAttribute: () => 0})"
        ".getAttribute('width'))),"
        "[...document.querySelectorAll('#trials tbody tr')].filter((r) => !r.hidden).length,"
        "document.documentElement.dataset.theme || '']"
    )
    before = window.run(state)
    widths, rows, theme = window.run("dispatchEvent(new Event('beforeprint'));" + state)
    assert set(widths) == {700} and len(widths) == len(FIGURES)
    assert (rows, theme) == (TRIALS, "light")
    after = window.run("dispatchEvent(new Event('afterprint'));" + state)
    assert after[1:] == before[1:] and 700 not in after[0]
    assert len(window.pdf()) > 50_000
    assert window.complaints() == []


def test_on_paper_no_number_is_broken_no_table_is_cut_and_a_figure_fits_a_page(
    window: Browser,
) -> None:
    wide, high = 704, 1000  # pixels of an A4 page within its margins
    window.width(wide)
    window.media("print")
    window.run(LONG + "dispatchEvent(new Event('beforeprint'))")
    assert window.run(BROKEN) == []
    tables = "return [...document.querySelectorAll('table')].map((t) => [t.id, t.scrollWidth])"
    assert {name for name, across in window.run(tables) if across > wide} == set()
    assert window.run(
        "return Math.max(...[...document.querySelectorAll('figure')].map((f) => f.offsetHeight))"
    ) < high  # fmt: skip
    window.media("")
    window.run("location.reload()")
    window.width(1440)


@pytest.mark.parametrize("inches", [3.3, 6.9])
def test_every_figure_is_saved_for_a_paper_at_its_width_with_text_of_8_points(
    window: Browser, inches: float
) -> None:
    before = window.run("return document.documentElement.dataset.theme || ''")
    for name in FIGURES:
        svg, pdf = window.run(PAPER.format(f"figure-{name}", inches))
        root = ElementTree.fromstring(svg)
        wide = float(root.attrib["viewBox"].split()[2])
        assert root.attrib["width"] == f"{inches}in", name
        words = [e for e in root.iter("{http://www.w3.org/2000/svg}text") if e.text]
        for text in words:
            size = float(text.attrib["font-size"].removesuffix("px"))
            assert size * inches * 72 / wide == pytest.approx(8, abs=0.02)
        title = words[-1].text  # above the figure
        assert title and len(words) > 5 and "NaN" not in svg and "NaN" not in pdf
        # The PDF has the same words on a page as wide, and its table of objects is right.
        box = re.search(r"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
        assert box and float(box[1]) == pytest.approx(72 * inches, rel=0.003)
        assert pdf.count(" Tj ET") == len(words) and f"({title[:6]}" in pdf
        start = int(re.findall(r"startxref\n(\d+)", pdf)[0])
        assert pdf[start:].startswith("xref")
        for number, at in enumerate(re.findall(r"(\d{10}) 00000 n", pdf[start:]), start=1):
            assert pdf[int(at) :].startswith(f"{number} 0 obj")
    assert window.run("return document.documentElement.dataset.theme || ''") == before
    assert window.complaints() == []
