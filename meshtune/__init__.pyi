from .api import (
    Closed as Closed,
)
from .api import (
    Ended as Ended,
)
from .api import (
    Event as Event,
)
from .api import (
    Opened as Opened,
)
from .api import (
    Run as Run,
)
from .api import (
    Started as Started,
)
from .api import (
    load as load,
)
from .api import (
    load_space as load_space,
)
from .api import (
    plot_sensitivity as plot_sensitivity,
)
from .api import (
    predict as predict,
)
from .api import (
    report as report,
)
from .api import (
    search as search,
)
from .api import (
    sensitivity as sensitivity,
)
from .study import Study as Study
