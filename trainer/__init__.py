"""One trial's training. Knows nothing of searches; ``python -m trainer CONFIG.json`` runs it.

What it exports is listed in ``__init__.pyi`` and imported when it is first used: the records that
say what is trained and how, and the rules and formulas that follow from them, all free of torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
