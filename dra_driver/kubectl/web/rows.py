"""Contents of the pages: rows of claims, waiting pods and events, explanations and capacity."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import Finding, Status
from dra_driver.core.model.gpu_node import NodePolicy
from dra_driver.core.text import span
from dra_driver.core.time import parse_time
from dra_driver.core.wire import from_wire
from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
from dra_driver.diagnose.doctor.facts import facts_of_state
from dra_driver.kube.devices import Wire
from dra_driver.kube.objects.resource import Condition, ResourceClaim
from dra_driver.kube.shapes import MetadataPart, read_all
from dra_driver.kube.state import ClusterState, identity, with_objects
from dra_driver.kube.state_file import flat, objects_of, read_documents
from dra_driver.kubectl.capacity import CapacityReport, ClaimDevice, ClaimRow, Options, survey
from dra_driver.kubectl.explain import (
    Explanation,
    explain,
    explain_pods,
    pod_subject,
    pods_in,
    scheduler_for,
    subject_of_claim,
    with_defaults,
)
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse
from dra_driver.kubectl.usage.quota import QuotaRow
from dra_driver.kubectl.web.fleet import GpuRow, NodeRow, Part, SeenFleet


class ClaimDeviceRow(Struct, frozen=True, kw_only=True):
    """A device of a claim; ``gpu`` is "" if the GPU is unknown, ``use`` None if unmeasured. ``use_key`` is None if
    another device of the claim has the same name.

    ``trouble`` is the reported problem of its GPU or node.
    """

    request: str
    device: str
    node: str
    gpu: str
    part: Part | None
    use: ClaimDeviceUse | None
    use_key: "Key | None" = None
    trouble: str = ""


class ClaimOnPage(Struct, frozen=True, kw_only=True):
    claim: ClaimRow
    devices: Sequence[ClaimDeviceRow]

    @property
    def used_bytes(self) -> int | None:
        known = [each.use.used_bytes for each in self.devices if each.use and each.use.used_bytes is not None]
        return sum(known) if known and len(known) == len(self.devices) else None

    @property
    def busy_ratio(self) -> float | None:
        """The mean over the devices with a known value."""
        known = [each.use.sm_ratio for each in self.devices if each.use and each.use.sm_ratio is not None]
        return sum(known) / len(known) if known else None

    @property
    def granted_bytes(self) -> int | None:
        known = [each.part.memory_bytes for each in self.devices if each.part and each.part.memory_bytes]
        return sum(known) if known and len(known) == len(self.devices) else None


Key = tuple[str, str, str, str, str]
"""Namespace, claim, node, device and share: a claim can have several shares of a device."""
Uses = Mapping[Key, ClaimDeviceUse]


def uses_by_device(uses: Iterable[ClaimDeviceUse]) -> Uses:
    return {key_of(use): use for use in uses}


def key_of(use: ClaimDeviceUse) -> Key:
    return use.namespace, use.claim, use.node, use.device, use.share


def claim_views(claims: Iterable[ClaimRow], fleet: SeenFleet, uses: Uses) -> list[ClaimOnPage]:
    parts = {
        (part.namespace, part.claim, gpu.driver, part.pool, part.device, part.share_id): (node, gpu, part)
        for node in fleet.nodes
        for gpu in node.gpus
        for part in (*gpu.parts, *gpu.admins)
    }
    return [_view(claim, parts, uses) for claim in claims]


PartsByDevice = Mapping[tuple[str, str, str, str, str, str], tuple[NodeRow, GpuRow, Part]]


def _view(claim: ClaimRow, parts: PartsByDevice, uses: Uses) -> ClaimOnPage:
    devices = []
    same = Counter((each.node, each.device, each.share_id) for each in claim.devices)
    for each in claim.devices:
        allocated = (claim.namespace, claim.name, each.driver, each.pool, each.device, each.share_id)
        node, gpu, part = parts.get(allocated, (None, None, None))
        # Exporters name devices without their pool: use is ambiguous if two devices share a name.
        is_clear = same[each.node, each.device, each.share_id] == 1
        key = (claim.namespace, claim.name, each.node, each.device, each.share_id) if is_clear else None
        row = ClaimDeviceRow(
            request=each.request,
            device=each.device,
            node=each.node,
            gpu=gpu.name if gpu else "",
            part=part,
            use=uses.get(key) if key else None,
            use_key=key,
            trouble=_trouble(each, gpu, node),
        )
        devices.append(row)
    return ClaimOnPage(claim=claim, devices=tuple(devices))


def _trouble(device: ClaimDevice, gpu: GpuRow | None, node: NodeRow | None) -> str:
    if device.unhealthy or (gpu is not None and gpu.health == "Unhealthy"):
        why = gpu.message or ", ".join(gpu.causes) if gpu else ""
        return f"{gpu.name if gpu else device.device}: {why or ', '.join(device.unhealthy) or 'unhealthy'}"
    return f"node {node.name}: {node.problem}" if node and node.problem else ""


CLAIM_ORDERS: Final[Mapping[str, tuple[Callable[[ClaimOnPage], object], bool]]] = {
    "name": (lambda view: (view.claim.namespace, view.claim.name), False),
    "state": (lambda view: ({"pending": 0, "deleting": 1}.get(view.claim.state, 2), view.claim.name), False),
    "granted": (lambda view: view.granted_bytes or 0, True),
    "used": (lambda view: -1 if view.used_bytes is None else view.used_bytes, True),
    "busy": (lambda view: -1.0 if view.busy_ratio is None else view.busy_ratio, True),
    "age": (lambda view: -1 if view.claim.age_s is None else view.claim.age_s, True),
}
"""Sort keys of the claims' columns, and whether the largest value is first."""


