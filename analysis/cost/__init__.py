"""Memory and time of training configurations, predicted before anything runs."""
