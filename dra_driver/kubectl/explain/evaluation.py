"""Evaluate nodes as the cluster's scheduler does, and record why it rejects each device and who uses it.

The checks of a node run in this order: the pod's own requirements, the location of its allocated claims, then the
allocation of its other claims.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError, ConfigurationError
from dra_driver.core.text import listed
from dra_driver.kube.devices import results_of, user_label, users_of
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain import subject as subjects
from dra_driver.kubectl.explain.subject import Subject, SubjectClaim, Wire, allocation_of, label_of, name_of
from dra_driver.scheduler import allocation
from dra_driver.scheduler.allocation import V1_36, DeviceId, NodeUsage, SchedulerFeatures, SchedulerQuirks

# --- The scheduler's behaviour and feature gates, from the cluster's version.
#
# The gates of a running scheduler are unreadable: defaults of its version apply, or the given gates. A stored field
# that needs a gate shows that the gate is on.

_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,3})")
# Field of a device -> its gate, which is off before 1.36 (pkg/features/kube_features.go).
_FIELDS: Final = {
    "taints": "DRADeviceTaints",
    "bindingConditions": "DRADeviceBindingConditions",
    "allowMultipleAllocations": "DRAConsumableCapacity",
}
_YOUNG: Final = ("DRAPartitionableDevices", *_FIELDS.values())
_SAMPLED_SLICES: Final = 16  # of each driver
_LISTS: Final = ("ints", "strings", "bools", "versions")


class SchedulerModel(Struct, frozen=True, kw_only=True):
    features: SchedulerFeatures = field(default_factory=SchedulerFeatures)
    quirks: SchedulerQuirks = V1_36


def scheduler_of(version: str, gates: Mapping[str, bool], slices: Iterable[Wire] = ()) -> SchedulerModel:
    """Return the model for a version ("" is 1.36). ``gates`` override its defaults and gates found in ``slices``."""
    found, defaults = _VERSION.match(version), _lists_seen(slices)
    if found is None:
        return SchedulerModel(features=SchedulerFeatures.from_gates({**defaults, **gates}))
    major, minor = int(found[1]), int(found[2])
    if (major, minor) < (1, 36):
        defaults |= {**dict.fromkeys(_YOUNG, False), **_gates_seen(slices)}
    return SchedulerModel(
        features=SchedulerFeatures.from_gates({**defaults, **gates}),
        quirks=SchedulerQuirks.of_version(f"{major}.{minor}"),
    )


def scheduler_for(state: ClusterState, gates: str = "") -> SchedulerModel:
    """Return the model for a cluster, with gates as in ``--feature-gates``. Raises ConfigurationError."""
    return scheduler_of(state.server_version, gates_of(gates), state.slices)


def _gates_seen(slices: Iterable[Wire]) -> dict[str, bool]:
    seen: dict[str, bool] = {}
    for item in slices:
        if item["spec"].get("sharedCounters"):
            seen["DRAPartitionableDevices"] = True
        for device in item["spec"].get("devices") or ():
            seen |= {gate: True for field, gate in _FIELDS.items() if device.get(field)}
        if len(seen) == len(_YOUNG):
            break
    return seen


def _lists_seen(slices: Iterable[Wire]) -> dict[str, bool]:
    # Decoding all devices of a large cluster takes seconds. A driver publishes the same on all nodes.
    sampled: Counter[str] = Counter()
    for item in slices:
        driver = str(item["spec"].get("driver"))
        if sampled[driver] >= _SAMPLED_SLICES:
            continue
        for device in (item["spec"].get("devices") or ())[:1]:
            sampled[driver] += 1
            if any(kind in value for value in (device.get("attributes") or {}).values() for kind in _LISTS):
                return {"DRAListTypeAttributes": True}
    return {}


def gates_of(text: str) -> dict[str, bool]:
    """Parse ``A=true,B=false``. Raises ConfigurationError."""
    found = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, _, value = part.partition("=")
        if value.lower() not in ("true", "false"):
            raise ConfigurationError(f"feature gate {part[:80]!r}: expected NAME=true or NAME=false")
        found[name] = value.lower() == "true"
    return found


_EMPTY: Final = NodeUsage()


class NodeResult(Struct, frozen=True, kw_only=True):
    """Result for one node; ``message`` is "" when it fits. ``allocations`` has one entry per claim of ``claims``.

    Results of `Evaluation.nodes` with the same ``like`` differ only in names of nodes and pools; the first of them has
    the ``allocations``. None is like no other.
    """

    name: str
    wire: Wire
    message: str
    by_devices: bool = False
    claims: Sequence[Wire] = ()
    labels: Sequence[str] = ()
    allocations: Sequence[Wire] = ()
    like: Hashable | None = None

    @property
    def fits(self) -> bool:
        return not self.message


class Observed(Struct):
    """Events of one allocation attempt: the cause for each request and device, and the omitted pools."""

    causes: dict[tuple[int, str], dict[DeviceId, allocation.Cause]] = field(default_factory=dict)
    left_out: dict[tuple[str, str], allocation.PoolLeftOut] = field(default_factory=dict)

    def record(self, event: allocation.Event, /) -> None:
        """Keep the cause for a device that does not depend on previously tried devices."""
        if isinstance(event, allocation.PoolLeftOut):
            self.left_out[event.driver, event.pool] = event
            return
        causes = self.causes.setdefault((event.claim, event.request), {})
        known = causes.get(event.device)
        if known is None or (_is_transient(known) and not _is_transient(event.cause)):
            causes[event.device] = event.cause


class Evaluation:
    """Evaluates one subject on nodes. ``allocated`` are claims whose devices determine where the pod can run."""

    def __init__(
        self,
        state: ClusterState,
        subject: Subject,
        allocator: allocation.Allocator,
        *,
        usage: Mapping[str, NodeUsage],
        allocated: Sequence[SubjectClaim],
        unallocated: Sequence[SubjectClaim],
    ) -> None:
        self._state = state
        self._subject = subject
        self._allocator = allocator
        self._usage = usage
        self._allocated_claims = allocated
        self._unallocated = unallocated
        self._questions: dict[tuple[str, ...], allocation.Question] = {}

    def nodes(self) -> list[NodeResult]:
        """Raises AllocationError and the errors of `cel` when the scheduler would reject the pod on every node."""
        known: dict[Hashable, NodeResult] = {}
        return [self._node(node, known) for node in self._state.nodes]

    def node(self, node: Wire, *, ignoring_pod: bool = False) -> NodeResult:
        return self._node(node, None, ignoring_pod=ignoring_pod)

    def _node(self, node: Wire, known: dict[Hashable, NodeResult] | None, *, ignoring_pod: bool = False) -> NodeResult:
        claims, labels, served = self._claims_on(node)
        result: dict[str, Any] = {"name": name_of(node), "wire": node, "claims": claims, "labels": labels}
        if not ignoring_pod and (pod := self._subject.pod) is not None:
            message = allocation.unfit_reason(pod, node, self._usage.get(name_of(node), _EMPTY), served)
            if message:
                return NodeResult(message=message, **result)
        for item in self._allocated_claims:
            selector = (allocation_of(item.claim or {}) or {}).get("nodeSelector")
            if selector is not None and not allocation.node_matches(selector, node):
                message = f"{item.label} is allocated to devices that this node cannot reach"
                return NodeResult(message=message, by_devices=True, **result)
        if not claims:
            return NodeResult(message="", **result)
        question = self._question(claims)
        content_key = question.content_key(node) if known is not None else None
        if known is None or content_key is None:
            return _result_of(question.on(node), result)
        like = (id(question), content_key)
        if like in known:
            return replace(known[like], allocations=(), **result)
        known[like] = replace(_result_of(question.on(node), result), like=like)
        return known[like]

    def devices_fit(self, result: NodeResult) -> bool:
        """Return whether the devices fit and only the pod's own requirements exclude the node."""
        try:
            return bool(result.claims) and self.node(result.wire, ignoring_pod=True).fits
        except (AllocationError, CelSyntaxError, CelEvaluationError):
            return False

    def observed(self, result: NodeResult) -> Observed:
        seen = Observed()
        # Recording slows the search: it can reach the time limit. Events recorded before are valid.
        with suppress(AllocationError, CelSyntaxError, CelEvaluationError):
            self._question(result.claims).on(result.wire, seen)
        return seen

    def own_pools(self, result: NodeResult) -> list[tuple[str, str]]:
        """Driver and name of the node's own pools, sorted."""
        return self._allocator.own_pools(result.wire)

    def devices(self, result: NodeResult) -> Iterator[allocation.PoolDevice]:
        for pool in self._allocator.reachable(result.wire).pools:
            yield from pool.devices

    def _claims_on(self, node: Wire) -> tuple[list[Wire], list[str], frozenset[str]]:
        """Return claims to allocate with their labels, and the extended resources that one claim represents."""
        claims, labels = subjects.claims_to_allocate(self._unallocated, self._subject, node)
        wanted = self._subject.extended_requests
        served = (item.resource for item in wanted if item.class_name and not subjects.is_offered(node, item.resource))
        return claims, labels, frozenset(served)

    def _question(self, claims: Sequence[Wire]) -> allocation.Question:
        # Cached per set of requests: the claim for extended resources differs between nodes.
        key = tuple(
            str(request.get("name"))
            for claim in claims[len(self._unallocated) :]
            for request in claim["spec"]["devices"]["requests"]
        )
        if key not in self._questions:
            self._questions[key] = self._allocator.question(claims)
        return self._questions[key]


