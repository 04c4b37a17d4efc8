"""Read the findings of the usage exporter, validate them, and report them as events and in the GpuNode.

The exporter reads data of tenants' processes, so its file is untrusted. A claim is named only if this node has prepared
it; its grant comes from the journal, its action from the policy of its GPU. A forged file can at most report a claim of
this node whose policy evicts; the controller's eviction limit, PodDisruptionBudgets and the opt-out bound that.
"""

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.config.settings import NodeSettings
from dra_driver.config.usage_findings import FILE, MAX_BYTES, RENEW_S, decode
from dra_driver.config.usage_findings import FOLDER as FINDINGS
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.files import ChangedFile
from dra_driver.core.model import gpu_node
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.terms import Terms, terms_of
from dra_driver.core.model.usage_findings import IdleClaim, OverGrant, Unattributed, UsageFindings
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction, PodProtection, idle_after_min
from dra_driver.core.quantity import Quantity
from dra_driver.core.telemetry import metrics
from dra_driver.core.time import rfc3339
from dra_driver.node.claims import AssignedDevice, Entry, Journal
from dra_driver.node.process.node_events import Kind, Tell
from dra_driver.node.usage.assignments import FOLDER

log = logging.getLogger(__name__)

CHECKED_S: Final = 20.0
"""Seconds between renewals of ``checkedAt`` of the GpuNode while an eviction is requested."""
STALE_S: Final = 3 * RENEW_S
OVER_GRANT: Final = "GpuMemoryOverGrant"
UNATTRIBUTED: Final = "GpuUsedByOthers"
IDLE: Final = "GpuClaimIdle"
QUIET_S: Final = 600.0
_Key = TypeVar("_Key", bound=Hashable)
_Reported = TypeVar("_Reported")


