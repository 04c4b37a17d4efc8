"""A claim's use of its devices over a window, as exporters and Prometheus report it, and sums of it.

Unknown values are None, and a sum with an unknown part has ``partial``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field
from msgspec.structs import fields

from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.quantity import quantity_in
from dra_driver.core.text import printable
from dra_driver.core.wire import from_wire
from dra_driver.kube.devices import HeldClaim, held_claim
from dra_driver.kube.shapes import MetadataPart


class ClaimDeviceUse(Struct, frozen=True, kw_only=True, rename=camel):
    """One device of one claim. ``sm_ratio`` is 0 to 1: the last value, or from Prometheus the mean over the window.

    ``peak_bytes`` is the maximum of all processes together within the window. ``idle_s`` is 0 while the device is in
    use. ``held_s`` is the observed time within the window. ``share`` is "" for an exclusive device.
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
    processes: int | None = field(name="processCount", default=None)
    idle_s: float | None = None
    held_s: float | None = field(name="observedSeconds", default=None)


class GpuMemory(Struct, frozen=True, kw_only=True):
    """Memory of one GPU. Claims, unattributed processes and the driver's reserve add up to ``used_bytes``."""

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
    """The report of one source. ``window_s`` applies to peaks, energy and idleness; ``gaps`` are messages about
    unreadable and impossible values."""

    source: str
    window_s: float
    uses: Sequence[ClaimDeviceUse]
    gaps: Sequence[str] = ()
    gpus: Sequence[GpuMemory] = ()


class UseSum(Struct, frozen=True, kw_only=True, rename=camel):
    """Sum over the devices of one claim, pod, namespace, node or value of a label, which ``key`` names. ``partial``
    has the keys that lack a part."""

    key: Mapping[str, str]
    claims: int = field(name="claimCount")
    devices: int = field(name="deviceCount")
    used_bytes: int | None
    granted_bytes: int | None
    peak_bytes: int | None
    sm_ratio: float | None
    energy_joules: float | None
    energy_estimated: bool
    processes: int | None = field(name="processCount")
    idle_s: float | None
    partial: tuple[str, ...] = ()


class UsageList(JsonDocument, frozen=True, kw_only=True):
    """Use of each device by each claim. ``window_s`` applies to peaks and energy."""

    source: str
    window_s: float
    gaps: Sequence[str] = ()
    items: Sequence[ClaimDeviceUse]


class UsageSumList(JsonDocument, frozen=True, kw_only=True):
    """Sums of `UsageList`; ``by`` is claim, pod, namespace, node or ``label:KEY``."""

    source: str
    window_s: float
    by: str
    gaps: Sequence[str] = ()
    items: Sequence[UseSum]


def json_key(name: str) -> str:
    """Return the key in JSON of a field of `UseSum`."""
    return next(each.encode_name for each in fields(UseSum) if each.name == name)


Key = tuple[tuple[str, str], ...]
KEYS: Final[Mapping[str, Callable[[ClaimDeviceUse], Key]]] = {
    "claim": lambda use: (("namespace", use.namespace), ("claim", use.claim)),
    # The pods of a claim share its use.
    "pod": lambda use: (("namespace", use.namespace), ("pod", ",".join(use.pods))),
    "namespace": lambda use: (("namespace", use.namespace),),
    "node": lambda use: (("node", use.node),),
}


def summed(uses: Iterable[ClaimDeviceUse], key_of: Callable[[ClaimDeviceUse], Key]) -> list[UseSum]:
    """Return one sum for each key, sorted. Utilisation is the mean over devices, idleness the shortest."""
    groups: dict[Key, list[ClaimDeviceUse]] = {}
    for use in uses:
        groups.setdefault(key_of(use), []).append(use)
    return [_sum(dict(key), groups[key]) for key in sorted(groups)]


def _sum(key: Mapping[str, str], uses: Sequence[ClaimDeviceUse]) -> UseSum:
    partial: list[str] = []

    def known(name: str) -> list[float]:
        values = [value for use in uses if (value := getattr(use, name)) is not None]
        if values and len(values) < len(uses):
            partial.append(json_key(name))
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


# --- Response of a node's exporter to ``/usage``.
#
# The exporter runs alongside tenants' pods, so the answer is validated: names are cut, impossible numbers are unknown,
# and entries of another shape are omitted.

MAX_CLAIMS: Final = 10_000
MAX_NAME: Final = 253
MAX_BYTES: Final = 2**50  # no GPU has more memory

Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_BYTES)]


class _Device(Struct, frozen=True, rename="camel"):
    request: str = ""
    device: str = ""
    share: str = ""
    used_bytes: Bytes | None = None
    grant_bytes: Bytes | None = None
    peak_bytes: Bytes | None = None
    percent: Percent | None = None
    energy_joules: Annotated[float, Meta(ge=0, le=1e15)] | None = None
    estimated: bool = False
    processes: Count | None = None
    idle_seconds: Seconds | None = None


class _Claim(Struct, frozen=True):
    namespace: str = ""
    name: str = ""
    pods: Annotated[tuple[object, ...], Meta(max_length=256)] = ()
    devices: Annotated[tuple[_Device, ...], Meta(max_length=64)] = ()


class _Gpu(Struct, frozen=True, rename="camel"):
    device: str = ""
    memory_total_bytes: Bytes | None = None
    memory_used_bytes: Bytes | None = None
    memory_claims_bytes: Bytes | None = None
    memory_unattributed_bytes: Bytes | None = None
    memory_reserved_bytes: Bytes | None = None
    unattributed_processes: Count | None = None
    percent: Percent | None = None
    power_watts: Annotated[float, Meta(ge=0, le=100_000)] | None = None


