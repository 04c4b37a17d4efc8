"""A Kubernetes Dynamic Resource Allocation driver for NVIDIA GPUs.

Nothing is imported here: every process loads only the packages that it needs (docs/architecture.md).
"""

__version__ = "0.1.0"
