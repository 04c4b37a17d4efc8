"""Faults that are asked for by an annotation of a Node: ``gpu-0 xid=79, gpu-1-mig-1g10gb-19-0 ecc``. Pure.

An order is a device and a fault (``faults.py``). All that are to hold are listed; removing one is the recovery. The
annotation is read only by a node process with simulated GPUs.
"""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.ids import DeviceName
from dra_driver.hardware.gpu.simulated.faults import MAX_COUNT, FaultKind, HardwareFault

ANNOTATION: Final = "gpu.dra-driver.io/simulate-fault"
MAX_LENGTH: Final = 1000
"""Characters of the annotation: fewer than are kept of any (``kube/own_node.py``), so that it is never cut."""
MAX_ORDERS: Final = 32
OF_PARTITIONS: Final = frozenset({FaultKind.XID, FaultKind.ECC})
_DEVICE: Final = re.compile(r"gpu-\d{1,3}(-mig-[a-z0-9-]{1,48})?")


class FaultOrder(Struct, frozen=True):
    """One device that is to have one fault."""

    device: DeviceName
    fault: HardwareFault

    @classmethod
    def parse(cls, device: str, fault: str) -> "FaultOrder":
        """Raises ValueError with the expected form."""
        if _DEVICE.fullmatch(device) is None:
            raise ValueError(f"a device such as gpu-0 or gpu-0-mig-1g10gb-19-0 expected, not {device!r:.60}")
        found = HardwareFault.parse(fault)
        if is_partition(device) and found.kind not in OF_PARTITIONS:
            whole = device.partition("-mig-")[0]
            raise ValueError(f"{found.kind} is a fault of a whole GPU: {whole} expected, not {device:.60}")
        return cls(DeviceName(device), found)

    def is_like(self, other: "FaultOrder") -> bool:
        """Whether both are the same fault of the same device, however often."""
        kind, value = other.fault.kind, other.fault.value
        return (self.device, self.fault.kind, self.fault.value) == (other.device, kind, value)

    def __str__(self) -> str:
        return f"{self.device} {self.fault}"


def is_partition(device: str) -> bool:
    """Whether the device is a part of a GPU."""
    return "-mig-" in device


def parse_orders(text: str) -> tuple[FaultOrder, ...]:
    """From the annotation. Raises ValueError with the expected form."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"at most {MAX_LENGTH} characters expected")
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        words = part.split()
        if len(words) != 2:
            raise ValueError(f"DEVICE FAULT such as gpu-0 xid=79 expected, several joined by commas, not {part!r:.60}")
        found.append(FaultOrder.parse(*words))
    if len(found) > MAX_ORDERS:
        raise ValueError(f"at most {MAX_ORDERS} faults expected, not {len(found)}")
    return tuple(found)


def format_orders(orders: Iterable[FaultOrder]) -> str:
    """The text that `parse_orders` reads. Raises ValueError when they are too many."""
    text = ", ".join(map(str, orders))
    parse_orders(text)
    return text


def added(orders: Iterable[FaultOrder], order: FaultOrder) -> tuple[FaultOrder, ...]:
    """With one more; the same fault of the same device once more counts up, and so is told again."""
    found, again = [], False
    for one in orders:
        if one.is_like(order):
            count = min(MAX_COUNT, one.fault.count + order.fault.count)
            found.append(FaultOrder(one.device, replace(one.fault, count=count)))
            again = True
        else:
            found.append(one)
    return tuple(found) if again else (*found, order)


def removed(orders: Iterable[FaultOrder], order: FaultOrder) -> tuple[FaultOrder, ...]:
    """Without that fault of that device."""
    return tuple(one for one in orders if not one.is_like(order))


def without(orders: Iterable[FaultOrder], device: str) -> tuple[FaultOrder, ...]:
    """Without those of the device, and of the partitions of a GPU."""
    return tuple(one for one in orders if one.device != device and not one.device.startswith(f"{device}-mig-"))
