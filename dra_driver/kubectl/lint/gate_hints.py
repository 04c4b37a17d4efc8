"""Why a cluster may have no device of a class that the catalog has: a feature gate of its API server is off.

A node publishes MIG partitions that do not exist yet only while the API server keeps counters, and shared GPUs only
while it keeps their fields (kubernetes/kubernetes pkg/registry/resource/resourceslice/strategy.go).
"""

from collections.abc import Sequence

from dra_driver.kube.published import names
from dra_driver.kubectl.lint.catalog_devices import KnownDevice

_HINT = (
    "{what} are published only while feature gate {gate} is on (off by default before Kubernetes 1.36), and no device "
    "of the cluster shows that it is"
)


def gate_hint(wanted: Sequence[KnownDevice], cluster: Sequence[KnownDevice]) -> str:
    """For a class that selects ``wanted``, none of which the cluster has; "" when no gate can be the reason."""
    if wanted and all(_is_partition(device) for device in wanted):
        seen = any(device.wire.get("consumesCounters") for device in cluster)
        return "" if seen else _HINT.format(what="MIG partitions that do not exist yet", gate="DRAPartitionableDevices")
    if wanted and all(device.shared for device in wanted):
        seen = any(device.shared for device in cluster)
        return "" if seen else _HINT.format(what="GPUs for several claims at once", gate="DRAConsumableCapacity")
    return ""


def _is_partition(device: KnownDevice) -> bool:
    kind = (device.wire.get("attributes") or {}).get(names.TYPE) or {}
    return bool(kind.get("string") == names.TYPE_MIG)
