"""What one MPS daemon is, as a value that is written to a file by one process and read by another.

Owns its fields, their bounds and their JSON. Refuses to know where the file is (``folders.py``), who asks for a daemon
(``mps.py``) and how one is run (``supervise.py``). Ids become folder names and device UUIDs become words of commands,
so nothing but the characters that real ones have is let in.
"""

import json
import re
from binascii import crc32
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from dra_driver.model.ids import GpuUuid

MAX_DEVICES: Final = 64
MAX_LIMIT_MIB: Final = 2**24
"""16 TiB: far above any GPU and far below what would be misread as a negative number anywhere."""
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
# MIG-GPU-<uuid>/<gi>/<ci> is how drivers before R470 name MIG devices.
_DEVICE: Final = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,96}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsDaemon:
    """One daemon and the limits of its clients. Raises ValueError, with a sentence, for anything out of bounds.

    ``devices`` are the UUIDs of GPUs or MIG devices that its clients see, ascending. ``gpus`` are those of them that
    are whole GPUs and whose compute mode becomes EXCLUSIVE_PROCESS; none for MIG devices, which have no mode that
    matters. ``default_percentage`` is 0 to 100 percent of the multiprocessors, None for no limit. ``memory_limits`` is
    device UUID -> MiB that one client may allocate; a device that is not in it has no limit.
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
                raise ValueError(f"{_shown(device)} is not the UUID of a GPU or MIG device")
        if not set(self.gpus) <= set(self.devices) or not all(gpu.startswith("GPU-") for gpu in self.gpus):
            raise ValueError("the whole GPUs of an MPS daemon are among its devices")
        if self.default_percentage is not None and not _is_whole(self.default_percentage, 0, 100):
            raise ValueError(f"a percentage is 0 to 100, not {_shown(self.default_percentage)}")
        for device, limit in self.memory_limits.items():
            if device not in self.devices:
                raise ValueError(f"a memory limit is for {_shown(device)}, which is none of the daemon's devices")
            if not _is_whole(limit, 1, MAX_LIMIT_MIB):
                raise ValueError(f"a memory limit is 1 to {MAX_LIMIT_MIB} MiB, not {_shown(limit)}")

    @property
    def generation(self) -> str:
        """A short name of exactly these fields: by it a status says what it is about."""
        # Told apart are the few forms that one id ever has. hashlib would cost the MPS host a fifth of its memory.
        text = json.dumps(self.to_wire(), sort_keys=True).encode()
        return f"{crc32(text):08x}{len(text):x}"

    def to_wire(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "id": self.id,
            "devices": list(self.devices),
            "gpus": list(self.gpus),
            "defaultPercentage": self.default_percentage,
            "memoryLimitsMiB": dict(self.memory_limits),
        }

    @classmethod
    def from_wire(cls, wire: object) -> "MpsDaemon":
        """The reverse of `to_wire`. Raises ValueError for anything that it never writes; unknown fields are ignored."""
        if not isinstance(wire, dict):
            raise ValueError("an MPS daemon is an object")  # noqa: TRY004 - one error for all that a file may hold
        devices, gpus, limits = wire.get("devices"), wire.get("gpus"), wire.get("memoryLimitsMiB")
        if not isinstance(devices, list) or not isinstance(gpus, list) or not isinstance(limits, dict):
            raise ValueError("devices and gpus are lists, memory limits an object")  # noqa: TRY004 - same
        if not all(isinstance(text, str) for text in (wire.get("id"), *devices, *gpus)):
            raise ValueError("the id and the devices of an MPS daemon are texts")
        return cls(
            id=wire["id"],
            devices=tuple(devices),
            gpus=tuple(GpuUuid(gpu) for gpu in gpus),
            default_percentage=wire.get("defaultPercentage"),
            memory_limits=limits,
        )


def check_id(daemon_id: str) -> str:
    """The id, if it can be the name of a folder. Raises ValueError."""
    if not isinstance(daemon_id, str) or not _ID.fullmatch(daemon_id):
        raise ValueError(
            f"{_shown(daemon_id)} cannot name an MPS daemon: expected at most 128 letters, digits, dots and dashes"
        )
    return daemon_id


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
