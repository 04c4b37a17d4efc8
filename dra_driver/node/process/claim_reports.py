"""Report devices on their claims: health events on claims and pods, and ``status.devices``. Both are opt-in."""

import hashlib
import json
import logging
import queue
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeGuard

from msgspec import to_builtins

from dra_driver.config.settings import NodeSettings
from dra_driver.core import errors
from dra_driver.core.files import read_plain, replace_file
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.telemetry import metrics
from dra_driver.core.time import rfc3339
from dra_driver.core.worker import Worker
from dra_driver.kube import paths
from dra_driver.kube.discovery import ServerVersion, server_version
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.kube.objects.resource import AllocatedDeviceStatus, Condition
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import AssignedDevice, Entry, Journal
from dra_driver.node.process.health_conditions import Notice
from dra_driver.node.process.health_report import DeviceReport, DeviceState, devices_of, is_about
from dra_driver.node.process.node_events import COMPONENT, Tell
from dra_driver.node.process.usage_report import ClaimNotice

log = logging.getLogger(__name__)

MANAGER: Final = "gpu.dra-driver.io-claim-status"
LEAST_MINOR: Final = 36
RETRY_S: Final = 30.0
PAUSE_S: Final = 1.0
MAX_FILE_BYTES: Final = 4 * 2**20
EVENT: Final = "ClaimStatusNotWritten"
FILE: Final = "claim-status.json"
MAX_NOTICES: Final = 64
MAX_CLAIMS: Final = 32
"""Maximum number of claims of one device that get an event about one condition; a shared GPU can have more."""
MAX_PODS: Final = 16
"""Maximum number of pods of one claim that get it. Kubernetes allows 256 (resource/v1 types.go,
ResourceClaimReservedForMaxSize)."""
MAX_NAME, MAX_UID = 253, 128
RIGHTS: Final = "claimEvents.enabled of the chart"
TERMINATING: Final = "because it is being terminated"
"""In the 403 for a namespace that is being deleted (kubernetes/kubernetes plugin/pkg/admission/namespace/lifecycle)."""
_SINCE: Final = re.compile(r'"lastTransitionTime": "[^"]*"')


def status_of(
    claim: Entry, driver: str, health: Mapping[tuple[str, str], DeviceReport], now: float
) -> dict[str, object]:
    """The object to apply. A device without a report counts as healthy: it was prepared. Two requests for the same
    device (admin access) are one entry: the API server refuses two."""
    devices = {(device.pool, device.device, device.share_id): device for device in claim.devices}
    found = []
    for device in devices.values():
        report = health.get((device.pool, device.device))
        sick = report if report is not None and report.state is DeviceState.UNHEALTHY else None
        condition = Condition(
            type="Ready",
            status="False" if sick else "True",
            reason="Unhealthy" if sick else "Prepared",
            message=sick.message if sick else "",
            last_transition_time=rfc3339(now if sick else claim.changed_at),
        )
        found.append(
            AllocatedDeviceStatus(
                driver=driver,
                pool=device.pool,
                device=device.device,
                share_id=device.share_id or "",
                conditions=(condition,),
                data=data_of(device),
            )
        )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.ref.name, "namespace": claim.ref.namespace, "uid": claim.ref.uid},
        "status": {"devices": to_builtins(found)},
    }


