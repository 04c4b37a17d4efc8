"""The description of one MPS daemon: fields, bounds and JSON form.

The node process writes it to a file and the MPS host reads it (``mps_files.py``). Ids become folder names and device
UUIDs become arguments of commands, so only the characters of real ones are accepted.
"""

import json
import re
from binascii import crc32
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.text import quoted

MAX_DEVICES: Final = 64
MAX_LIMIT_MIB: Final = 2**24
"""16 TiB: above any GPU, and small enough not to overflow in any program that reads it."""
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
# MIG-GPU-<uuid>/<gi>/<ci> is how drivers before R470 name MIG devices.
_DEVICE: Final = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,96}")


class MpsDaemon(Struct, frozen=True, kw_only=True):
    """One daemon and the limits of its clients. Raises ValueError, with a sentence, for values out of bounds.

    ``devices`` are the UUIDs of the GPUs or MIG devices that clients see, ascending. ``gpus`` are the whole GPUs among
    them, whose compute mode becomes EXCLUSIVE_PROCESS; MIG devices have no compute mode. ``default_percentage`` is 0 to
    100 percent of the multiprocessors, None for no limit. ``memory_limits`` maps device UUIDs to the MiB that one
    client may allocate; a device without an entry has no limit.
    """

    id: str
    devices: tuple[str, ...]
    gpus: tuple[GpuUuid, ...] = ()
    default_percentage: int | None = None
    memory_limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        check_id(self.id)
        if not 1 <= len(self.devices) <= MAX_DEVICES or len(set(self.devices)) != len(self.devices):
            raise ValueError(f"an MPS daemon has 1 to {MAX_DEVICES} different devices, not {len(self.devices)}")
        for device in self.devices:
            if not isinstance(device, str) or not _DEVICE.fullmatch(device):
                raise ValueError(f"{quoted(device)} is not the UUID of a GPU or MIG device")
        if not set(self.gpus) <= set(self.devices) or not all(gpu.startswith("GPU-") for gpu in self.gpus):
            raise ValueError("the whole GPUs of an MPS daemon must be among its devices")
        if self.default_percentage is not None and not _is_whole(self.default_percentage, 0, 100):
            raise ValueError(f"a thread percentage must be 0 to 100, not {quoted(self.default_percentage)}")
        for device, limit in self.memory_limits.items():
            if device not in self.devices:
                raise ValueError(f"a memory limit names {quoted(device)}, which is not a device of the daemon")
            if not _is_whole(limit, 1, MAX_LIMIT_MIB):
                raise ValueError(f"a memory limit must be 1 to {MAX_LIMIT_MIB} MiB, not {quoted(limit)}")

    @property
    def generation(self) -> str:
        """A checksum of all fields, by which a status names the description that it belongs to."""
        # It distinguishes the few descriptions that one id ever has. hashlib would cost the MPS host 20 % of its
        # memory.
        text = json.dumps(self.to_wire(), sort_keys=True).encode()
        return f"{crc32(text):08x}{len(text):x}"

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "id": self.id,
            "devices": list(self.devices),
            "gpus": list(self.gpus),
            "defaultPercentage": self.default_percentage,
            "memoryLimitsMiB": dict(self.memory_limits),
        }

    @classmethod
    def from_wire(cls, wire: object) -> "MpsDaemon":
        """The reverse of `to_wire`; ignores unknown fields. Raises ValueError for any other form."""
        if not isinstance(wire, dict):
            raise ValueError("an MPS daemon must be an object")  # noqa: TRY004 - one error for all that a file may hold
        devices, gpus, limits = wire.get("devices"), wire.get("gpus"), wire.get("memoryLimitsMiB")
        if not isinstance(devices, list) or not isinstance(gpus, list) or not isinstance(limits, dict):
            raise ValueError("devices and gpus must be lists, and memory limits an object")  # noqa: TRY004 - same
        if not all(isinstance(text, str) for text in (wire.get("id"), *devices, *gpus)):
            raise ValueError("the id and the devices of an MPS daemon must be strings")
        return cls(
            id=wire["id"],
            devices=tuple(devices),
            gpus=tuple(GpuUuid(gpu) for gpu in gpus),
            default_percentage=wire.get("defaultPercentage"),
            memory_limits=limits,
        )


def check_id(daemon_id: str) -> str:
    """Return the id when it can be a folder name, else raise ValueError."""
    if not isinstance(daemon_id, str) or not _ID.fullmatch(daemon_id):
        raise ValueError(
            f"{quoted(daemon_id)} cannot name an MPS daemon: expected at most 128 letters, digits, dots and dashes"
        )
    return daemon_id


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
