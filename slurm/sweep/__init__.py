"""The proof, by asking the nodes themselves, that no process of a trial is left."""
