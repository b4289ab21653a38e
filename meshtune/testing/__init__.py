"""Contract suites: tests that the author of a launcher runs against it. Needs pytest."""

import pytest

# Else a failure shows no values.
pytest.register_assert_rewrite("meshtune.testing.launchers", "meshtune.testing.process_launchers")
