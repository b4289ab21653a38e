"""Search spaces: the language of their files, the records they name, and their valid points.

>>> space = load_space("gpt_175b_frontier_table4")
>>> space.raw_size, check(space).valid
(3264, 2788)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
