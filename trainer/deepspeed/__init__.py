"""DeepSpeed as the second engine."""
