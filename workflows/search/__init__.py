"""The search: session, driver, trials, and when it ends."""
