"""Real GPUs through NVML. Only this package imports pynvml."""

from dra_driver.core.lean_imports import without

with without("ctypes.util"):  # which imports tempfile, random and all compressions, to find the library on Windows
    import pynvml  # noqa: F401
