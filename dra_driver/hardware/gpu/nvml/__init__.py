"""Real GPUs through NVML. Only this package imports pynvml."""
