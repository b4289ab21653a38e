"""Contract suites: tests that authors of launchers, policies and trainers run on them."""

import pytest

# Else a failure shows no values.
pytest.register_assert_rewrite(
    "meshtune.testing.launchers", "meshtune.testing.process_launchers", "meshtune.testing.policies"
)
