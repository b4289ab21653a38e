"""The search space: what a YAML file may say, and what follows from it.

>>> space = load_space("gpt_175b_frontier_table4")
>>> space.raw_size, check(space).valid
(3264, 2788)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
