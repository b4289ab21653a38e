from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from analysis.report import forests, section, sensitivity
from analysis.report.page import write_report
from support.browser import Browser, browser
from support.page_run import write_run


@pytest.fixture(scope="module")
def quick_forests() -> Iterator[None]:
    """Few refits, where it does not matter how sure rankings are."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (forests, sensitivity):
            patch.setattr(module, "NUM_REFITS", 2)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module")
def window(folder: Path) -> Iterator[Browser]:
    write_run(folder / "run")
    with pytest.MonkeyPatch.context() as patch:  # how sure rankings are matters elsewhere
        patch.setattr(forests, "NUM_TREES", 20)
        patch.setattr(section, "LOW_R2", -np.inf)
        for module in (forests, sensitivity):
            patch.setattr(module, "NUM_REFITS", 2)
        page = write_report(folder / "run")
    with browser(folder) as opened:
        opened.open(page)
        yield opened
