"""The error for a wrong space, or a wrong record that it names."""

from __future__ import annotations

from foundation.files import FileError


class SpaceError(FileError):
    """A mistake in a space or a record; the message is complete and names the remedy."""