def _result_of(outcome: allocation.AllocationOutcome, result: Mapping[str, Any]) -> NodeResult:
    if outcome.allocations is None:
        return NodeResult(message="cannot allocate all claims", by_devices=True, **result)
    return NodeResult(message="", allocations=outcome.allocations, **result)


def _is_transient(cause: allocation.Cause) -> bool:
    return isinstance(cause, allocation.CounterShort | allocation.ConstraintBroken) or (
        isinstance(cause, allocation.InUse) and not cause.holders
    )


# --- Claims and pods that use a device. Admin access reserves no device and is omitted.

_MARK: Final = re.compile("\x00(\\d+)\x00")


class Holders:
    """Claims by device, and pods by claim. Immutable."""

    def __init__(self, claims: Iterable[Wire]) -> None:
        self._claims: dict[DeviceId, list[str]] = {}
        self._pods: dict[str, list[str]] = {}
        self._consumed: dict[tuple[DeviceId, str], Wire] = {}
        self._allocated_by_pool: dict[tuple[str, str], list[str]] = {}
        for claim in claims:
            label = label_of(claim)
            self._pods[label] = [user_label(user) for user in users_of(claim)]
            for result in results_of(claim):
                if not result.get("adminAccess"):
                    device = DeviceId(result["driver"], result["pool"], result["device"])
                    self._claims.setdefault(device, []).append(label)
                    self._consumed[device, label] = result.get("consumedCapacity") or {}
                    self._allocated_by_pool.setdefault(device[:2], []).append(device.device)

    def claims(self, device: DeviceId) -> list[str]:
        return self._claims.get(device, [])

    def consumed(self, device: DeviceId, claim: str, capacity: str) -> str:
        """Return the consumption of a device's capacity by the claim's share, "" if unknown."""
        return str(self._consumed.get((device, claim), {}).get(capacity) or "")

    def allocated_in(self, driver: str, pool: str) -> list[str]:
        return self._allocated_by_pool.get((driver, pool), [])

    def label_with_pods(self, claim: str) -> str:
        """Return ``team-a/train (pod train-0)``."""
        pods = self._pods.get(claim) or []
        if not pods:
            return f"{claim} (no pod)"
        return f"{claim} (pod{'s' if len(pods) > 1 else ''} {listed(pods, 20)})"


