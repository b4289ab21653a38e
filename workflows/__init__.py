"""The search itself: space, proposer, driver, journal, budget and the command line."""
