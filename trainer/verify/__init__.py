"""The checks of ``meshtune verify-gpu``; ``python -m trainer.verify`` runs one in a process."""

from trainer.verify.plan import SIZES, TINY, Check, planned

__all__ = ["SIZES", "TINY", "Check", "planned"]
