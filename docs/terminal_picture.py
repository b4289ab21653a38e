"""Draws docs/images/terminal.svg: ``python docs/terminal_picture.py``.

The panel of a search of ``gpt_22b_frontier`` on a simulated cluster, as a terminal of 80 x 24 shows
it once MOMENT trials have ended.
"""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from analysis import Event, RunFolder
from search_spaces import load_space
from workflows.search.driver import Driver
from workflows.search.panel import Panel
from workflows.search.session import Search, open_driver
from workflows.simulation.workload import simulated_launcher

PICTURE = Path(__file__).parent / "images" / "terminal.svg"
SPACE, CLUSTER = "gpt_22b_frontier", "nodes=32"
COMMAND = f"meshtune search {SPACE} --launcher simulate --simulate {CLUSTER}"
MOMENT = 12  # trials that have ended
COLUMNS, LINES = 80, 24


class _Seen(Exception):  # noqa: N818 - no error: the moment has come
    """Ends the search."""


def picture() -> str:
    """The panel as SVG."""
    console = Console(
        file=io.StringIO(), record=True, force_terminal=True, width=COLUMNS, height=LINES
    )
    panel, space = Panel(console), load_space(SPACE)

    def listen(_: Event | str | None, driver: Driver) -> None:
        ended = sum(trial.ended for trial in driver.state.trials.values())
        drawn = panel.draw(driver)
        if ended >= MOMENT and len(driver.running) > 1:
            console.print(Text(f"$ {COMMAND}", style="bold"), soft_wrap=True)
            console.print(drawn)
            raise _Seen

    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        launcher = simulated_launcher(space, CLUSTER)
        try:
            with open_driver(Search(space, run, launcher, 0), listen) as driver:
                driver.run()
        except _Seen:
            pass
    drawn = console.export_svg(title="meshtune search", unique_id="terminal")
    # The fonts of the reader's machine: a picture loads nothing from elsewhere.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(picture())