class ClaimDetails(Struct, frozen=True, kw_only=True):
    """Owner of a claim, requests with their CEL expressions, and conditions by device."""

    owner: str
    selectors: Sequence[tuple[str, str]]
    conditions: Sequence[tuple[str, Condition]]


def claim_details(claims: Iterable[Wire], wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], ClaimDetails]:
    """Return details of the wanted claims (namespace, name) that can be read."""
    found = {}
    for item in (each for each in claims if identity(each) in wanted):
        with suppress(ValueError):
            found[identity(item)] = _details(from_wire(ResourceClaim, item))
    return found


def _details(claim: ResourceClaim) -> ClaimDetails:
    requests = claim.spec.devices.requests if claim.spec.devices else ()
    ways = [(each.name, way) for each in requests for way in (each.exactly, *each.first_available) if way]
    return ClaimDetails(
        owner=next((f"{each.kind}/{each.name}" for each in claim.metadata.owner_references), ""),
        selectors=[(name, each.cel.expression) for name, way in ways for each in way.selectors if each.cel],
        conditions=[
            (one.device, each) for one in (claim.status.devices if claim.status else ()) for each in one.conditions
        ],
    )


class Waiting(Struct, frozen=True, kw_only=True):
    """Waiting pods of one owner. Only the first is explained: all have the same reason."""

    namespace: str
    name: str
    owner: str
    count: int
    since: str
    pod: Wire


class _Owner(Struct, frozen=True):
    kind: str = ""
    name: str = ""


class _Owned(MetadataPart, frozen=True):
    owner_references: tuple[_Owner, ...] = ()


class _Resources(Struct, frozen=True):
    requests: dict[str, object] = {}


class _Container(Struct, frozen=True):
    resources: _Resources = _Resources()


class _PodSpec(Struct, frozen=True, rename="camel"):
    resource_claims: tuple[object, ...] = ()
    containers: tuple[_Container, ...] = ()


class _PodStatus(Struct, frozen=True):
    phase: str = ""


class _Pod(Struct, frozen=True):
    metadata: _Owned
    spec: _PodSpec
    status: _PodStatus = _PodStatus()


Lost = Callable[[str], None]


def waiting_pods(state: ClusterState, lost: Lost = lambda _: None) -> list[Waiting]:
    """Return pods without a node that request devices, by owner, oldest first. Call ``lost`` for unreadable pods."""
    groups: dict[tuple[str, str], list[Waiting]] = {}
    for item in state.pods:
        spec = item.get("spec")
        if isinstance(spec, Mapping) and spec.get("nodeName"):
            continue  # most pods of a large cluster
        for pod in filter(_waits, read_all(_Pod, (item,), lost)):
            metadata = pod.metadata
            owner = next((f"{each.kind}/{each.name}" for each in metadata.owner_references), "")
            namespace, name = metadata.namespace or "default", metadata.name
            since = metadata.creation_timestamp
            waiting = Waiting(namespace=namespace, name=name, owner=owner, count=1, since=since, pod=item)
            groups.setdefault((namespace, owner or f"pod/{name}"), []).append(waiting)
    firsts = (
        replace(min(group, key=lambda each: (each.since, each.name)), count=len(group)) for group in groups.values()
    )
    return sorted(firsts, key=lambda each: (each.since, each.namespace, each.name))


