from .api import (
    Closed as Closed,
    Ended as Ended,
    Event as Event,
    Opened as Opened,
    Run as Run,
    Started as Started,
    load as load,
    load_space as load_space,
    plot as plot,
    predict as predict,
    report as report,
    search as search,
    sensitivity as sensitivity,
)
from .study import Study as Study
