"""The folder for tests that make thousands of durable writes."""

import os

SHARED_MEMORY = "/dev/shm"


def memory_folder() -> str | None:
    """A folder in memory, as CDI directories are on nodes; None (the usual temporary folder) without one."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None