def _waits(pod: _Pod) -> bool:
    if pod.status.phase not in ("", "Pending") or pod.metadata.deletion_timestamp:
        return False
    requests = (name for each in pod.spec.containers for name in each.resources.requests)
    return bool(pod.spec.resource_claims) or any("/" in name for name in requests)


class EventRow(Struct, frozen=True, kw_only=True):
    at: str
    reason: str
    about: str
    kind: str
    namespace: str
    name: str
    message: str
    count: int
    source: str


class _About(MetadataPart, frozen=True):
    kind: str = ""


class _Source(Struct, frozen=True):
    component: str = ""


class _Series(Struct, frozen=True):
    count: object = None


class _Event(Struct, frozen=True, rename="camel"):
    involved_object: _About = _About()
    last_timestamp: str = ""
    event_time: str = ""
    first_timestamp: str = ""
    reason: str = ""
    message: str = ""
    count: object = None
    series: _Series = _Series()
    source: _Source = _Source()


def event_rows(events: Iterable[Wire], lost: Lost = lambda _: None) -> list[EventRow]:
    """Return the newest first. Call ``lost`` for unreadable events."""
    return sorted(map(_event, read_all(_Event, events, lost)), key=lambda each: each.at, reverse=True)


def _event(event: _Event) -> EventRow:
    about, count = event.involved_object, event.series.count or event.count
    name = f"{about.namespace}/{about.name}" if about.namespace else about.name
    return EventRow(
        at=event.last_timestamp or event.event_time or event.first_timestamp,
        reason=event.reason,
        about=f"{about.kind} {name}",
        kind=about.kind,
        namespace=about.namespace,
        name=about.name,
        message=event.message,
        count=count if isinstance(count, int) and count else 1,
        source=event.source.component,
    )


class EventGroup(Struct, frozen=True, kw_only=True):
    """Events of one reason about objects of one owner; ``newest`` is shown. ``count`` adds up repetitions."""

    newest: EventRow
    owner: str
    kind: str
    objects: int
    count: int


EVENT_KINDS: Final = {"gpu": "GPU faults", "scheduling": "Scheduling", "claims": "Claims", "other": "Other"}


def event_groups(events: Iterable[EventRow], pods: Iterable[Wire]) -> list[EventGroup]:
    """Return groups by kind, reason and owner: GPU faults first, then the newest. ``events`` are the newest first."""
    rows = list(events)
    about = {(each.namespace, each.name) for each in rows if each.kind == "Pod"}
    known = [item for item in pods if identity(item) in about]
    owners = {
        (pod.metadata.namespace or "default", pod.metadata.name): next(
            (f"{each.kind} {each.name}" for each in pod.metadata.owner_references), ""
        )
        for pod in read_all(_Pod, known, lambda _: None)
    }
    groups: dict[tuple[str, str, str, str], list[EventRow]] = {}
    for each in rows:
        owner = owners.get((each.namespace, each.name), "") if each.kind == "Pod" else ""
        # A deleted pod has no owner here: pods of one generated name are one group.
        prefix = each.name.rpartition("-")[0] or each.name
        name = owner or (f"{each.kind} {prefix}-*" if each.kind == "Pod" else each.about)
        groups.setdefault((_event_kind(each), each.reason, each.namespace, name), []).append(each)
    found = [
        EventGroup(
            newest=rows[0],
            owner=rows[0].about if len({row.name for row in rows}) == 1 else f"{key[3]} in {key[2]}",
            kind=key[0],
            objects=len({row.name for row in rows}),
            count=sum(row.count for row in rows),
        )
        for key, rows in groups.items()
    ]
    return sorted(found, key=lambda each: each.kind != "gpu")


def _event_kind(event: EventRow) -> str:
    if event.reason.startswith("Gpu") or event.reason == "DeviceTaintManagerEviction":
        return "gpu"
    if event.reason == "FailedScheduling":
        return "scheduling"
    return "claims" if "Claim" in event.kind or "Prepare" in event.reason else "other"


class NamespaceRow(Struct, frozen=True, kw_only=True):
    """GPUs of one namespace. Values are None if a part is unknown; ``idle`` counts claims that nodes report as idle.

    ``quotas`` are (limit, used or None, hard).
    """

    name: str
    claims: int = 0
    pending: int = 0
    devices: int = 0
    granted_bytes: int | None = None
    used_bytes: int | None = None
    busy_ratio: float | None = None
    idle: int = 0
    waiting: int = 0
    quotas: Sequence[tuple[str, int | None, int]] = ()


