"""A run on disk: its folder, journal and tables. Nothing else reads or writes them."""
