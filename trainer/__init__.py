"""One trial's training. Knows nothing of searches; ``python -m trainer CONFIG.json`` runs it."""
