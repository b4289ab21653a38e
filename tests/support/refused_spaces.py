"""What a user reads of a space that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces import SpaceError, check, load_space


def message(path: Path | str) -> str:
    """What a user would read; anything but SpaceError fails the test."""
    with pytest.raises(SpaceError) as caught:
        check(load_space(path))
    text = str(caught.value)
    assert "Traceback" not in text
    return text
