"""Contract suites: tests that authors of launchers and policies run on them. Needs pytest."""

import pytest

# Else a failure shows no values.
pytest.register_assert_rewrite(
    "meshtune.testing.launchers", "meshtune.testing.process_launchers", "meshtune.testing.policies"
)
