"""Keep GPUs initialised while the NVML session is exchanged.

Without persistence mode the kernel module stops a GPU when its last device file is closed (open-gpu-kernel-modules,
nv.c, nv_close_device), and its next user starts it again. That takes seconds, and settings such as the compute mode of
a claim whose pod has not started yet are lost. An open device file is enough to prevent it.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def kept_awake(minors: Iterable[int], dev_folder: str) -> Iterator[None]:
    """Have ``<dev_folder>/nvidia<minor>`` open inside the block, where that is possible. Never raises."""
    descriptors = []
    try:
        for minor in minors:
            with contextlib.suppress(OSError):
                # NONBLOCK: the kernel module does not wait for a GPU that is being started (nv.c, nvidia_open).
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
                descriptors.append(os.open(f"{dev_folder}/nvidia{minor}", flags))
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
