"""Feature gates that matter to device allocation: reading them from an API server's metrics, and their defaults. Pure.

The API server tells its gates as ``kubernetes_feature_enabled{name="...",stage="..."} 1`` (k8s.io/component-base
metrics/prometheus/feature/metrics.go); no API object has them. Scheduler and kubelets have gates of their own, which
are normally set alike. Stages and defaults: kubernetes/kubernetes pkg/features/kube_features.go.
"""

import re
from typing import Final

from msgspec import Struct

_LINE: Final = re.compile(
    r'^kubernetes_feature_enabled\{name="(D[A-Za-z0-9]{2,80})",stage="[A-Z]*"\} ([01])$', re.MULTILINE
)
_RELEVANT: Final = ("DRA", "DynamicResourceAllocation")


class GateUse(Struct, frozen=True, kw_only=True):
    """``without`` is what does not work while the gate is off; ``default_since`` the minor version that turned it on.

    ``needed`` gates switch off all of device allocation.
    """

    name: str
    without: str
    default_since: int
    needed: bool = False


GATES: Final = (
    GateUse(
        name="DynamicResourceAllocation",
        without="no pod gets devices by a claim",
        default_since=34,
        needed=True,
    ),
    GateUse(
        name="DRAPartitionableDevices",
        without="MIG partitions that do not exist yet are not published",
        default_since=36,
    ),
    GateUse(
        name="DRAConsumableCapacity",
        without="shares of GPUs are not published",
        default_since=36,
    ),
    GateUse(
        name="DRADeviceTaints",
        without="unhealthy, drained and reserved GPUs get no taint, so new claims may get them",
        default_since=36,
    ),
    GateUse(
        name="DRAExtendedResource",
        without="pods that ask for nvidia.com/gpu get no device by a DeviceClass",
        default_since=36,
    ),
)
"""What this driver makes use of."""


def gates_in(metrics: str) -> dict[str, bool]:
    """The gates of device allocation in an API server's metrics."""
    return {name: value == "1" for name, value in _LINE.findall(metrics) if name.startswith(_RELEVANT)}