class NodeHolders(Holders):
    """Holders of one node's devices. Texts contain marks for claims; `named` replaces the marks.

    ``like`` is equal for nodes on which any claims use the same devices alike, so such nodes are explained once.
    """

    def __init__(self, holders: Holders, pools: Sequence[tuple[str, str]]) -> None:
        self._claims, self._pods, self._consumed = holders._claims, holders._pods, holders._consumed
        self._allocated_by_pool = holders._allocated_by_pool
        self._numbers: dict[str, int] = {}
        uses: list[Any] = []
        for place, (driver, pool) in enumerate(pools):
            for name in sorted(set(holders.allocated_in(driver, pool))):
                device = DeviceId(driver, pool, name)
                claims = holders.claims(device)
                users = tuple(self._numbers.setdefault(claim, len(self._numbers)) for claim in claims)
                amounts = tuple(tuple(sorted(self._consumed.get((device, claim), {}).items())) for claim in claims)
                uses.append((place, name, users, amounts))
        self.like = tuple(uses)

    def label_with_pods(self, claim: str) -> str:
        number = self._numbers.get(claim)
        return super().label_with_pods(claim) if number is None else f"\x00{number}\x00"

    def named(self, text: str) -> str:
        """Return the text with this node's claims and pods instead of the marks."""
        if "\x00" not in text:
            return text
        labels = {str(number): claim for claim, number in self._numbers.items()}
        return _MARK.sub(
            lambda mark: Holders.label_with_pods(self, labels[mark[1]]) if mark[1] in labels else mark[0], text
        )
