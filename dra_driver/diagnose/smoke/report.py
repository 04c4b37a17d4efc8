"""Options, kinds of devices, and the report of a smoke test, as values and as JSON. No I/O.

The claims work with the classes of the chart (and of NVIDIA's driver). Whole and shared GPUs differ by the attribute
``sharingStrategy``: ``device.allowMultipleAllocations`` does not compile if DRAConsumableCapacity is off.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Literal

from msgspec import Struct, field

from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.finding import Finding, Layer, Status, fail
from dra_driver.core.request_rights import AccessRight
from dra_driver.kube.published.names import MEMORY, PROFILE, SHARING_STRATEGY, TYPE, TYPE_GPU, TYPE_MIG
from dra_driver.kube.state import Wire

Form = Literal["gpu", "mig", "shared"]
FORMS: Final[tuple[Form, ...]] = ("gpu", "mig", "shared")

WHOLE_CLASS: Final = "gpu.nvidia.com"
MIG_CLASS: Final = "mig.nvidia.com"
REQUEST: Final = "device"
_SHARE_MEMORY: Final = "64Mi"
"""Memory of a share; `nvidia-smi -L` needs none, and other pods cannot use it during the test."""


class TryKind(Struct, frozen=True, order=True):
    """One kind: ``name`` is the MIG profile, or the strategy by which GPUs are shared, "" for whole GPUs."""

    form: Form
    name: str = ""

    def __str__(self) -> str:
        """``whole GPU``, ``MIG 1g.10gb``, ``share (MPS)``."""
        return {"gpu": "whole GPU", "mig": f"MIG {self.name}", "shared": f"share ({self.name})"}[self.form]


def kinds_of(slices: Iterable[Wire]) -> dict[TryKind, Wire]:
    """The kinds that these slices publish, whole GPUs first, each with one of its devices."""
    found: dict[TryKind, Wire] = {}
    for item in slices:
        for device in item["spec"].get("devices") or ():
            kind = _kind_of(device)
            if kind is not None:
                found.setdefault(kind, device)
    return dict(sorted(found.items(), key=lambda pair: (FORMS.index(pair[0].form), pair[0].name)))


def claim_spec(kind: TryKind, example: Wire, driver: str) -> Wire:
    """The ``spec`` of a claim for one device of this kind; ``example`` is a device with the capacities of a share."""
    domain = f'device.attributes["{driver}"]'
    shared = f'"{SHARING_STRATEGY}" in {domain}'
    expression = {
        "gpu": f'{domain}.{TYPE} == "{TYPE_GPU}" && !({shared})',
        "mig": f'{domain}.{TYPE} == "{TYPE_MIG}" && {domain}.{PROFILE} == "{kind.name}"',
        "shared": f'{shared} && {domain}.{SHARING_STRATEGY} == "{kind.name}"',
    }[kind.form]
    request: dict[str, object] = {
        "deviceClassName": MIG_CLASS if kind.form == "mig" else WHOLE_CLASS,
        "selectors": [{"cel": {"expression": f'device.driver == "{driver}" && {expression}'}}],
    }
    least = dict(_least(example)) if kind.form == "shared" else {}
    if least:
        request["capacity"] = {"requests": least}
    return {"devices": {"requests": [{"name": REQUEST, "exactly": request}]}}


def _least(device: Wire) -> Iterator[tuple[str, str]]:
    """The smallest amount of each capacity that a claim can request (KEP-5075); of memory a little more."""
    for name, capacity in (device.get("capacity") or {}).items():
        policy = capacity.get("requestPolicy") or {}
        values, span = policy.get("validValues") or (), policy.get("validRange") or {}
        if values:
            yield name, values[0]
        elif span.get("min"):
            yield name, _SHARE_MEMORY if name == MEMORY and span["min"] == "1Mi" else span["min"]


def _kind_of(device: Wire) -> TryKind | None:
    """None for devices of types that this command does not support."""
    found = _text(device, TYPE)
    if found == TYPE_MIG and _text(device, PROFILE):
        return TryKind("mig", _text(device, PROFILE))
    if found != TYPE_GPU:
        return None
    strategy = _text(device, SHARING_STRATEGY)
    return TryKind("shared", strategy) if strategy else TryKind("gpu")


def _text(device: Wire, name: str) -> str:
    return str(((device.get("attributes") or {}).get(name) or {}).get("string") or "")


_RESOURCE: Final = "resource.k8s.io"


class SmokeOptions(Struct, frozen=True, kw_only=True):
    """``nodes`` are names; without any and without ``all_nodes``, each kind is tested once. ``image`` is "" for that of
    the DaemonSet. ``parallel`` nodes run at the same time, at most ``most_nodes`` in all (0: no limit), ``timeout_s``
    per pod."""

    namespace: str
    driver: str = "gpu.nvidia.com"
    nodes: Sequence[str] = ()
    all_nodes: bool = False
    forms: Sequence[Form] = FORMS
    image: str = ""
    daemon_set: str = "dra-driver-node"
    driver_namespace: str = "dra-driver"
    user: int | None = 65532
    timeout_s: int = 120
    parallel: int = 8
    most_nodes: int = 0


def needed_rights(options: SmokeOptions) -> tuple[AccessRight, ...]:
    """Permissions that the user needs. Nodes, pods and events are read too if permitted."""
    within = partial(AccessRight, namespaced=True, namespace=options.namespace)
    found = [
        AccessRight(verb="list", resource="resourceslices", group=_RESOURCE),
        AccessRight(verb="list", resource="deviceclasses", group=_RESOURCE),
        AccessRight(verb="list", resource="resourceclaims", group=_RESOURCE, namespaced=True),
        within(verb="watch", resource="resourceclaims", group=_RESOURCE),
        *cleanup_rights(options.namespace),
        within(verb="get", resource="resourceclaims", group=_RESOURCE),
        within(verb="create", resource="resourceclaims", group=_RESOURCE),
        within(verb="create", resource="jobs", group="batch"),
        within(verb="get", resource="jobs", group="batch"),
        within(verb="list", resource="pods"),
        within(verb="get", resource="pods", subresource="log"),
    ]
    if not options.image:
        found.append(within(verb="get", resource="daemonsets", group="apps", namespace=options.driver_namespace))
    return tuple(found)


def cleanup_rights(namespace: str) -> tuple[AccessRight, ...]:
    return tuple(
        AccessRight(verb=verb, resource=resource, group=group, namespace=namespace, namespaced=True)
        for resource, group in (("jobs", "batch"), ("resourceclaims", _RESOURCE))
        for verb in ("list", "delete")
    )


WORDS: Final = {Status.OK: "ok", Status.FAIL: "failed", Status.SKIPPED: "not tried"}
"""Words of a result by the status of its finding."""


class TryResult(Struct, frozen=True, kw_only=True):
    """One kind on one node; ``kind`` is None for the whole node. Skipped: no device was free, or the command ended
    first.

    ``expected`` and ``seen`` are UUIDs (``PROFILE of GPU-…`` for a partition that exists only for its claim), ``lines``
    the words of the container or of an event.
    """

    node: str
    kind: TryKind | None
    finding: Finding
    device: str = ""
    expected: Sequence[str] = ()
    seen: Sequence[str] = ()
    lines: Sequence[str] = ()
    seconds: float = 0.0

    @classmethod
    def skipped(cls, node: str, kind: TryKind | None, why: str) -> "TryResult":
        return cls(node=node, kind=kind, finding=Finding(status=Status.SKIPPED, seen=why, object=f"node/{node}"))

    @classmethod
    def failed(cls, node: str, kind: TryKind | None, layer: Layer, message: str) -> "TryResult":
        """A failure in a layer, with the command that finds the cause."""
        fix = f"kubectl dra doctor node/{node}"
        return cls(node=node, kind=kind, finding=fail(message, "", fix, f"node/{node}", layer=layer))

    @property
    def status(self) -> Status:
        return self.finding.status


class SmokeReport(Struct, kw_only=True):
    """All attempts, in the order of nodes and kinds. ``left`` are objects that could not be deleted."""

    run: str
    namespace: str
    tries: list[TryResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    interrupted: bool = False

    def count(self, status: Status) -> int:
        return sum(item.status is status for item in self.tries)

    @property
    def exit_status(self) -> int:
        """0: each attempt succeeded. 1: a failure, or objects are left. 130: interrupted."""
        if self.interrupted:
            return 130
        return 1 if self.count(Status.FAIL) or self.left else 0

    @property
    def summary(self) -> str:
        """``5 tries on 2 nodes: 4 ok, 1 failed; 3 not tried``."""
        tried = [item for item in self.tries if item.status is not Status.SKIPPED]
        nodes = len({item.node for item in tried})
        words = f"{len(tried)} {'try' if len(tried) == 1 else 'tries'} on {nodes} node{'' if nodes == 1 else 's'}"
        failed = self.count(Status.FAIL)
        counted = f"{self.count(Status.OK)} ok" + (f", {failed} failed" if failed else "")
        rest = self.count(Status.SKIPPED)
        return f"{words}: {counted}" + (f"; {rest} not tried" if rest else "")


class SmokeTry(Struct, frozen=True, kw_only=True, rename=camel):
    """The test of one kind of device on one node. ``seen`` and ``expected`` are devices; ``lines`` are of the log."""

    node: str
    form: str
    profile: str
    status: str
    layer: str
    message: str
    fix: str
    device: str
    expected: Sequence[str]
    seen: Sequence[str]
    lines: Sequence[str]
    took_s: float


class SmokeDocument(JsonDocument, frozen=True, kw_only=True, tag="SmokeReport"):
    """``left`` are objects that the command could not delete."""

    run: str
    namespace: str
    summary: str
    interrupted: bool
    exit_status: int
    items: Sequence[SmokeTry]
    notes: Sequence[str]
    left: Sequence[str]


def document_of(report: SmokeReport) -> SmokeDocument:
    return SmokeDocument(
        run=report.run,
        namespace=report.namespace,
        summary=report.summary,
        interrupted=report.interrupted,
        exit_status=report.exit_status,
        items=[_try(item) for item in report.tries],
        notes=tuple(report.notes),
        left=tuple(report.left),
    )


def _try(item: TryResult) -> SmokeTry:
    return SmokeTry(
        node=item.node,
        form=item.kind.form if item.kind else "",
        profile=item.kind.name if item.kind else "",
        status=WORDS[item.status],
        layer=item.finding.layer or "",
        message=item.finding.seen,
        fix=item.finding.fix,
        device=item.device,
        expected=tuple(item.expected),
        seen=tuple(item.seen),
        lines=tuple(item.lines),
        took_s=round(item.seconds, 1),
    )
