"""The search: policies, the driver that runs trials, and the command line.

A name is imported when it is used first: a process that asks for little imports little.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
