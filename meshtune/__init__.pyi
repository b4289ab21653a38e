from .api import (
    Closed,
    Ended,
    Event,
    Opened,
    Run,
    Started,
    load,
    load_space,
    plot,
    predict,
    report,
    search,
    sensitivity,
)
from .study import Study

__all__ = [
    "Closed",
    "Ended",
    "Event",
    "Opened",
    "Run",
    "Started",
    "Study",
    "load",
    "load_space",
    "plot",
    "predict",
    "report",
    "search",
    "sensitivity",
]
