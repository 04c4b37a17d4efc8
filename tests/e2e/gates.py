"""Feature gates of Kubernetes that tests need, and which of them a cluster has on. Pure.

Before 1.36 partitions, shares, taints of devices, extended resources and the health of devices in a pod's status are
off by default, and a pod that needs one of them waits for ever. So a test names what it needs::

    @pytest.mark.needs(PARTITIONS, TAINTS)

and is skipped, with a reason of one form, where the API server says that one is off. The gates of scheduler and kubelet
cannot be read by all who may run these tests; a cluster whose parts differ in them fails the tests.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

PARTITIONS: Final = "DRAPartitionableDevices"
SHARES: Final = "DRAConsumableCapacity"
TAINTS: Final = "DRADeviceTaints"
EXTENDED: Final = "DRAExtendedResource"
POD_HEALTH: Final = "ResourceHealthStatus"
DRIVER_STATUS: Final = "DRAResourceClaimGranularStatusAuthorization"
"""Rights for the devices of one driver in a claim's status, since 1.36."""
NAMED: Final = frozenset({PARTITIONS, SHARES, TAINTS, EXTENDED, POD_HEALTH, DRIVER_STATUS})

_ENABLED: Final = re.compile(r'^kubernetes_feature_enabled\{name="([^"]+)",[^}]*\} ([01])$', re.MULTILINE)
_RESOURCE: Final = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-\S+)")


def read_gates(metrics: str) -> dict[str, bool]:
    """Gate -> whether it is on, from the text of an API server's ``/metrics``. It names every gate of its version."""
    return {name: value == "1" for name, value in _ENABLED.findall(metrics)}


def missing(needed: Iterable[str], gates: Mapping[str, bool]) -> list[str]:
    """The needed gates that are off, or that this version does not have."""
    return sorted({name for name in needed if not gates.get(name, False)})


def why_skipped(needed: Iterable[str], gates: Mapping[str, bool]) -> str:
    """Why a test with these needs is skipped, as tests/skips.toml lists it; "" where it runs.

    Raises ValueError for a gate without a name here: a misspelt one would skip its test in every cluster.
    """
    if unknown := set(needed) - NAMED:
        raise ValueError(f"a test needs {sorted(unknown)}: expected one of {sorted(NAMED)}")
    gates_off = missing(needed, gates)
    return f"feature gate {', '.join(gates_off)} is off in this cluster" if gates_off else ""


def gates_of(objects: Any) -> frozenset[str]:
    """The gates without which pods with these objects wait for ever: their claims, templates and extended resources."""
    found: set[str] = set()
    for part in _mappings(objects):
        if "deviceClassName" in part:
            found |= _of_request(part)
        names = [name for kind in ("limits", "requests") for name in _keys(part.get(kind)) if _RESOURCE.fullmatch(name)]
        if names:
            found.add(EXTENDED)
        if any("/mig-" in name for name in names):
            found.add(PARTITIONS)
        if any(name.endswith(".shared") for name in names):
            found.add(SHARES)
    return frozenset(found)


def _of_request(request: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    if str(request["deviceClassName"]).startswith("mig."):
        found.add(PARTITIONS)
    if str(request["deviceClassName"]).startswith("monitor."):
        found.add(TAINTS)
    expressions = [str(item.get("cel", {}).get("expression")) for item in request.get("selectors") or ()]
    if request.get("capacity") or any("device.allowMultipleAllocations" in text for text in expressions):
        found.add(SHARES)
    return found


def _keys(value: Any) -> list[str]:
    return [str(key) for key in value] if isinstance(value, Mapping) else []


def _mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    """All mappings in a value, itself included."""
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _mappings(item)
