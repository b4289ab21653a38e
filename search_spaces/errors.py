"""The error of all that is wrong with a space, and with what it names."""

from __future__ import annotations

from foundation.files import FileError


class SpaceError(FileError):
    """The input is wrong; the message is complete and names the remedy."""
