"""Before a run: the cost model and its predictions. After it: the run as data, SHAP, the report.

What it exports is listed in ``__init__.pyi`` and imported when it is first used, so that a command
that reads a journal does not wait for pandas, scipy and shap.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
