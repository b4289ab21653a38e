"""Results of searches that meshtune did not make, read as a run."""
