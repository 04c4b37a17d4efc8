"""Read ResourceSlices from the API server, which any client may have written, and find other pools of this node.

A part that is missing or has another type reads as empty. No function raises.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct

from dra_driver.kube.published import names

_UUIDS: Final = frozenset({names.UUID, names.PARENT_UUID})
_FULL_GPU: Final = "GPU-"
_KEPT: Final = "gpus"


def mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def metadata(item: Mapping[str, object]) -> Mapping[str, object]:
    return mapping(item.get("metadata"))


def spec(item: Mapping[str, object]) -> Mapping[str, object]:
    return mapping(item.get("spec"))


def pool(item: Mapping[str, object]) -> Mapping[str, object]:
    return mapping(spec(item).get("pool"))


def name(item: Mapping[str, object]) -> str:
    return str(metadata(item).get("name", ""))


def generation(item: Mapping[str, object]) -> int:
    value = pool(item).get("generation")
    return value if isinstance(value, int) else 0


def mappings(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def owners(item: Mapping[str, object]) -> list[Mapping[str, object]]:
    return mappings(metadata(item).get("ownerReferences"))


class OtherPool(Struct, frozen=True, kw_only=True):
    """Another pool with GPUs of this node. ``gpus`` are their UUIDs."""

    driver: str
    pool: str
    gpus: frozenset[str]


def slimmed(item: Mapping[str, object]) -> dict[str, object]:
    """Return the subset of a ResourceSlice that the reflector keeps: the devices of eight GPUs are megabytes.

    Name, version, driver and pool, and the UUIDs of full GPUs that its devices are or belong to.
    """
    kept, of = metadata(item), spec(item)
    return {
        "metadata": {key: kept[key] for key in ("name", "resourceVersion") if key in kept},
        "spec": {"driver": of.get("driver"), "pool": {"name": pool(item).get("name")}},
        _KEPT: _gpus(of),
    }


def is_of(item: Mapping[str, object], driver: str) -> bool:
    return spec(item).get("driver") == driver


def other_pools(
    slim: Iterable[Mapping[str, object]], driver: str, own_pool: str, own: Collection[str]
) -> tuple[OtherPool, ...]:
    """Return the pools other than ``own_pool`` that have GPUs of ``own``, sorted; ``slim`` comes from `slimmed`."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for item in slim:
        kept = item.get(_KEPT)
        gpus = frozenset(kept if isinstance(kept, list | tuple) else ()) & frozenset(own)
        key = (str(spec(item).get("driver")), str(pool(item).get("name")))
        if gpus and key != (driver, own_pool):
            found[key] = found.get(key, frozenset()) | gpus
    return tuple(OtherPool(driver=key[0], pool=key[1], gpus=gpus) for key, gpus in sorted(found.items()))


def _gpus(of: Mapping[str, object]) -> tuple[str, ...]:
    found = {
        str(mapping(value).get("string"))
        for device in mappings(of.get("devices"))
        for key, value in mapping(device.get("attributes")).items()
        if str(key).rpartition("/")[2] in _UUIDS
    }
    return tuple(sorted(uuid for uuid in found if uuid.startswith(_FULL_GPU)))