class FindingsFile:
    """Reads ``findings.json`` of the usage exporter. Of one thread.

    The exporter renews the file (`config.usage_findings.RENEW_S`). Findings that are not renewed, or are damaged, count
    for `STALE_S`. A file that exists at the start has the age of its modification time, so that a restart does not
    renew it. ``folder`` is the directory ``usage`` of the driver's directory; ``wall_clock`` is that of files.
    """

    def __init__(
        self, folder: Path, *, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._clock, self._wall_clock = folder / FINDINGS / FILE, clock, wall_clock
        self._file = ChangedFile(self._path, MAX_BYTES)
        self._has_read = False
        self._renewed_s = clock()
        self._findings: UsageFindings | None = None
        self.problem: str | None = None

    def look(self) -> UsageFindings | None:
        """The findings in force; the same value while nothing changed, None if there are none."""
        try:
            content = self._file.read()
            if content is not None:
                self._take(content)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._fail(f"cannot read the usage exporter's findings {self._path}: {error.strerror}")
        if self._findings is not None and self._clock() - self._renewed_s > STALE_S:
            log.info("usage findings expired: the usage exporter does not renew them")
            self._findings = None
        return self._findings

    def _take(self, content: bytes) -> None:
        age_s = 0.0 if self._has_read else max(0.0, self._wall_clock() - self._file.modified)
        self._has_read = True
        try:
            self._findings = decode(content)
        except ConfigurationError as error:
            self._fail(f"the usage exporter's findings are damaged: {error}")
            return
        self.problem, self._renewed_s = None, self._clock() - age_s

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("cannot read findings of the usage exporter", extra={"reason": problem})
        self.problem = problem


class ClaimNotice(Struct, frozen=True, kw_only=True):
    claim: ClaimRef
    reason: str
    message: str
    kind: Kind = "Warning"


class UsageEvents:
    """Events and metrics of findings, each reported when it begins and at most every `QUIET_S`. Of one thread. ``tell``
    records an event on the Node; ``notify`` receives events about claims."""

    def __init__(
        self,
        tell: Tell,
        *,
        notify: Callable[[ClaimNotice], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell, self._notify, self._clock = tell, notify, clock
        self._reported: dict[tuple[str, ...], float] = {}

    def update(self, reported: gpu_node.ReportedUsage) -> None:
        metrics.usage_findings.labels("over-grant").set(len(reported.over_grant))
        metrics.usage_findings.labels("idle").set(len(reported.idle))
        metrics.usage_findings.labels("unattributed").set(len(reported.unattributed))
        now, found = self._clock(), dict(_messages(reported))
        for key, notice in found.items():
            if key in self._reported:
                continue
            self._reported[key] = now
            named = f"claim {notice.claim.namespace}/{notice.claim.name}: " if notice.claim.uid else ""
            self._tell("Warning", notice.reason, f"{named}{notice.message}")
            if self._notify is not None and notice.claim.uid:
                self._notify(notice)
        self._reported = {key: at for key, at in self._reported.items() if key in found or now - at < QUIET_S}


def _messages(reported: gpu_node.ReportedUsage) -> Iterator[tuple[tuple[str, ...], ClaimNotice]]:
    for over in reported.over_grant:
        claim = ClaimRef(namespace=over.namespace, name=over.claim, uid=ClaimUid(over.claim_uid))
        notice = ClaimNotice(claim=claim, reason=OVER_GRANT, message=_over_grant_text(over))
        yield (OVER_GRANT, over.claim_uid, over.gpu, over.action), notice
    for idle in reported.idle:
        claim = ClaimRef(namespace=idle.namespace, name=idle.claim, uid=ClaimUid(idle.claim_uid))
        yield (IDLE, idle.claim_uid), ClaimNotice(claim=claim, reason=IDLE, message=_idle_text(idle))
    for foreign in reported.unattributed:
        nothing = ClaimRef(namespace="", name="", uid=ClaimUid(""))
        notice = ClaimNotice(claim=nothing, reason=UNATTRIBUTED, message=_unattributed_text(foreign))
        yield (UNATTRIBUTED, foreign.gpu), notice


def _over_grant_text(found: gpu_node.ReportedOverGrant) -> str:
    processes = "1 process" if found.processes == 1 else f"{found.processes} processes"
    then = "Other claims on the GPU may run out of memory."
    if found.action is OverGrantAction.EVICT:
        then = f"Pod {found.pods[0].name} will be evicted in {found.grace_s} s unless usage drops."
    return (
        f"Claim uses {found.used} of {found.gpu} in {processes}; granted {found.granted}. {then} Request more memory "
        "in the claim, or reduce the program's memory use."
    )


def _idle_text(found: gpu_node.ReportedIdle) -> str:
    then = ""
    if found.action is IdleAction.RECLAIM:
        then = f" Its pods will be evicted after {found.after_min} more idle minutes."
    return f"Claim idle since {found.since}.{then} Delete pods that do not need the GPU."


def _unattributed_text(found: gpu_node.ReportedUnattributed) -> str:
    memory = f" with {found.memory}" if found.memory is not None else ""
    named = f" ({', '.join(found.commands)})" if found.commands else ""
    return (
        f"{found.gpu}: {found.processes} processes{named}{memory} use the GPU outside any claim since {found.since}. "
        "Claims on it may run out of memory. Check privileged pods, device plugins and host processes."
    )


class UsageReport:
    """For one thread. ``notify`` receives events about claims."""

    def __init__(
        self,
        settings: NodeSettings,
        journal: Journal,
        tell: Tell,
        *,
        notify: Callable[[ClaimNotice], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        folder = Path(settings.kubelet_plugins_dir) / settings.driver_name / FOLDER
        self._file, self._journal, self._clock, self._now = FindingsFile(folder, clock=clock), journal, clock, now
        self._events = UsageEvents(tell, notify=notify, clock=clock)
        self._checked_s, self._checked_at = 0.0, ""
        self.reported = gpu_node.NO_USAGE
        """The usage for the GpuNode; the same value while nothing changed."""

    @property
    def problem(self) -> str | None:
        return self._file.problem

    def look(self, snapshot: Snapshot, terms: Terms) -> None:
        """Take in the file. An unchanged file costs microseconds. Raises StorageError."""
        findings = self._file.look()
        if findings is None or findings.is_empty:
            self._take(gpu_node.NO_USAGE)
            return
        if self._clock() - self._checked_s >= CHECKED_S or not self._checked_at:
            self._checked_s, self._checked_at = self._clock(), rfc3339(self._now())
        self._take(validate_findings(findings, self._journal.entries(), snapshot, terms, self._checked_at))

    def _take(self, reported: gpu_node.ReportedUsage) -> None:
        if reported != self.reported:
            self.reported = reported
        self._events.update(reported)


def validate_findings(
    findings: UsageFindings, claims: Iterable[Entry], snapshot: Snapshot, terms: Terms, checked_at: str
) -> gpu_node.ReportedUsage:
    """The valid findings, each claim and GPU once, with ``checked_at`` if an eviction is requested."""
    prepared: dict[str, Entry] = {claim.ref.uid: claim for claim in claims if claim.state == "prepared"}
    over = _once(((each.claim_uid, each.device), _over_grant(each, prepared, terms)) for each in findings.over_grant)
    idle = _once((each.claim_uid, _idle(each, prepared, terms)) for each in findings.idle)
    foreign = _once((each.gpu_uuid, _unattributed(each, snapshot)) for each in findings.unattributed)
    reported = gpu_node.ReportedUsage(over_grant=over, idle=idle, unattributed=foreign)
    return replace(reported, checked_at=checked_at) if reported.asks else reported


def _over_grant(found: OverGrant, prepared: Mapping[str, Entry], terms: Terms) -> gpu_node.ReportedOverGrant | None:
    claim = _prepared(found.ref, prepared)
    shares = [each for each in _used(claim) if each.device == found.device]
    parts = [each.sharing.share for each in shares if each.sharing is not None]
    grants = [part.memory for part in parts if part is not None and part.memory is not None]
    if claim is None or not grants or len(grants) < len(shares):
        return None
    granted, rules = sum(grants), terms_of(terms, shares[0].gpu_uuid).usage
    pods = tuple(
        gpu_node.ReportedPod(name=pod.name, uid=pod.uid) for pod in found.pods if pod.namespace == claim.ref.namespace
    )
    if not pods or found.used_bytes <= granted + found.processes * rules.overhead_bytes:
        return None
    both = found.action is OverGrantAction.EVICT and rules.over_grant is OverGrantAction.EVICT
    return gpu_node.ReportedOverGrant(
        namespace=claim.ref.namespace,
        claim=claim.ref.name,
        claim_uid=claim.ref.uid,
        gpu=found.device,
        pods=pods[: gpu_node.MAX_TOLD_PODS],
        used=_quantity(found.used_bytes),
        granted=_quantity(granted),
        processes=found.processes,
        since=rfc3339(found.since),
        action=OverGrantAction.EVICT if both else OverGrantAction.REPORT,
        grace_s=rules.grace_s,
        pod_protection=rules.protection if both and rules.protection is PodProtection.IGNORE else None,
    )


def _idle(found: IdleClaim, prepared: Mapping[str, Entry], terms: Terms) -> gpu_node.ReportedIdle | None:
    claim = _prepared(found.ref, prepared)
    rules = [terms_of(terms, each.gpu_uuid).usage for each in _used(claim)]
    after_min = idle_after_min(rules)
    if claim is None or after_min is None:
        return None
    reclaims = all(each.idle is IdleAction.RECLAIM for each in rules)
    return gpu_node.ReportedIdle(
        namespace=claim.ref.namespace,
        claim=claim.ref.name,
        claim_uid=claim.ref.uid,
        since=rfc3339(found.since),
        after_min=after_min,
        action=IdleAction.RECLAIM if reclaims else IdleAction.REPORT,
    )


def _unattributed(found: Unattributed, snapshot: Snapshot) -> gpu_node.ReportedUnattributed | None:
    gpu = snapshot.gpu_by_uuid(GpuUuid(found.gpu_uuid))
    if gpu is None:
        return None
    return gpu_node.ReportedUnattributed(
        gpu=gpu.device_name,
        processes=found.processes,
        memory=None if found.bytes is None else _quantity(found.bytes),
        since=rfc3339(found.since),
        commands=found.commands,
    )


def _prepared(ref: ClaimRef, prepared: Mapping[str, Entry]) -> Entry | None:
    claim = prepared.get(ref.uid)
    return claim if claim is not None and claim.ref == ref else None


def _used(claim: Entry | None) -> list[AssignedDevice]:
    """The claim's devices, except devices with admin access."""
    return [each for each in claim.devices if not each.admin_access] if claim is not None else []


def _once(found: Iterable[tuple[_Key, _Reported | None]]) -> tuple[_Reported, ...]:
    """The first of each key, at most `MAX_REPORTED`."""
    kept: dict[_Key, _Reported] = {}
    for key, reported in found:
        if reported is not None and key not in kept and len(kept) < gpu_node.MAX_REPORTED:
            kept[key] = reported
    return tuple(kept.values())


def _quantity(count: int) -> str:
    return str(Quantity.from_bytes(count // 2**20 * 2**20))
