"""The proof that nothing of a trial is left, by asking the nodes themselves."""
