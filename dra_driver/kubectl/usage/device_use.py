"""What a claim used of one of its devices over a window, as exporters or Prometheus told it, and sums of it. Pure.

Everything is None where it is not known, and a sum with an unknown part has ``partial``: no number is made up.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.text import printable
from dra_driver.kube.devices import is_pod, users_of


class ClaimDeviceUse(Struct, frozen=True, kw_only=True):
    """One device of one claim. Memory is in bytes, energy in joules, times in seconds; ``sm_ratio`` is 0 to 1 of the
    device: the last value, or the mean over the window where Prometheus has it.

    ``peak_bytes`` is the most that all processes of the claim had at once within the window. ``idle_s`` is how long it
    is not used, 0 while it is. ``held_s`` is how long it was seen within the window. ``share`` is "" where the claim
    has the device for itself.
    """

    namespace: str
    claim: str
    node: str = ""
    request: str = ""
    device: str = ""
    share: str = ""
    pods: tuple[str, ...] = ()
    used_bytes: int | None = None
    granted_bytes: int | None = None
    peak_bytes: int | None = None
    sm_ratio: float | None = None
    energy_joules: float | None = None
    energy_estimated: bool = False
    processes: int | None = None
    idle_s: float | None = None
    held_s: float | None = None


class GpuMemory(Struct, frozen=True, kw_only=True):
    """Who uses the memory of one GPU, in bytes: claims, processes of no claim, and what the driver reserves. Together
    they are ``used_bytes`` where all are known."""

    node: str
    device: str
    total_bytes: int | None = None
    used_bytes: int | None = None
    claims_bytes: int | None = None
    unattributed_bytes: int | None = None
    unattributed_processes: int | None = None
    reserved_bytes: int | None = None
    busy_ratio: float | None = None
    power_watts: float | None = None


class UseReport(Struct, frozen=True, kw_only=True):
    """What one source told. ``window_s`` is what peaks, energy and idleness are about; ``gaps`` are sentences about
    what could not be read or cannot be true. ``gpus`` are those whose whole use it tells."""

    source: str
    window_s: float
    uses: Sequence[ClaimDeviceUse]
    gaps: Sequence[str] = ()
    gpus: Sequence[GpuMemory] = ()


class UseSum(Struct, frozen=True, kw_only=True):
    """The devices of one claim, pod, namespace or node together. ``partial`` names the fields that lack a part."""

    key: tuple[str, ...]
    claims: int
    devices: int
    used_bytes: int | None
    granted_bytes: int | None
    peak_bytes: int | None
    sm_ratio: float | None
    energy_joules: float | None
    energy_estimated: bool
    processes: int | None
    idle_s: float | None
    partial: tuple[str, ...] = ()


def by_claim(use: ClaimDeviceUse) -> list[tuple[str, ...]]:
    return [(use.namespace, use.claim)]


def by_pod(use: ClaimDeviceUse) -> list[tuple[str, ...]]:
    """One key for all pods of a claim together: what each of them uses is not told apart here."""
    return [(use.namespace, ",".join(use.pods))]


def by_namespace(use: ClaimDeviceUse) -> list[tuple[str, ...]]:
    return [(use.namespace,)]


def by_node(use: ClaimDeviceUse) -> list[tuple[str, ...]]:
    return [(use.node,)]


def summed(uses: Iterable[ClaimDeviceUse], keys: Callable[[ClaimDeviceUse], list[tuple[str, ...]]]) -> list[UseSum]:
    """One sum for each key, in the order of keys. Utilisation is the mean over devices, idleness the shortest."""
    groups: dict[tuple[str, ...], list[ClaimDeviceUse]] = {}
    for use in uses:
        for key in keys(use):
            groups.setdefault(key, []).append(use)
    return [_sum(key, groups[key]) for key in sorted(groups)]


def _sum(key: tuple[str, ...], uses: Sequence[ClaimDeviceUse]) -> UseSum:
    partial: list[str] = []

    def known(name: str) -> list[float]:
        values = [value for use in uses if (value := getattr(use, name)) is not None]
        if values and len(values) < len(uses):
            partial.append(name)
        return values

    def total(name: str) -> int | None:
        values = known(name)
        return int(sum(values)) if values else None

    energy, ratios, idle = known("energy_joules"), known("sm_ratio"), known("idle_s")
    return UseSum(
        key=key,
        claims=len({(use.namespace, use.claim) for use in uses}),
        devices=len(uses),
        used_bytes=total("used_bytes"),
        granted_bytes=total("granted_bytes"),
        peak_bytes=total("peak_bytes"),
        sm_ratio=sum(ratios) / len(ratios) if ratios else None,
        energy_joules=sum(energy) if energy else None,
        energy_estimated=any(use.energy_estimated for use in uses),
        processes=total("processes"),
        idle_s=min(idle) if len(idle) == len(uses) else None,
        partial=tuple(partial),
    )


# --- What the exporter of one node answers under ``/usage``, as values.
#
# The exporter runs beside tenants' pods and its answer names their objects, so nothing in it is believed blindly: names
# are cut, numbers that cannot be are unknown, and what has another shape is left out.

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


# --- Labels of claims for sums by label: a claim's own, and where it has none, those of the pods that have it.
#
# People label pods; a claim that Kubernetes makes of a template has the labels of the template's ``spec.metadata``
# alone.

Pairs = tuple[tuple[str, str], ...]
Labels = Mapping[tuple[str, str], Pairs]
"""Labels of the claims that exist, by namespace and name."""
_Wire = Mapping[str, Any]
_MAX_LABELS: Final = 64
WITHOUT: Final = "(no such label)"
GONE: Final = "(the claim is gone)"


def labels_of(metadata: _Wire) -> Pairs:
    labels = metadata.get("labels")
    pairs = labels.items() if isinstance(labels, dict) else ()
    return tuple((text(name), text(value)) for name, value in pairs)[:_MAX_LABELS]


def value_in(labels: Pairs | None, name: str) -> str:
    """What a sum by the label is called. ``labels`` is None where the claim is gone."""
    return GONE if labels is None else dict(labels).get(name) or WITHOUT


def claim_labels(claims: Iterable[_Wire], pods: Iterable[_Wire]) -> dict[tuple[str, str], Pairs]:
    """The claim's own labels come first. A label of pods counts where all pods of the claim have it with one value;
    none does while one of them is not in ``pods``."""
    by_uid = {_metadata(pod).get("uid"): labels_of(_metadata(pod)) for pod in pods}
    found = {}
    for claim in claims:
        metadata = _metadata(claim)
        of_pods = _common([by_uid.get(user.get("uid")) for user in users_of(claim) if is_pod(user)])
        merged = {**dict(of_pods), **dict(labels_of(metadata))}
        found[text(metadata.get("namespace")) or "default", text(metadata.get("name"))] = tuple(merged.items())
    return found


def _common(labels: Sequence[Pairs | None]) -> Pairs:
    if not labels or None in labels:
        return ()
    first, *others = [dict(each or ()) for each in labels]
    return tuple((name, value) for name, value in first.items() if all(each.get(name) == value for each in others))


def _metadata(item: _Wire) -> _Wire:
    found = item.get("metadata")
    return found if isinstance(found, dict) else {}
