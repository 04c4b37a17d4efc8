"""What the controller loads: nothing of nodes, of hardware or of the parts for people."""

import subprocess
import sys

ABSENT = ("dra_driver.gpu", "dra_driver.kubelet", "dra_driver.claims", "dra_driver.sim", "dra_driver.cel")
ABSENT_TOO = ("dra_driver.allocation", "dra_driver.slices", "grpc", "pynvml", "pydantic", "kubernetes", "rich")
ONLY_WITH_THE_WEBHOOK = ("cryptography", "dra_driver.controller.webhook", "dra_driver.lint", "dra_driver.webhook")


def test_the_controller_loads_neither_hardware_nor_kubelet() -> None:
    """It runs anywhere without rights, and small."""
    code = "import sys, dra_driver.cli.controller, dra_driver.controller.process; print('\\n'.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(answer.stdout.split())
    assert "dra_driver.controller.evictions" in loaded
    unwanted = (*ABSENT, *ABSENT_TOO, *ONLY_WITH_THE_WEBHOOK)
    assert sorted(name for name in loaded if name.startswith(unwanted)) == []
