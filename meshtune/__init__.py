"""Finds the parallel training configuration of an LLM that trains fastest on a cluster.

>>> import meshtune
>>> meshtune.load_space("tiny_cpu").objective.key
'tokens_per_second'

Names are imported on first use: ``import meshtune`` itself takes milliseconds.
"""

import lazy_loader

from meshtune.own_packages import install

install()  # before anything of ours is imported
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
