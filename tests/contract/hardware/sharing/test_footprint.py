"""The MPS host runs on every node that has GPUs, mostly to do nothing: it has to be small."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.contract.hardware.sharing.conftest import Node, until

LOADED = """
import sys
from dra_driver.core.command_line import main; from dra_driver.hardware.sharing import main as mps_host
from dra_driver.config.options import flags_of
import dra_driver.hardware.sharing.host, dra_driver.core.telemetry.logs
print(*sys.modules)
"""
TOO_MUCH = {
    "pydantic",
    "kubernetes",
    "grpc",
    "sqlite3",
    "yaml",
    "prometheus_client",
    "pynvml",
    "asyncio",
    "ssl",
    "_hashlib",
}
PACKAGES = {"core", "config", "hardware"}


def test_nothing_of_the_node_process_is_loaded() -> None:
    output = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    loaded = set(output.split())
    assert not loaded & TOO_MUCH
    assert {name.split(".")[1] for name in loaded if name.startswith("dra_driver.")} <= PACKAGES
    assert not {name for name in loaded if name.startswith(("dra_driver.hardware.gpu", "dra_driver.hardware.mig"))}
    assert not {name for name in loaded if name.startswith("dra_driver.core.telemetry.")} - {
        "dra_driver.core.telemetry.logs"
    }


def test_an_idle_host_takes_little_memory_and_next_to_no_cpu(node: Node) -> None:
    """Measured 17 MiB and 0.1 % of a core; the bounds allow for slow machines, not for another library."""
    host = node.start_host()
    until(lambda: "MPS host started" in node.host_log())
    before, began = _cpu_s(host.pid), time.monotonic()
    time.sleep(2.0)
    used, passed = _cpu_s(host.pid) - before, time.monotonic() - began
    assert used / passed < 0.02
    resident = int(Path(f"/proc/{host.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident < 24 * 2**20


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
