"""What the controller loads: nothing of nodes, of hardware or of the parts for people."""

import subprocess
import sys

ABSENT = (
    "dra_driver.hardware.gpu",
    "dra_driver.node.process",
    "dra_driver.node.claims",
    "dra_driver.sim",
    "dra_driver.scheduler.cel",
)
ABSENT_TOO = (
    "dra_driver.scheduler.allocation",
    "dra_driver.kubectl.lint",
    "dra_driver.node.slices",
    "grpc",
    "pynvml",
    "pydantic",
    "kubernetes",
    "rich",
)


def test_the_controller_loads_neither_hardware_nor_kubelet() -> None:
    """It runs anywhere without rights, and small."""
    code = "import sys, dra_driver.controller.main, dra_driver.controller.process; print('\\n'.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(answer.stdout.split())
    assert "dra_driver.controller.evictions" in loaded
    assert sorted(name for name in loaded if name.startswith((*ABSENT, *ABSENT_TOO))) == []
