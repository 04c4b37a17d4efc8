"""The command that runs this project's own driver with simulated GPUs, in a folder of its own.

Two policies make it show more: the first GPU has a taint, and the second one is shared as well.
"""

import sys
from pathlib import Path
from typing import Final

POLICIES: Final = """\
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata:
  name: tainted
spec:
  select:
    minors: [0]
  taints:
    - key: conformance.dra-driver.io/tainted
      value: "yes"
---
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata:
  name: shared
spec:
  select:
    minors: [1]
  sharing:
    strategy: TimeSlicing
"""


def command(spec: str, folder: Path, *, kubeconfig: str, node: str) -> list[str]:
    """The command line; makes the folders that it names, of which ``reg`` and ``cdi`` matter to the suite."""
    for name in ("reg", "plugins", "cdi", "policies"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "policies" / "policies.yaml").write_text(POLICIES)
    return [
        *(sys.executable, "-m", "dra_driver.core.command_line.main", "kubelet-plugin"),
        *("--node-name", node),
        *("--kubeconfig", kubeconfig),
        *("--kubelet-registrar-dir", str(folder / "reg")),
        *("--kubelet-plugins-dir", str(folder / "plugins")),
        *("--cdi-dir", str(folder / "cdi")),
        *("--policy-dir", str(folder / "policies")),
        *("--nvidia-cdi-hook-path", "none"),
        *("--simulate", spec),
    ]
