"""How large devices are, and the MIG profiles that each GPU publishes, from ResourceSlices. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from dra_driver.core.model.fit import Profile
from dra_driver.core.quantity import Quantity
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse
from dra_driver.kubectl.usage.exporter_answer import text
from dra_driver.kubectl.usage.waste import DeviceSize

_PARTITION: Final = "-mig-"


def sizes_in(slices: Sequence[Mapping[str, Any]]) -> Callable[[ClaimDeviceUse], DeviceSize]:
    """How large the device of a use is, and the profiles of its GPU, as far as they are published."""
    profiles = profiles_in(slices)
    memory = {
        (str(device.get("nodeName") or spec.get("nodeName") or ""), str(device.get("name"))): _bytes_of(
            ((device.get("capacity") or {}).get("memory") or {}).get("value")
        )
        for item in slices
        for spec in [item.get("spec") or {}]
        for device in spec.get("devices") or ()
    }
    return lambda use: DeviceSize(
        memory_bytes=memory.get((use.node, use.device)), profiles=profiles.get((use.node, _gpu_of(use.device)), ())
    )


def profiles_in(slices: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[Profile, ...]]:
    """Profiles by node and name of the GPU, the smallest first."""
    found: dict[tuple[str, str], dict[str, Profile]] = {}
    for item in slices:
        spec = item.get("spec") or {}
        for device in spec.get("devices") or ():
            name = text(((device.get("attributes") or {}).get("profile") or {}).get("string"))
            size = _bytes_of(((device.get("capacity") or {}).get("memory") or {}).get("value"))
            if name and size:
                node = str(device.get("nodeName") or spec.get("nodeName") or "")
                key = (node, _gpu_of(str(device.get("name"))))
                found.setdefault(key, {})[name] = Profile(name=name, memory_bytes=size)
    return {key: tuple(sorted(known.values(), key=lambda each: each.memory_bytes)) for key, known in found.items()}


def _gpu_of(device: str) -> str:
    """The name of the GPU that a device is or is a part of: partitions are named ``<gpu>-mig-...``."""
    return device.partition(_PARTITION)[0]


def _bytes_of(value: Any) -> int | None:
    """A quantity of bytes; None for what is none."""
    try:
        return Quantity.parse(str(value)).as_int() if isinstance(value, str | int) else None
    except ValueError:
        return None