def namespace_rows(
    views: Iterable[ClaimOnPage],
    waiting: Iterable[Waiting],
    idle: Collection[tuple[str, str]],
    quotas: Iterable[QuotaRow],
) -> list[NamespaceRow]:
    """Return a row for each namespace with claims, waiting pods or quotas; most devices first."""
    by_name: dict[str, list[ClaimOnPage]] = {}
    for view in views:
        by_name.setdefault(view.claim.namespace, []).append(view)
    waits: Counter[str] = Counter()
    for pods in waiting:
        waits[pods.namespace] += pods.count
    limits: dict[str, list[tuple[str, int | None, int]]] = {}
    for quota in quotas:
        if quota.hard is None:
            continue
        limits.setdefault(quota.namespace, []).append((quota.device_class or "claims", quota.used, quota.hard))
    rows = [
        _namespace_row(name, by_name.get(name, ()), waits[name], idle, limits.get(name, ()))
        for name in {*by_name, *waits, *limits}
    ]
    return sorted(rows, key=lambda row: (-row.devices, row.name))


def _namespace_row(
    name: str,
    views: Sequence[ClaimOnPage],
    waiting: int,
    idle: Collection[tuple[str, str]],
    quotas: Sequence[tuple[str, int | None, int]],
) -> NamespaceRow:
    held = [view for view in views if view.devices]
    used, granted = ([getattr(view, name) for view in held] for name in ("used_bytes", "granted_bytes"))
    busy = [view.busy_ratio for view in held if view.busy_ratio is not None]
    return NamespaceRow(
        name=name,
        claims=len(views),
        pending=sum(view.claim.state == "pending" for view in views),
        devices=sum(len(view.devices) for view in views),
        granted_bytes=sum(granted) if held and None not in granted else None,
        used_bytes=sum(used) if held and None not in used else None,
        busy_ratio=sum(busy) / len(busy) if busy else None,
        idle=sum((view.claim.namespace, view.claim.name) in idle for view in held),
        waiting=waiting,
        quotas=tuple(quotas),
    )


class PolicyRow(Struct, frozen=True, kw_only=True):
    """A policy over all nodes. ``nodes`` counts nodes by state; ``reasons`` are distinct messages with a node."""

    name: str
    nodes: Mapping[str, int]
    gpus: int
    in_force: int
    waits_for: Sequence[str]
    reasons: Sequence[tuple[str, str]]


def policy_rows(nodes: Iterable[NodeRow]) -> list[PolicyRow]:
    found: dict[str, list[tuple[str, NodePolicy]]] = {}
    for node in nodes:
        for policy in node.policies:
            found.setdefault(policy.name, []).append((node.name, policy))
    return [
        PolicyRow(
            name=name,
            nodes=Counter(policy.state.value for _, policy in each),
            gpus=sum(len(policy.gpus) for _, policy in each),
            in_force=sum(len(policy.in_force) for _, policy in each),
            waits_for=sorted({claim for _, policy in each for claim in policy.waiting_for}),
            reasons=list({policy.message: (node, policy.message) for node, policy in each if policy.message}.values()),
        )
        for name, each in sorted(found.items())
    ]


def ago(moment: str, now: datetime) -> str:
    """Return the age of an RFC 3339 time; "" if it is not one."""
    then = parse_time(moment)
    return span(max(0.0, (now - then).total_seconds())) if then is not None else ""


MAX_QUERY: Final = 100
Row = TypeVar("Row")


class Page(Struct, Generic[Row], frozen=True, kw_only=True):
    """``rows`` of one page; ``number`` counts from 1. ``total`` rows match, of ``of`` in all."""

    rows: Sequence[Row]
    number: int
    pages: int
    total: int
    of: int
    first: int

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0