class _Answer(Struct, frozen=True, rename="camel"):
    node: str = ""
    window_seconds: Annotated[float, Meta(ge=0, le=366 * 86_400)] = 0.0
    knows: dict[str, object] = {}
    gpus: Annotated[tuple[_Gpu, ...], Meta(max_length=64)] = ()
    claims: Annotated[tuple[_Claim, ...], Meta(max_length=MAX_CLAIMS)] = ()


def decode(document: Mapping[str, object], node: str = "") -> UseReport:
    """Return the report of a node's exporter. Raises ValueError for another document or an unknown version."""
    if document.get("version") != 1:
        raise ValueError(f"its version is {str(document.get('version'))[:20]!r}, expected 1")
    answer = from_wire(_Answer, document)
    node = text(answer.node) or node
    return UseReport(
        source=node,
        window_s=answer.window_seconds,
        uses=[_use(claim, device, node) for claim in answer.claims if claim.name for device in claim.devices],
        gaps=[
            f"node {node}: the exporter cannot measure {text(what)}: {text(why) or 'no reason given'}"
            for what, why in list(answer.knows.items())[:10]
            if why is not True
        ],
        gpus=[_memory(gpu, node) for gpu in answer.gpus if gpu.device],
    )


def _memory(gpu: _Gpu, node: str) -> GpuMemory:
    return GpuMemory(
        node=node,
        device=text(gpu.device),
        total_bytes=gpu.memory_total_bytes,
        used_bytes=gpu.memory_used_bytes,
        claims_bytes=gpu.memory_claims_bytes,
        unattributed_bytes=gpu.memory_unattributed_bytes,
        unattributed_processes=gpu.unattributed_processes,
        reserved_bytes=gpu.memory_reserved_bytes,
        busy_ratio=_ratio(gpu.percent),
        power_watts=gpu.power_watts,
    )


def _use(claim: _Claim, device: _Device, node: str) -> ClaimDeviceUse:
    used, peak = device.used_bytes, device.peak_bytes
    pods = (text(pod.get("name") if isinstance(pod, dict) else pod) for pod in claim.pods)
    return ClaimDeviceUse(
        namespace=text(claim.namespace),
        claim=text(claim.name),
        node=node,
        request=text(device.request),
        device=text(device.device),
        share=text(device.share),
        pods=tuple(dict.fromkeys(name for name in pods if name)),
        used_bytes=used,
        granted_bytes=device.grant_bytes,
        peak_bytes=None if used is None else max(peak or 0, used),  # the exporter can miss the maximum
        sm_ratio=_ratio(device.percent),
        energy_joules=device.energy_joules,
        energy_estimated=device.estimated,
        processes=device.processes,
        idle_s=device.idle_seconds,
    )


def text(value: object) -> str:
    """Return a name on one line, cut; "" for a value of another type."""
    return printable(value[:MAX_NAME]) if isinstance(value, str) else ""


def amount_in(value: object) -> int | None:
    """Return a quantity as a whole number; None for a value of another form."""
    found = quantity_in(value) if isinstance(value, str | int) else None
    return None if found is None else found.as_int()


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


# --- Labels of claims: of the claim, else of its pods.
#
# Users label pods. A claim that Kubernetes creates of a template has only labels of the template's ``spec.metadata``.


Held = Mapping[tuple[str, str], HeldClaim]
"""Claims that exist, by namespace and name."""


def claims_held(claims: Iterable[Mapping[str, Any]]) -> Held:
    every = (held_claim(HeldClaim, item)[0] for item in claims)
    return {(text(each.metadata.namespace) or "default", text(each.metadata.name)): each for each in every}


class _Labelled(MetadataPart, frozen=True):
    labels: object = None

    def pairs(self) -> Mapping[str, object]:
        return self.labels if isinstance(self.labels, dict) else {}


class _User(Struct, frozen=True, rename="camel"):
    resource: str = ""
    uid: str = ""
    api_group: str = ""


class _Users(Struct, frozen=True, rename="camel"):
    reserved_for: tuple[_User, ...] = ()


class LabelledClaim(Struct, frozen=True):
    metadata: _Labelled = _Labelled()
    status: _Users = _Users()


class LabelledPod(Struct, frozen=True):
    metadata: _Labelled = _Labelled()


Labels = Mapping[tuple[str, str], Mapping[str, object]]
"""Labels of the claims that exist, by namespace and name."""
WITHOUT: Final = "(no such label)"
GONE: Final = "(the claim is gone)"  # plain: value in JSON
GONE_OR_UNREAD: Final = "(the claim is gone or cannot be read)"  # plain: value in JSON


def value_in(labels: Mapping[str, object] | None, name: str, missing: str = GONE) -> str:
    """Return the key of a sum by the label. ``labels`` is None for a claim that is ``missing``."""
    return missing if labels is None else text(labels.get(name)) or WITHOUT


def claim_labels(claims: Iterable[LabelledClaim], pods: Iterable[LabelledPod]) -> Labels:
    """Return labels by claim: its labels first, then labels with one value on all its pods.

    Labels of pods count only if ``pods`` has all pods of the claim.
    """
    by_uid = {pod.metadata.uid: pod.metadata.pairs() for pod in pods if pod.metadata.uid}
    found = {}
    for claim in claims:
        uids = [user.uid for user in claim.status.reserved_for if user.resource == "pods" and not user.api_group]
        first, *others = [by_uid.get(uid, {}) for uid in uids] or [{}]
        of_pods = {name: value for name, value in first.items() if all(labels.get(name) == value for labels in others)}
        key = (text(claim.metadata.namespace) or "default", text(claim.metadata.name))
        found[key] = {**of_pods, **claim.metadata.pairs()}
    return found
