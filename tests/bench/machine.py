"""What a report says about the machine and the versions; no host names, no paths."""

import os
import platform
import time
from pathlib import Path
from typing import Any

from dra_driver import __version__
from dra_driver.kube.rest import RestClient

_COMMITS = {"goDriver": "GO_DRIVER_COMMIT", "mockNvml": "MOCK_NVML_COMMIT", "cdiHook": "CDI_HOOK_COMMIT"}


def described(rest: RestClient) -> dict[str, Any]:
    """The machine's kind, versions and today's date, and this process' niceness."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    memory = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "nice": os.nice(0),
        "cores": os.cpu_count(),
        "cpu": cpu.partition(":")[2].strip(),
        "memoryGiB": round(int(memory) / 2**20),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "kubernetes": rest.get("/version")["gitVersion"],
        "driver": __version__,
        **{name: os.environ.get(variable, "unknown") for name, variable in _COMMITS.items()},
    }
