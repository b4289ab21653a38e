"""The proof that nothing of a trial is left on its nodes: they are asked themselves."""