def digest(body: Mapping[str, object]) -> str:
    """Return a digest that ignores when a condition began."""
    text = _SINCE.sub('"lastTransitionTime": ""', json.dumps(body, sort_keys=True))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ClaimStatus:
    """Writes ``status.devices`` of the claims that are prepared here: uuid, placement, share and the condition Ready.

    Server-side apply with a separate field manager; Kubernetes removes the entries when the claim is deallocated.
    Requires Kubernetes 1.36: before, the permission to write ``resourceclaims/status`` lets a node write the allocation
    of every claim (gate DRAResourceClaimGranularStatusAuthorization, docs/health.md). The file ``path`` records what
    was written, so that a restart writes nothing again.

    ``worker`` runs it; wake it when claims were prepared or unprepared. ``show`` from any thread. ``claims`` returns
    the journal's entries and can raise StorageError. ``warn`` records an event on the Node. With ``waits_for_health``,
    nothing is written before the first ``show``: a new process would report unhealthy devices as ready.
    """

    def __init__(
        self,
        rest: RestClient,
        driver: str,
        path: Path,
        *,
        version: Callable[[], ServerVersion],
        claims: Callable[[], Iterable[Entry]],
        warn: Callable[[str], None],
        waits_for_health: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._rest, self._driver, self._path = rest, driver, path
        self._version, self._claims, self._warn = version, claims, warn
        self._clock, self._now = clock, now
        self._written: dict[ClaimUid, str] = _read(path)
        self._health: Mapping[tuple[str, str], DeviceReport] | None = None if waits_for_health else {}
        self.problem: str | None = None
        """The reason why this node writes no status of claims; None while it does."""
        self._refused = False
        self._checked = False
        self.worker = Worker(
            "claim-status",
            self.step,
            on_error=partial(metrics.internal_error, "claim-status"),
            after_error_s=RETRY_S,
            settle_s=PAUSE_S,  # changes at the same time are written together
        )

    def show(self, health: Iterable[DeviceReport]) -> None:
        """Take the health of the devices. Returns immediately."""
        found: dict[tuple[str, str], DeviceReport] = {(each.pool, each.device): each for each in health}
        if found != self._health:
            self._health = found
            self.worker.wake()

    def step(self) -> float | None:
        """Write pending changes; return the seconds until a retry, None if nothing is left."""
        try:
            if not self._may_write():
                return None if self._refused else RETRY_S
            left = self._write_all(self._health) if self._health is not None else None
        except errors.DraError as error:
            self._fail(str(error))
            return RETRY_S
        if left is None:
            self.problem = None
        return left

    def _may_write(self) -> bool:
        if not self._checked and not self._refused:
            found = self._version()
            if (found.major, found.minor) < (1, LEAST_MINOR):
                self._refused = True
                self._fail(
                    f"the status of claims is not written: the API server is {found}, expected Kubernetes "
                    f"1.{LEAST_MINOR} or newer, where a node's permission can be limited to this status; unset "
                    "CLAIM_STATUS (--claim-status), and remove the permission to write resourceclaims/status"
                )
            self._checked = not self._refused
        return self._checked

    def _write_all(self, health: Mapping[tuple[str, str], DeviceReport]) -> float | None:
        claims = {claim.ref.uid: claim for claim in self._claims() if claim.state == "prepared"}
        before = dict(self._written)
        self._written = {uid: text for uid, text in before.items() if uid in claims}
        left = None
        try:
            for uid, claim in claims.items():
                body = status_of(claim, self._driver, health, self._now())
                if self._written.get(uid) != (wanted := digest(body)):
                    if not self._apply(claim.ref, body):
                        left = RETRY_S
                        break
                    self._written[uid] = wanted
        finally:
            if self._written != before:
                self._save()
        return left

    def _apply(self, ref: ClaimRef, body: Mapping[str, object]) -> bool:
        """Return whether the claim needs no retry."""
        try:
            stored = self._rest.apply(f"{paths.resource_claim(ref.namespace, ref.name)}/status", body, MANAGER)
        except (errors.NotFoundError, errors.ConflictError):
            return True  # the claim is deleted, or another one has its name
        except errors.InvalidObjectError as error:  # no longer allocated, as after a forced deletion; continue
            log.info("API server refused the status of a claim", extra={"claim": str(ref), "reason": error})
            return True
        except (errors.ApiUnreachableError, errors.ServerBusyError) as error:
            log.info("cannot write the status of a claim; will retry", extra={"claim": str(ref), "reason": error})
            return False
        except errors.KubernetesApiError as error:
            self._fail(f"the status of claims is not written: {error}; see docs/health.md for the required permissions")
            return False
        status = stored.get("status")
        if not (isinstance(status, dict) and status.get("devices")):
            self._refused, self._checked = True, False
            self._fail(
                "the status of claims is not written: the API server drops it (gate DRAResourceClaimDeviceStatus)"
            )
            return False
        return True

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("cannot write the status of claims", extra={"reason": problem})
            self._warn(problem)
        self.problem = problem

    def _save(self) -> None:
        try:
            replace_file(self._path, json.dumps({"version": 1, "claims": self._written}).encode())
        except OSError as error:
            log.warning("cannot save which claims have a status", extra={"reason": error})


def _read(path: Path) -> dict[ClaimUid, str]:
    try:
        found = json.loads(read_plain(path, MAX_FILE_BYTES))["claims"]
        return {ClaimUid(uid): text for uid, text in found.items() if isinstance(text, str)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.warning(
            "cannot read claim status file; writing the status of all claims again",
            extra={"file": path, "reason": error},
        )
        return {}


def open_claim_status(
    settings: NodeSettings, folder: Path, rest: RestClient, journal: Journal, tell: Tell
) -> ClaimStatus | None:
    if not settings.claim_status:
        return None
    return ClaimStatus(
        rest,
        settings.driver_name,
        folder / FILE,
        version=partial(server_version, rest),
        claims=journal.entries,
        warn=partial(tell, "Warning", EVENT),
        waits_for_health=settings.health,
    )


def data_of(device: AssignedDevice) -> dict[str, object]:
    data: dict[str, object] = {"uuid": device.gpu_uuid}
    partition, sharing = device.partition, device.sharing
    if partition is not None:
        live = partition.live
        data = {"uuid": live.uuid if live is not None else None, "parentUUID": device.gpu_uuid}
        place = {"profile": partition.profile_name, "start": partition.id.start, "size": partition.size}
        data["placement"] = place
    if sharing is not None and sharing.share is not None:
        asked = {"strategy": sharing.strategy.value, "computePercent": sharing.share.percent}
        data["share"] = asked | ({"memoryBytes": sharing.share.memory} if sharing.share.memory is not None else {})
    return {key: value for key, value in data.items() if value is not None}


def reported_objects(ref: ClaimRef, document: Mapping[str, object]) -> list[ObjectReference]:
    """The claim and its pods; empty if another claim now has its name."""
    metadata, status = document.get("metadata"), document.get("status")
    if not isinstance(metadata, dict) or metadata.get("uid") != ref.uid:
        return []
    claim = ObjectReference(
        api_version="resource.k8s.io/v1", kind="ResourceClaim", namespace=ref.namespace, name=ref.name, uid=ref.uid
    )
    reserved = status.get("reservedFor") if isinstance(status, dict) else None
    users = [each for each in reserved if _is_pod(each)] if isinstance(reserved, list) else []
    pods = (
        ObjectReference(api_version="v1", kind="Pod", namespace=ref.namespace, name=each["name"], uid=each["uid"])
        for each in users[:MAX_PODS]
    )
    return [claim, *pods]


class ClaimEvents:
    """Records events on claims and their pods when a device becomes unhealthy or recovers, and about their usage.

    `ConditionEvents` decides when; the journal names the claims, ``status.reservedFor`` their pods. A separate recorder
    keeps many claims from displacing the Node's events; failed events are dropped. ``worker`` runs it; ``tell`` from
    any thread. ``claims`` returns the journal's entries and can raise StorageError.
    """

    def __init__(self, rest: RestClient, recorder: EventRecorder, *, claims: Callable[[], Iterable[Entry]]) -> None:
        self._rest, self._recorder, self._claims = rest, recorder, claims
        self._notices: queue.Queue[Notice | ClaimNotice] = queue.Queue(MAX_NOTICES)
        self.worker = Worker("claim-events", self.step, on_error=partial(metrics.internal_error, "claim-events"))

    def tell(self, notice: Notice | ClaimNotice) -> None:
        """Queue a notice about a condition or a claim. Returns immediately."""
        try:
            self._notices.put_nowait(notice)
            self.worker.wake()
        except queue.Full:
            log.warning("claim event dropped: event queue is full", extra={"condition": notice.message})

    def step(self) -> float | None:
        """Write the events of one notice; return 0.0, or None if none waits."""
        try:
            notice = self._notices.get_nowait()
        except queue.Empty:
            return None
        self._write(notice)
        return 0.0

    def _write(self, notice: Notice | ClaimNotice) -> None:
        try:
            if isinstance(notice, ClaimNotice):
                held = [notice.claim]
            else:
                held = [claim.ref for claim in self._claims() if _has(claim, notice)]
            if len(held) > MAX_CLAIMS:
                log.info("no event for some claims of a device: too many", extra={"left_out": len(held) - MAX_CLAIMS})
            for ref in held[:MAX_CLAIMS]:
                if self.worker.is_stopping:
                    return
                self._tell_claim(ref, notice)
        except (errors.StorageError, errors.ApiUnreachableError) as error:
            log.warning("cannot record claim events", extra={"condition": notice.message, "reason": error})

    def _tell_claim(self, ref: ClaimRef, notice: Notice | ClaimNotice) -> None:
        try:
            document = self._rest.get(paths.resource_claim(ref.namespace, ref.name))
        except errors.NotFoundError:
            return
        except errors.ApiUnreachableError:
            raise  # the next claims would fail too
        except errors.KubernetesApiError as error:
            log.warning("cannot record an event on a claim", extra={"claim": str(ref), "reason": error})
            return
        for about in reported_objects(ref, document):
            self._recorder.record(about, notice.kind, notice.reason, notice.message)
        self._recorder.flush()


class Refusals:
    """Log events that the API server refused; a missing permission once. For one thread."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, reason: str, error: errors.KubernetesApiError) -> None:
        if isinstance(error, errors.NotFoundError) or TERMINATING in str(error):
            log.debug("no event: its namespace is being deleted", extra={"reason": reason, "error": str(error)})
        elif not isinstance(error, errors.ForbiddenError):
            log.warning("event on a claim not written; dropped", extra={"reason": reason, "error": str(error)})
        elif not self._said:
            self._said = True
            log.warning(
                f"events on claims and pods are not written: permission is missing, see {RIGHTS}; "
                "grant it, or unset CLAIM_EVENTS (--claim-events). This is logged once",
                extra={"error": str(error)},
            )


def _has(claim: Entry, notice: Notice) -> bool:
    devices = devices_of(claim) if claim.state == "prepared" else ()
    return any(is_about(notice.condition, device, notice.gpu) for device in devices)


def _is_pod(user: object) -> TypeGuard[dict[str, str]]:
    """Return whether an entry of ``reservedFor`` names a pod: its API group is absent or empty."""
    if not isinstance(user, dict) or user.get("resource") != "pods" or user.get("apiGroup"):
        return False
    name, uid = user.get("name"), user.get("uid")
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME and isinstance(uid, str) and 0 < len(uid) <= MAX_UID


def open_claim_events(settings: NodeSettings, rest: RestClient, journal: Journal) -> ClaimEvents | None:
    if not (settings.claim_events and (settings.health or settings.usage)):
        return None
    recorder = EventRecorder(rest, COMPONENT, settings.node_name, refused=Refusals())
    return ClaimEvents(rest, recorder, claims=journal.entries)
