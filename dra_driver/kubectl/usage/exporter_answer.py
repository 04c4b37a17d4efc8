"""What the exporter of one node answers under ``/usage``, as values. Pure.

The exporter runs beside tenants' pods and its answer names their objects, so nothing in it is believed blindly: names
are cut, numbers that cannot be are unknown, and what has another shape is left out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dra_driver.core.text import printable
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, GpuMemory

MAX_CLAIMS: Final = 10_000
MAX_DEVICES: Final = 64
MAX_GPUS: Final = 64
MAX_PODS: Final = 256
MAX_NAME: Final = 253
MAX_BYTES: Final = 2**50
"""More memory than a GPU has: a number above it is a mistake."""
MAX_WATTS: Final = 100_000.0


def decode(document: Mapping[str, Any], node: str = "") -> tuple[list[ClaimDeviceUse], float, list[str]]:
    """The devices in use, the window in seconds, and sentences about what the exporter does not know.

    Raises ValueError for what is no answer of an exporter, or one of a version that this program does not know.
    """
    if document.get("version") != 1:
        raise ValueError(f"its version is {str(document.get('version'))[:20]!r}, expected 1")
    name = text(document.get("node")) or node
    window_s = number(document.get("windowSeconds"), most=366 * 86_400.0) or 0.0
    uses = [
        use
        for claim in _items(document.get("claims"), MAX_CLAIMS)
        for device in _items(claim.get("devices"), MAX_DEVICES)
        for use in [_use(claim, device, name)]
        if use.claim
    ]
    return uses, window_s, list(_unknown(document.get("knows"), name))


def decode_gpus(document: Mapping[str, Any], node: str = "") -> list[GpuMemory]:
    """Who uses the memory of each GPU; of an answer that `decode` takes."""
    name = text(document.get("node")) or node
    return [
        GpuMemory(
            node=name,
            device=text(gpu.get("device")),
            total_bytes=_whole(number(gpu.get("memoryTotalBytes"))),
            used_bytes=_whole(number(gpu.get("memoryUsedBytes"))),
            claims_bytes=_whole(number(gpu.get("memoryClaimsBytes"))),
            unattributed_bytes=_whole(number(gpu.get("memoryUnattributedBytes"))),
            unattributed_processes=_whole(number(gpu.get("unattributedProcesses"), most=1e6)),
            reserved_bytes=_whole(number(gpu.get("memoryReservedBytes"))),
            busy_ratio=_ratio(number(gpu.get("percent"), most=100.0)),
            power_watts=number(gpu.get("powerWatts"), most=MAX_WATTS),
        )
        for gpu in _items(document.get("gpus"), MAX_GPUS)
        if text(gpu.get("device"))
    ]


def _use(claim: Mapping[str, Any], device: Mapping[str, Any], node: str) -> ClaimDeviceUse:
    used, peak = number(device.get("usedBytes")), number(device.get("peakBytes"))
    percent = number(device.get("percent"), most=100.0)
    processes = number(device.get("processes"), most=1e6)
    return ClaimDeviceUse(
        namespace=text(claim.get("namespace")),
        claim=text(claim.get("name")),
        node=node,
        request=text(device.get("request")),
        device=text(device.get("device")),
        share=text(device.get("share")),
        pods=_pods(claim.get("pods")),
        used_bytes=_whole(used),
        granted_bytes=_whole(number(device.get("grantBytes"))),
        peak_bytes=_whole(max(peak or 0, used or 0) if peak is not None else used),
        sm_ratio=_ratio(percent),
        energy_joules=number(device.get("energyJoules"), most=1e15),
        energy_estimated=device.get("estimated") is True,
        processes=_whole(processes),
        idle_s=number(device.get("idleSeconds")),
    )


def _unknown(knows: Any, node: str) -> Iterator[str]:
    """``knows`` says of each kind of value that it is known, or why not."""
    for what, answer in list(knows.items())[:10] if isinstance(knows, dict) else ():
        if answer is not True:
            why = text(answer) or "it does not say why"
            yield f"node {node}: the exporter does not know {text(what)}: {why}"


def _pods(value: Any) -> tuple[str, ...]:
    """Names, given as text or as objects with a name."""
    found = [text(item.get("name") if isinstance(item, dict) else item) for item in _list(value)[:MAX_PODS]]
    return tuple(dict.fromkeys(name for name in found if name))


def text(value: Any) -> str:
    """A name on one line, cut; "" for what is no text."""
    if not isinstance(value, str):
        return ""
    return printable(value[:MAX_NAME])


def number(value: Any, *, most: float = float(MAX_BYTES)) -> float | None:
    """None for what is no number from 0 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if (isinstance(value, int) or math.isfinite(value)) and 0 <= value <= most else None


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _items(value: Any, most: int) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in _list(value)[:most] if isinstance(item, dict))
