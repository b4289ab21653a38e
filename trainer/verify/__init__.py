"""The checks of ``meshtune verify-gpu``; ``python -m trainer.verify`` runs one in a process."""
