"""Translate the MPS limits of a claim to those of a daemon. Pure functions.

The rules are those of NVIDIA's DRA driver (``api/nvidia.com/resource/v1beta1`` ``sharing.go``): memory is in whole MiB,
rounded down, and a key of the per-device limits is a position in the group's sorted list of UUIDs, or a UUID. Two
different limits of one device are refused; in that driver the order of a Go map decides between them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from dra_driver.config.device_config import MpsLimits
from dra_driver.core.errors import InvalidParametersError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.quantity import NANO, Quantity
from dra_driver.hardware.sharing.daemon import MAX_LIMIT_MIB, MpsDaemon

_MIB: Final = 2**20
_FIELD: Final = "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit"
_MAX_NAMED: Final = 8


def shared_gpu_daemon(gpu: GpuUuid) -> MpsDaemon:
    """The daemon of a GPU that several claims share. It has no limits: each share has its own."""
    return MpsDaemon(id=gpu, devices=(gpu,), gpus=(gpu,))


def group_daemon_id(claim: ClaimUid, devices: Iterable[str]) -> str:
    """The id of the daemon for one claim's devices under one config; another group of the claim has another."""
    digest = hashlib.sha256(",".join(sorted(devices)).encode()).hexdigest()
    return f"{claim}-{digest[:8]}"


def group_daemon(
    claim: ClaimUid, *, gpus: Sequence[GpuUuid], partitions: Sequence[str], limits: MpsLimits
) -> MpsDaemon:
    """The daemon for the whole GPUs and MIG devices (UUIDs) of a claim that have one config.

    Raises InvalidParametersError, with the field's path, for a per-device key that names none of them, and for two keys
    that name one device with different limits.
    """
    devices = tuple(sorted((*gpus, *partitions)))
    return MpsDaemon(
        id=group_daemon_id(claim, devices),
        devices=devices,
        gpus=tuple(sorted(gpus)),
        default_percentage=limits.default_percentage,
        memory_limits=memory_limits(limits, devices),
    )


def memory_limits(limits: MpsLimits, devices: Sequence[str]) -> dict[str, int]:
    """MiB by device UUID: the default for all, replaced by limits for one device. ``devices`` are sorted."""
    found: dict[str, int] = {}
    if limits.default_memory is not None:
        default = whole_mib(limits.default_memory, "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit")
        found = dict.fromkeys(devices, default)
    named: dict[str, tuple[str, int]] = {}
    for key, text in limits.per_device.items():
        device = _device(key, devices)
        limit = whole_mib(text, f"{_FIELD}.{key}")
        before = named.setdefault(device, (key, limit))
        if before[1] != limit:
            raise InvalidParametersError(
                f"{_FIELD}: {before[0]!r} and {key!r} both name {device}, with {before[1]}Mi and {limit}Mi: remove one"
                " of them"
            )
        found[device] = limit
    return found


def whole_mib(text: str, field: str) -> int:
    """A quantity in whole MiB, rounded down. Raises InvalidParametersError below 1 MiB and above any GPU."""
    try:
        mib = Quantity.parse(text).nano // (_MIB * NANO)
    except ValueError as error:
        raise InvalidParametersError(f"{field}: {error}") from error
    if not 1 <= mib <= MAX_LIMIT_MIB:
        raise InvalidParametersError(f"{field}: expected 1Mi to {MAX_LIMIT_MIB // 2**20}Ti, got {text!r}")
    return mib


def _device(key: str, devices: Sequence[str]) -> str:
    if key in devices:
        return key
    if key.isascii() and key.isdigit() and len(key) <= 4 and int(key) < len(devices):
        return devices[int(key)]
    more = f" and {len(devices) - _MAX_NAMED} more" if len(devices) > _MAX_NAMED else ""
    positions = "0" if len(devices) == 1 else f"0 to {len(devices) - 1}"
    shown = key if len(key) <= 60 else f"{key[:59]}…"
    raise InvalidParametersError(
        f"{_FIELD}: {shown!r} names no device of this config: expected a position, {positions}, or one of"
        f" {', '.join(devices[:_MAX_NAMED])}{more}"
    )
