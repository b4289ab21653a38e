from __future__ import annotations

from collections.abc import Iterator

import pytest

from analysis.report import forests, model_sensitivity


@pytest.fixture(scope="module")
def quick_forests() -> Iterator[None]:
    """Few refits, where it does not matter how sure rankings are."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (forests, model_sensitivity):
            patch.setattr(module, "NUM_REFITS", 2)
        yield
