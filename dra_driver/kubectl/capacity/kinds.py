"""Kinds of devices that claims can request: whole devices of a model, MIG profiles, shares.

Devices are classified by the attributes that NVIDIA's driver and this one publish (``type``, ``productName``,
``profile``, ``uuid``, ``parentUUID``). Devices of other drivers are classified by those of them that they have.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from dra_driver.kube.devices import attribute_of
from dra_driver.kube.published import names

Wire = Mapping[str, Any]


class DeviceKind(NamedTuple):
    """Devices that serve the same claims. ``profile`` is "" for whole devices; ``shared`` allows several allocations.

    It is a tuple, because kinds are compared once for every device of a cluster.
    """

    driver: str
    model: str
    type: str
    profile: str
    shared: bool = False


class SyntheticRequest(NamedTuple):
    """A request that is tried: ``count`` devices of a kind, or a share.

    A share requests ``share`` of the memory and ``extra`` of other capacities (pairs of name and amount).
    """

    kind: DeviceKind
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which is not used
    share: str = ""
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """Returns ``2 GPUs``, ``3g.40gb`` or ``share of 10Gi, 12 computePercent``.

        ``1 shared GPU`` is a claim that names no amounts, on a GPU published for shares.
        """
        if self.share:
            return ", ".join([f"share of {self.share}", *(f"{amount} {name}" for name, amount in self.extra)])
        noun = "GPU" if self.kind.type == "gpu" else self.kind.type or "device"
        name = self.kind.profile or (noun if self.count == 1 else f"{noun}s" if noun == "GPU" else noun)
        if self.kind.shared:
            name = f"shared {name}"
        return name if self.kind.profile and self.count == 1 else f"{self.count} {name}"


def attribute(device: Wire, driver: str, name: str) -> str:
    """Returns an attribute as text, with or without domain in its name; "" if it is missing."""
    return str(next(iter(attribute_of(device.get("attributes"), driver, name).values()), ""))


def kind_of(device: Wire, driver: str, *, shares: bool) -> DeviceKind:
    """Returns the kind of a device. Without ``shares`` (gate DRAConsumableCapacity off) no device is shared."""
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
    """Returns the same object for equal kinds, which makes comparisons fast."""
    return DeviceKind(driver=driver, model=model, type=found, profile=profile, shared=shared)


def gpu_uuid_of(device: Wire, driver: str) -> str:
    """Returns the UUID of the GPU that a device is or belongs to, "" when unknown."""
    return attribute(device, driver, names.PARENT_UUID) or attribute(device, driver, names.UUID)
