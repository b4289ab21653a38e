"""``meshtune.Study``, imported when it is used."""

from workflows import Study

__all__ = ["Study"]
