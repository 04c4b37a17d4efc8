"""GPU hardware: the interface (``backend.py``), the NVML and the simulated backend, and the inventory.

Other packages import its modules: a process without NVML must not load the backends.
"""
