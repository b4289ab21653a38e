"""The search: policies, the driver that runs trials, and the command line.

Names are imported on first use: a process imports no more than it needs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
