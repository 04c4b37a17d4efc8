"""How much memory the GPU of a share has: by the pod's labels, by those of nodes, or as the user says."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dra_driver.hardware.gpu import catalog
from dra_driver.kubectl.migrate.gfd_labels import product_label, sanitised
from dra_driver.kubectl.migrate.input import mapping_at

_MPS_SERVER_MIB: Final = 64
_PERCENT, _LEAST_MIB, _MOST_MIB = 3, 256, 1024
"""What the NVIDIA driver keeps where it is not known, as ``kube/published/shares.py`` estimates it."""


class MemoryKnowledge(Struct, frozen=True, kw_only=True):
    """``said_mib``: as the user says, 0 if not. ``least_mib``: the least of the nodes that are among the inputs."""

    said_mib: int = 0
    least_mib: int = 0

    def of_pod(self, spec: Mapping[str, Any]) -> int:
        """MiB that the shares of one GPU can have together; 0 where it is not known."""
        total = self.said_mib or _of_labels(mapping_at(spec, "nodeSelector")) or self.least_mib
        return shareable(total) if total else 0


def shareable(total_mib: int) -> int:
    """What a policy with MPS publishes of ``total_mib`` where the driver reports no reserve of its own."""
    reserve = min(max(total_mib * _PERCENT // 100, _LEAST_MIB), _MOST_MIB) + _MPS_SERVER_MIB
    return max(2, total_mib - min(reserve, total_mib // 2))


def _of_labels(labels: Mapping[str, Any]) -> int:
    memory = str(labels.get("nvidia.com/gpu.memory", ""))
    if memory.isdigit():
        return int(memory[:9])
    name = product_label(str(labels.get("nvidia.com/gpu.product", ""))).name
    found = [model.memory_mib or 0 for model in catalog.models().values() if sanitised(model.product_name) == name]
    return min(found, default=0)
