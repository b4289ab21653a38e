"""The checks of ``meshtune verify-gpu``; ``python -m trainer.verify`` runs one in a process."""

from trainer.verify.models import SIZES, TINY
from trainer.verify.plan import Check, planned

__all__ = ["SIZES", "TINY", "Check", "planned"]
