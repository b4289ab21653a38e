"""One trial's training. Knows nothing of searches; ``python -m trainer CONFIG.json`` runs it.

Exports are listed in ``__init__.pyi`` and imported at first use: the records that describe a
training run, and the rules and formulas that follow from them, all torch-free.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
