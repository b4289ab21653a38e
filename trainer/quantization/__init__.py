"""Block quantization: one definition and its kernels."""
