"""Nodes and processes: pool, launchers, outcomes, batch jobs. Imports neither torch nor deephyper.

Names are imported on first use, so that the fork server and its ranks start fast.

>>> from slurm import Kind
>>> Kind.OOM.observed, Kind.NODE_FAILURE.observed
(True, False)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
