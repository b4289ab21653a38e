"""What a model recites of the texts it was trained on, with and without the goldfish loss."""
