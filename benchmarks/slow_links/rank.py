"""One rank of a trial, inside the node that its environment names.

``python -m benchmarks.slow_links.rank CONFIG.json`` is ``python -m trainer CONFIG.json`` there.
"""

from __future__ import annotations

import os
import sys

from benchmarks.slow_links.network import enter_namespace
from trainer.__main__ import main

NAMESPACE_VARIABLE = "SLOW_LINKS_NAMESPACE"

if __name__ == "__main__":
    enter_namespace(os.environ[NAMESPACE_VARIABLE])
    sys.exit(main(sys.argv[1:]))
