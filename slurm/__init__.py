"""Nodes and processes: pool, launchers, outcomes, batch jobs. Imports neither torch nor deephyper.

A name is imported when it is used first: the fork server and its ranks pay for what they need.

>>> from slurm import Kind
>>> Kind.OOM.observed, Kind.NODE_FAILURE.observed
(True, False)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
