"""Three-dimensional tensor parallelism: layers over a grid of ranks (Singh et al. 2024, V-A)."""
