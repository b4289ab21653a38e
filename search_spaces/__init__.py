"""Shipped spaces (``*.yaml``), and the models and clusters that they name. YAML only."""
