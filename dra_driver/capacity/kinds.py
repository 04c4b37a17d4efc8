"""What can be asked for: whole devices of a model, MIG profiles, shares.

Owns how published devices are sorted into kinds, by the attributes that NVIDIA's driver and this one publish (``type``,
``productName``, ``profile``, ``uuid``, ``parentUUID``). Devices of other drivers without them are kinds by what they
have. Refuses to know what is free.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from dra_driver.published import names

Wire = Mapping[str, Any]


class DeviceKind(NamedTuple):
    """Devices that serve the same claims. ``profile`` is empty for whole devices; ``shared`` ones allow several
    allocations. A tuple, because kinds are compared once for every device of a cluster."""

    driver: str
    model: str
    type: str
    profile: str
    shared: bool = False


class SyntheticRequest(NamedTuple):
    """The synthetic claim that is tried: ``count`` devices of a kind, or a share of ``share`` of its memory with
    ``extra`` of its other capacities (pairs of name and amount)."""

    kind: DeviceKind
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    share: str = ""
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """``2 GPUs``, ``3g.40gb``, ``share of 10Gi, 12 computePercent``."""
        if self.share:
            return ", ".join([f"share of {self.share}", *(f"{amount} {name}" for name, amount in self.extra)])
        noun = "GPU" if self.kind.type == "gpu" else self.kind.type or "device"
        name = self.kind.profile or (noun if self.count == 1 else f"{noun}s" if noun == "GPU" else noun)
        return name if self.kind.profile and self.count == 1 else f"{self.count} {name}"


def attribute(device: Wire, driver: str, name: str) -> str:
    """An attribute as text, whatever its type and however its name is spelled; "" without it."""
    attributes = device.get("attributes") or {}
    value = attributes.get(name) or attributes.get(f"{driver}/{name}") or {}
    return str(next(iter(value.values()), ""))


def kind_of(device: Wire, driver: str, *, shares: bool) -> DeviceKind:
    """The kind of a device. Without ``shares`` (gate DRAConsumableCapacity off) nothing is shared."""
    found = attribute(device, driver, names.TYPE)
    return _kind(
        driver,
        attribute(device, driver, names.PRODUCT_NAME) or found or "device",
        found,
        attribute(device, driver, names.PROFILE),
        shares and bool(device.get("allowMultipleAllocations")),
    )


@lru_cache(maxsize=1024)
def _kind(driver: str, model: str, found: str, profile: str, shared: bool) -> DeviceKind:
    """The same object for the same kind: equality is then a comparison of addresses."""
    return DeviceKind(driver=driver, model=model, type=found, profile=profile, shared=shared)


def gpu_uuid_of(device: Wire, driver: str) -> str:
    """What tells that two devices are forms of one piece of hardware: the GPU's UUID. "" when nothing does."""
    return attribute(device, driver, names.PARENT_UUID) or attribute(device, driver, names.UUID)
