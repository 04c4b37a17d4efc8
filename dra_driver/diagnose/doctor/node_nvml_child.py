"""Opens NVML and prints what it says: ``python -m dra_driver.diagnose.doctor.node_nvml_child LIBRARY``.

A process of its own, because a call of NVML may hang for ever. It reads, and changes nothing.
"""

import ctypes
import json
import signal
import sys

from dra_driver.core.errors import DraError
from dra_driver.diagnose.doctor.node_driver_facts import ANSWER
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(library: str) -> int:
    """Print one line with the answer."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    gpus, left, problem = 0, [], None
    backend = NvmlBackend(library)
    try:
        backend.open()
        snapshot = backend.snapshot()
        gpus, left = len(snapshot.gpus), [f"{each.label}: {each.reason}" for each in snapshot.left_out]
    except DraError as error:
        problem = str(error)
    print(f"\n{ANSWER}{json.dumps({'gpus': gpus, 'left': left, 'problem': problem})}", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
