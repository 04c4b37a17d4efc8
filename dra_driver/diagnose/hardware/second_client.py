"""A second NVML client: ``python -m dra_driver.diagnose.hardware.second_client``, with a JSON task on stdin's first
line.

Opens NVML, holds a handle of every GPU (and an event set, as monitors do), lists the instances of one GPU on request,
and prints one JSON line for each line on stdin. Ends at the end of stdin.
"""

import json
import os
import sys
from typing import Any

from dra_driver.diagnose.hardware.child import name_process
from dra_driver.hardware.gpu.nvml import mig_probes, probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.sharing.namespace import die_with_parent


def main() -> int:
    """The program."""
    name_process()
    task = json.loads(sys.stdin.readline())
    die_with_parent(task["parent"])
    backend = NvmlBackend(task["library"])
    backend.open()
    held = probes.handles()
    with mig_probes.event_set(held) as registered:
        _say({"registered": registered})
        for line in sys.stdin:
            answer = {"instances": mig_probes.instances(held[int(line)], task["profiles"])} if line.strip() else {}
            _say(answer)
    backend.close()
    return 0


def _say(document: dict[str, Any]) -> None:
    os.write(1, json.dumps(document).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
