"""Which claims are idle, and which have more than they need, over a window. Pure.

Unknown is never idle: a claim whose use is not known is listed as such. A claim is idle when all of its devices are,
for at least the time that was asked for; one that was seen for less time is not known yet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.model.fit import EnoughMemory, Profile, fit
from dra_driver.core.quantity import Quantity
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, text


class WasteFinding(Enum):
    """What is said of a claim's device; the values are those of the JSON output."""

    IDLE = "idle"
    OVERSIZE = "oversize"
    UNKNOWN = "unknown"
    USED = "used"


class WasteRow(Struct, frozen=True, kw_only=True):
    """One device of one claim, and what was found. ``held_bytes`` is what it has; ``enough`` what would have fitted,
    for `WasteFinding.OVERSIZE`."""

    use: ClaimDeviceUse
    finding: WasteFinding
    held_bytes: int | None = None
    enough: EnoughMemory | None = None


class DeviceSize(Struct, frozen=True, kw_only=True):
    """How large a claim's device is, None where that is not known, and the MIG profiles of its GPU."""

    memory_bytes: int | None = None
    profiles: Sequence[Profile] = ()


def judge(
    uses: Iterable[ClaimDeviceUse], *, idle_after_s: float, size_of: Callable[[ClaimDeviceUse], DeviceSize]
) -> list[WasteRow]:
    """A row for each device, in the order of ``uses``. ``size_of`` is about the device that a claim has in whole: of a
    share the grant counts."""
    claims: dict[tuple[str, str, str], list[ClaimDeviceUse]] = {}
    for use in uses:
        claims.setdefault((use.namespace, use.claim, use.node), []).append(use)
    rows: list[WasteRow] = []
    for devices in claims.values():
        idle = claim_idle_s(devices)
        if idle is not None and idle >= idle_after_s:
            rows += [
                WasteRow(use=use, finding=WasteFinding.IDLE, held_bytes=_held(use, size_of(use))) for use in devices
            ]
        else:
            rows += [_row(use, size_of(use), is_known=idle is not None) for use in devices]
    return rows


def claim_idle_s(devices: Sequence[ClaimDeviceUse]) -> float | None:
    """How long none of the devices is used; None where that is not known of one, unless another is used."""
    known = [use.idle_s for use in devices if use.idle_s is not None]
    if any(value == 0 for value in known):
        return 0.0
    return min(known) if known and len(known) == len(devices) else None


def _row(use: ClaimDeviceUse, size: DeviceSize, *, is_known: bool) -> WasteRow:
    held = _held(use, size)
    enough = fit(use.peak_bytes, held, size.profiles)
    if enough is not None:
        return WasteRow(use=use, finding=WasteFinding.OVERSIZE, held_bytes=held, enough=enough)
    return WasteRow(use=use, finding=WasteFinding.USED if is_known else WasteFinding.UNKNOWN, held_bytes=held)


def _held(use: ClaimDeviceUse, size: DeviceSize) -> int | None:
    return use.granted_bytes if use.granted_bytes is not None or use.share else size.memory_bytes


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
