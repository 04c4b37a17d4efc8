"""Find idle and oversized claims in a window.

A claim is idle when all of its devices were idle for at least the requested time.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.model.mig import parent_name
from dra_driver.core.model.usage import Profile, fit
from dra_driver.kube.published import names
from dra_driver.kube.shapes import read_all
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, Held, amount_in, text


class UsageFinding(Enum):
    IDLE = "idle"
    OVERSIZE = "oversize"
    UNKNOWN = "unknown"
    USED = "used"


class IdleRow(Struct, frozen=True, kw_only=True, rename=camel):
    """Finding for one device of one claim. An oversized one would fit ``profile`` or a share of ``share_bytes``."""

    namespace: str
    claim: str
    node: str
    device: str
    memory_bytes: int | None
    peak_bytes: int | None
    idle_s: float | None
    finding: UsageFinding
    profile: str = ""
    share_bytes: int | None = None
    pods: Sequence[str] = ()


class IdleList(JsonDocument, frozen=True, kw_only=True):
    source: str
    window_s: float
    gaps: Sequence[str] = ()
    items: Sequence[IdleRow]


class DeviceSize(Struct, frozen=True, kw_only=True):
    """Size of a claim's device, None if unknown, and MIG profiles of its GPU."""

    memory_bytes: int | None = None
    profiles: Sequence[Profile] = ()


def joined(
    uses: Iterable[ClaimDeviceUse], held: Held, size_of: Callable[[ClaimDeviceUse], DeviceSize]
) -> list[ClaimDeviceUse]:
    """Return the uses with the users of their claims, as in `kubectl dra claims`. If the source lacks the memory of a
    whole GPU or partition, use its published memory; not with admin access, which other claims share."""
    found = []
    for use in uses:
        claim, granted = held.get((use.namespace, use.claim)), use.granted_bytes
        admin = {each.device for each in claim.devices if each.admin_access} if claim is not None else ()
        if granted is None and not use.share and use.device not in admin:
            granted = size_of(use).memory_bytes
        pods = use.pods if claim is None else tuple(map(text, claim.users))
        found.append(replace(use, pods=pods, granted_bytes=granted))
    return found


def classify(
    uses: Iterable[ClaimDeviceUse], *, idle_after_s: float, size_of: Callable[[ClaimDeviceUse], DeviceSize]
) -> list[IdleRow]:
    """Return a row for each device, by claim. Recommend a size only for claims with known use."""
    claims: dict[tuple[str, str, str], list[ClaimDeviceUse]] = {}
    for use in uses:
        claims.setdefault((use.namespace, use.claim, use.node), []).append(use)
    rows: list[IdleRow] = []
    for devices in claims.values():
        idle_s = claim_idle_s(devices)
        rows += [_row(use, size_of(use), idle_s, idle_after_s) for use in devices]
    return rows


def claim_idle_s(devices: Sequence[ClaimDeviceUse]) -> float | None:
    """Return the shortest idle time; None if a device has none, unless another device is in use."""
    known = [use.idle_s for use in devices if use.idle_s is not None]
    if any(value == 0 for value in known):
        return 0.0
    return min(known) if known and len(known) == len(devices) else None


def _row(use: ClaimDeviceUse, size: DeviceSize, idle_s: float | None, idle_after_s: float) -> IdleRow:
    held = use.granted_bytes
    finding = UsageFinding.UNKNOWN if idle_s is None else UsageFinding.USED
    enough = None
    if idle_s is not None and idle_s >= idle_after_s:
        finding = UsageFinding.IDLE
    elif use.used_bytes is not None and (enough := fit(use.peak_bytes, held, size.profiles)) is not None:
        finding = UsageFinding.OVERSIZE
    return IdleRow(
        namespace=use.namespace,
        claim=use.claim,
        node=use.node,
        device=use.device,
        memory_bytes=held,
        peak_bytes=use.peak_bytes,
        idle_s=use.idle_s,
        finding=finding,
        profile=enough.profile or "" if enough else "",
        share_bytes=enough.share_bytes if enough else None,
        pods=use.pods,
    )


class _Attribute(Struct, frozen=True):
    string: object = None


class _Attributes(Struct, frozen=True):
    profile: _Attribute = field(default=_Attribute(), name=names.PROFILE)


class _Value(Struct, frozen=True):
    value: object = None


class _Capacity(Struct, frozen=True):
    memory: _Value = field(default=_Value(), name=names.MEMORY)


class _Device(Struct, frozen=True, rename="camel"):
    name: str
    node_name: str = ""
    attributes: _Attributes = _Attributes()
    capacity: _Capacity = _Capacity()


class _SliceSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    devices: tuple[object, ...] = ()


class _Slice(Struct, frozen=True):
    spec: _SliceSpec = _SliceSpec()


def sizes_in(slices: Iterable[object], lost: Callable[[str], None]) -> Callable[[ClaimDeviceUse], DeviceSize]:
    """Return a function for the published size of a device and the MIG profiles of its GPU, smallest first.

    Call ``lost`` for unreadable slices and devices.
    """
    memory: dict[tuple[str, str], int] = {}
    profiles: dict[tuple[str, str], dict[str, Profile]] = {}
    for spec in (item.spec for item in read_all(_Slice, slices, lost)):
        for device in read_all(_Device, spec.devices, lost):
            node, size = device.node_name or spec.node_name, amount_in(device.capacity.memory.value)
            if not size:
                continue
            memory[node, device.name] = size
            if name := text(device.attributes.profile.string):
                of_gpu = profiles.setdefault((node, parent_name(device.name)), {})
                of_gpu[name] = Profile(name=name, memory_bytes=size)

    def size_of(use: ClaimDeviceUse) -> DeviceSize:
        found = profiles.get((use.node, parent_name(use.device)), {})
        return DeviceSize(
            memory_bytes=memory.get((use.node, use.device)),
            profiles=sorted(found.values(), key=lambda each: each.memory_bytes),
        )

    return size_of
