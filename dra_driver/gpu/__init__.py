"""GPU hardware: the interface (``backend.py``), the NVML and the simulated backend, and the inventory.

Other packages import its modules: the MPS host needs ``library.py`` alone and must not load the backends.
"""
