"""Contract suites: tests that authors run on their launchers, policies and trainers."""

import pytest

# Without this a failure shows no values.
pytest.register_assert_rewrite(
    "meshtune.testing.launchers", "meshtune.testing.process_launchers", "meshtune.testing.policies"
)
