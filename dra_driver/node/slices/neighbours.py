"""What others publish on this node: resource slices outside of this driver's pool that have GPUs of this node.

The reflector keeps of each resource slice only what `slimmed` leaves: the devices of eight GPUs are megabytes. Whatever
comes from the API server is untrusted. Pure.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct

from dra_driver.kube.published import names
from dra_driver.node.slices import untrusted_slice
from dra_driver.node.slices.untrusted_slice import mapping

_UUIDS: Final = frozenset({names.UUID, names.PARENT_UUID})
_FULL_GPU: Final = "GPU-"
_KEPT: Final = "gpus"


class Neighbour(Struct, frozen=True, kw_only=True):
    """Another pool with GPUs of this node. ``gpus`` are their UUIDs."""

    driver: str
    pool: str
    gpus: frozenset[str]


def slimmed(item: Mapping[str, object]) -> dict[str, object]:
    """Name, version, driver and pool of a resource slice, and the UUIDs of full GPUs that its devices are or are of."""
    metadata, spec = untrusted_slice.metadata(item), untrusted_slice.spec(item)
    return {
        "metadata": {key: metadata[key] for key in ("name", "resourceVersion") if key in metadata},
        "spec": {"driver": spec.get("driver"), "pool": {"name": untrusted_slice.pool(item).get("name")}},
        _KEPT: _gpus(spec),
    }


def is_of(item: Mapping[str, object], driver: str) -> bool:
    """Whether the resource slice is one of that driver."""
    return untrusted_slice.spec(item).get("driver") == driver


def neighbours(
    slim: Iterable[Mapping[str, object]], driver: str, pool: str, own: Collection[str]
) -> tuple[Neighbour, ...]:
    """Pools beside this driver's own one that have GPUs of ``own``, sorted; ``slim`` comes from `slimmed`."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for item in slim:
        kept = item.get(_KEPT)
        gpus = frozenset(kept if isinstance(kept, list | tuple) else ()) & frozenset(own)
        key = (str(untrusted_slice.spec(item).get("driver")), str(untrusted_slice.pool(item).get("name")))
        if gpus and key != (driver, pool):
            found[key] = found.get(key, frozenset()) | gpus
    return tuple(Neighbour(driver=key[0], pool=key[1], gpus=gpus) for key, gpus in sorted(found.items()))


def _gpus(spec: Mapping[str, object]) -> tuple[str, ...]:
    devices = spec.get("devices")
    found = {
        str(mapping(value).get("string"))
        for device in (devices if isinstance(devices, list) else ())
        for name, value in mapping(mapping(device).get("attributes")).items()
        if str(name).rpartition("/")[2] in _UUIDS
    }
    return tuple(sorted(uuid for uuid in found if uuid.startswith(_FULL_GPU)))