def page_of(rows: Sequence[Row], number: str, size: int, *, of: int | None = None) -> Page[Row]:
    """Return a page: the last if beyond the end, the first if not a number."""
    pages = max(1, -(-len(rows) // size))
    wanted = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1
    at = min(max(1, wanted), pages)
    start, total = (at - 1) * size, len(rows)
    shown = rows[start : start + size]
    return Page(rows=shown, number=at, pages=pages, total=total, of=total if of is None else of, first=start + 1)


def matching(rows: Sequence[Row], query: str, texts: Callable[[Row], str]) -> list[Row]:
    """Return rows whose texts contain every word of the query, ignoring case."""
    words = query[:MAX_QUERY].casefold().split()
    return [row for row in rows if all(word in texts(row).casefold() for word in words)] if words else list(rows)


def query_string(**fields: str | int) -> str:
    """Return ``?q=a&page=2`` without empty fields, or ""."""
    given = {name: value for name, value in fields.items() if value}
    return f"?{urlencode(given)}" if given else ""


T = TypeVar("T")


def in_thread(compute: Callable[[], T], done: Callable[[], object]) -> "asyncio.Future[T]":
    """Compute in a daemon thread that calls ``done`` at the end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        if not future.done():
            settle()

    def run() -> None:
        try:
            settle = partial(future.set_result, compute())
        except Exception as error:  # noqa: BLE001  raised to the awaiting caller
            settle = partial(future.set_exception, error)
        finally:
            done()
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, settle)

    threading.Thread(target=run, name="page-what-if", daemon=True).start()
    return future


def survey_of(state: ClusterState) -> CapacityReport:
    state = with_defaults(state)
    scheduler = scheduler_for(state)
    return survey(state, Options(features=scheduler.features, quirks=scheduler.quirks))


def explain_pod(state: ClusterState, namespace: str, name: str) -> Explanation:
    return explain(state, pod_subject(state, namespace, name), scheduler=scheduler_for(state))


def explain_claim(state: ClusterState, item: Wire) -> Explanation:
    return explain(state, subject_of_claim(item), scheduler=scheduler_for(state))


def cause_of(report: Explanation) -> str:
    """Return the sentence by which waiting pods are grouped: the blocking cause, else the verdict."""
    blocking = next((cause.message for cause in report.causes if cause.blocks), "")
    return report.verdict.sentence if not blocking or blocking in report.verdict.sentence else blocking


class FindingGroup(Struct, frozen=True, kw_only=True):
    """Equal findings about several objects."""

    finding: Finding
    objects: Sequence[str]


def findings_of(state: ClusterState) -> list[FindingGroup]:
    """Return the findings of `kubectl dra doctor` that the page's objects answer: failures first, equal ones once."""
    report = diagnose(facts_of_state(state), DoctorScope(), clock=time.monotonic)
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for each in report.findings:
        if each.status is not Status.OK:
            # A finding names its object in its words, too: the same check with the same advice is one group.
            words = (each.status, each.check, each.reason, each.fix.replace(each.object.rpartition("/")[2], ""))
            groups.setdefault(words, []).append(each)
    found = [FindingGroup(finding=each[0], objects=[one.object for one in each]) for each in groups.values()]
    order = (Status.FAIL, Status.WARN, Status.UNKNOWN, Status.SKIPPED)
    return sorted(found, key=lambda each: order.index(each.finding.status))


MAX_BYTES: Final = 64 << 10
MAX_PODS: Final = 8
MAX_CLAIMS: Final = 8
_WHERE: Final = Path("the pasted text")

EXAMPLE: Final = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: trial
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        selectors:
        - cel:
            expression: device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0
"""


def tried(state: ClusterState, text: str, namespace: str = "default") -> list[Explanation]:
    """Explain each pod in the manifests; without pods, each claim. Raises ConfigurationError."""
    if len(text.encode()) > MAX_BYTES:
        raise ConfigurationError(f"more than {MAX_BYTES >> 10} KiB: paste fewer objects")
    documents = list(flat(list(read_documents(_WHERE, text)), str(_WHERE)))
    others = [item for item in documents if item.get("kind") != "Pod"]
    objects = objects_of(others, str(_WHERE), namespace)
    pods = pods_in(documents, namespace, str(_WHERE))
    claims = [item for item in objects if item["kind"] == "ResourceClaim"]
    if not pods and not claims:
        raise ConfigurationError("the manifests contain no Pod, workload or ResourceClaim")
    if len(pods) > MAX_PODS or len(claims) > MAX_CLAIMS:
        given = f"{len(pods)} pods and {len(claims)} claims"
        raise ConfigurationError(f"{given}: the limit is {MAX_PODS} of each")
    state = with_objects(state, objects)
    scheduler = scheduler_for(state)
    if pods:
        return explain_pods(state, pods, scheduler=scheduler)
    return [explain(state, subject_of_claim(item), scheduler=scheduler) for item in claims]
