"""The benchmarks are no part of the distribution: they are found beside the tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
