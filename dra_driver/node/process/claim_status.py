"""Keeps ``status.devices`` of the claims that are prepared here. Off unless asked for.

Of each device: uuid, placement and share, and whether it is healthy (condition Ready). Written by server-side apply
with a field manager of its own, own entries only; Kubernetes removes them when the claim is deallocated. Only on
Kubernetes 1.36 and newer: before, the right to write ``resourceclaims/status`` allows a node to write the allocation of
every claim (gate DRAResourceClaimGranularStatusAuthorization, docs/health.md).

One thread, apart from the prepares. What was written is noted in a file, so that a restart writes nothing again.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from dra_driver.core.errors import (
    ApiUnreachableError,
    ConflictError,
    DraError,
    InvalidObjectError,
    KubernetesApiError,
    NotFoundError,
    ServerBusyError,
)
from dra_driver.core.files import replace_file
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.telemetry import metrics
from dra_driver.kube import paths
from dra_driver.kube.discovery import ServerVersion
from dra_driver.node.process.health_report import DeviceReport, DeviceState

log = logging.getLogger(__name__)

THREAD_NAME: Final = "claim-status"
MANAGER: Final = "gpu.dra-driver.io-claim-status"
LEAST_MINOR: Final = 36
RETRY_S: Final = 30.0
PAUSE_S: Final = 1.0
MAX_FILE_BYTES: Final = 4 * 2**20
EVENT: Final = "ClaimStatusNotWritten"

Warn = Callable[[str], None]


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """One device of a prepared claim. ``data`` is what is shown of it."""

    pool: str
    device: str
    share_id: str | None
    data: Mapping[str, Any]


class ClaimFacts(Struct, frozen=True, kw_only=True):
    """A prepared claim. ``since`` is when it was prepared, in seconds of the Unix epoch."""

    ref: ClaimRef
    since: float
    devices: tuple[DeviceFacts, ...]


class Applier(Protocol):
    """The part of ``kube.rest.RestClient`` that is needed here."""

    def apply(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]: ...


def status_of(
    claim: ClaimFacts, driver: str, health: Mapping[tuple[str, str], DeviceReport], now: float
) -> dict[str, Any]:
    """The object to apply. Pure. A device without a report counts as healthy: it was prepared.

    Two requests of a claim may have the same device (admin access). It is one entry: the API server refuses two.
    """
    devices = {(device.pool, device.device, device.share_id): device for device in claim.devices}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.ref.name, "namespace": claim.ref.namespace, "uid": claim.ref.uid},
        "status": {"devices": [_entry(device, claim, driver, health, now) for device in devices.values()]},
    }


def digest(body: Mapping[str, Any]) -> str:
    """The same text for the same state, whenever it began. Pure."""
    text = json.dumps(body, sort_keys=True, default=str)
    for device in body["status"]["devices"]:
        text = text.replace(device["conditions"][0]["lastTransitionTime"], "")
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _entry(
    device: DeviceFacts,
    claim: ClaimFacts,
    driver: str,
    health: Mapping[tuple[str, str], DeviceReport],
    now: float,
) -> dict[str, Any]:
    report = health.get((device.pool, device.device))
    is_sick = report is not None and report.state is DeviceState.UNHEALTHY
    condition = {
        "type": "Ready",
        "status": "False" if is_sick else "True",
        "reason": "Unhealthy" if is_sick else "Prepared",
        "message": report.message if report is not None and is_sick else "",
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now if is_sick else claim.since)),
    }
    entry = {"driver": driver, "pool": device.pool, "device": device.device}
    if device.share_id is not None:
        entry["shareID"] = device.share_id
    return {**entry, "conditions": [condition], "data": dict(device.data)}


class ClaimStatus:
    """``start`` and ``stop`` once, by one owner; ``wake`` and ``show`` from any thread.

    ``claims`` lists the prepared claims and may raise StorageError. ``warn`` records an event on the Node. With
    ``waits_for_health``, nothing is written before the first ``show``: a process that has just started does not know
    which devices are sick, and would say for a moment that all are well.
    """

    def __init__(
        self,
        rest: Applier,
        driver: str,
        path: Path,
        *,
        version: Callable[[], ServerVersion],
        claims: Callable[[], Iterable[ClaimFacts]],
        warn: Warn,
        waits_for_health: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._rest, self._driver, self._path = rest, driver, path
        self._version, self._claims, self._warn = version, claims, warn
        self._clock, self._now = clock, now
        self._written: dict[ClaimUid, str] = _read(path)
        self._health: Mapping[tuple[str, str], DeviceReport] | None = None if waits_for_health else {}
        self._problem: str | None = None
        self._refused = False
        self._checked = False
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    @property
    def problem(self) -> str | None:
        """Why claims have no status from here, as a sentence; None while they have."""
        return self._problem

    def start(self) -> None:
        self._woken.set()
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread; a request in progress may end later. Idempotent."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def wake(self) -> None:
        """Claims came or left. Returns at once."""
        if not self._woken.is_set():
            self._woken.set()

    def show(self, health: Iterable[DeviceReport]) -> None:
        """Devices have this health now. Returns at once."""
        found: dict[tuple[str, str], DeviceReport] = {(each.pool, each.device): each for each in health}
        if found != self._health:
            self._health = found
            self._woken.set()

    def step(self) -> float | None:
        """Write what is not written yet; returns the seconds until a retry, None when nothing is left to do."""
        self._woken.clear()
        try:
            if not self._may_write():
                return None if self._refused else RETRY_S
            left = self._write_all(self._health) if self._health is not None else None
        except DraError as error:
            self._fail(str(error))
            return RETRY_S
        if left is None:
            self._problem = None
        return left

    def _may_write(self) -> bool:
        if not self._checked and not self._refused:
            found = self._version()
            if (found.major, found.minor) < (1, LEAST_MINOR):
                self._refused = True
                self._fail(
                    f"the status of claims is not written: the API server is {found}, expected Kubernetes "
                    f"1.{LEAST_MINOR} or newer, where a node may be allowed to write nothing else of a claim; unset "
                    "CLAIM_STATUS (--claim-status), and take the right to write resourceclaims/status away"
                )
            self._checked = not self._refused
        return self._checked

    def _write_all(self, health: Mapping[tuple[str, str], DeviceReport]) -> float | None:
        claims = {claim.ref.uid: claim for claim in self._claims()}
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

    def _apply(self, ref: ClaimRef, body: Mapping[str, Any]) -> bool:
        """Whether nothing is left to do for this claim."""
        try:
            stored = self._rest.apply(f"{paths.resource_claim(ref.namespace, ref.name)}/status", body, MANAGER)
        except (NotFoundError, ConflictError):
            return True  # it is gone, or another one has its name
        except InvalidObjectError as error:  # not allocated any more, as after a forced deletion: the others go on
            log.info("the status of a claim is refused", extra={"claim": str(ref), "reason": error})
            return True
        except (ApiUnreachableError, ServerBusyError) as error:
            log.info("the status of a claim is written later", extra={"claim": str(ref), "reason": error})
            return False
        except KubernetesApiError as error:
            self._fail(f"the status of claims is not written: {error}; see docs/health.md for the rights it takes")
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
        if problem != self._problem:
            log.warning("claims have no status from this node", extra={"reason": problem})
            self._warn(problem)
        self._problem = problem

    def _save(self) -> None:
        try:
            replace_file(self._path, json.dumps({"version": 1, "claims": self._written}).encode())
        except OSError as error:
            log.warning("it cannot be noted which claims have a status", extra={"reason": error})

    def _run(self) -> None:
        wait_s: float | None = None
        while not self._stopping.is_set():
            self._woken.wait(wait_s)
            if self._stopping.wait(PAUSE_S):  # what comes at the same time is written together
                return
            try:
                wait_s = self.step()
            except Exception:  # thread boundary: the next step may succeed
                log.exception("writing the status of claims failed with an internal error")
                metrics.internal_error("claim-status")
                wait_s = RETRY_S


def _read(path: Path) -> dict[ClaimUid, str]:
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(MAX_FILE_BYTES))
        found = document["claims"]
        return {ClaimUid(uid): text for uid, text in found.items() if isinstance(text, str)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.warning("the status of all claims is written again", extra={"file": path, "reason": error})
        return {}
