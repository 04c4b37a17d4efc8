"""Events on claims, and on the pods that use them, when their device becomes unhealthy or recovers. Opt-in.

The same sentences as the Node's events, and as rarely: `ConditionEvents` decides when. Which claims have the device is
what the journal says; the pods are those in ``status.reservedFor`` of the claim, which is read once for each event.

One thread, apart from the looks at the hardware, with a recorder of its own, so that many claims never push out events
on the Node. Best effort, as events are: what cannot be written is dropped.
"""

import logging
import queue
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeGuard

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ApiUnreachableError, ForbiddenError, KubernetesApiError, NotFoundError, StorageError
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.kube import paths
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import Entry, Journal
from dra_driver.node.process.health_events import Notice
from dra_driver.node.process.health_report import devices_of, is_about
from dra_driver.node.process.node_events import COMPONENT
from dra_driver.node.process.usage_report import ClaimNotice

log = logging.getLogger(__name__)

THREAD_NAME: Final = "claim-events"
MAX_NOTICES: Final = 64
MAX_CLAIMS: Final = 32
"""Of one device that are told of one condition; a shared GPU can have more."""
MAX_PODS: Final = 16
"""Of one claim. Kubernetes allows 256 (resource/v1 types.go, ResourceClaimReservedForMaxSize)."""
MAX_NAME, MAX_UID = 253, 128
RIGHTS: Final = "claimEvents.enabled of the chart"
TERMINATING: Final = "because it is being terminated"
"""In the 403 for a namespace that is being deleted (kubernetes/kubernetes plugin/pkg/admission/namespace/lifecycle)."""


def told_objects(ref: ClaimRef, document: Mapping[str, object]) -> list[ObjectReference]:
    """The claim and the pods that it is reserved for; nothing when another claim has its name. Pure."""
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
    """``worker`` runs it; ``tell`` from any thread.

    ``claims`` are the journal's entries and may raise StorageError. ``recorder`` belongs to this object's thread.
    """

    def __init__(self, rest: RestClient, recorder: EventRecorder, *, claims: Callable[[], Iterable[Entry]]) -> None:
        self._rest, self._recorder, self._claims = rest, recorder, claims
        self._notices: queue.Queue[Notice | ClaimNotice] = queue.Queue(MAX_NOTICES)
        self.worker = Worker(THREAD_NAME, self.step, on_error=partial(metrics.internal_error, "claim-events"))

    def tell(self, notice: Notice | ClaimNotice) -> None:
        """A condition began or ended, or there is news of one claim. Returns at once."""
        try:
            self._notices.put_nowait(notice)
            self.worker.wake()
        except queue.Full:
            log.warning("claims are not told of a condition: too many wait", extra={"condition": notice.message})

    def step(self) -> float | None:
        """Write the events of one notice; return 0.0, or None when none waits. The thread calls it."""
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
                log.info("some claims are not told of a condition", extra={"left_out": len(held) - MAX_CLAIMS})
            for ref in held[:MAX_CLAIMS]:
                if self.worker.is_stopping:
                    return
                self._tell_claim(ref, notice)
        except (StorageError, ApiUnreachableError) as error:
            log.warning("claims are not told of a condition", extra={"condition": notice.message, "reason": error})

    def _tell_claim(self, ref: ClaimRef, notice: Notice | ClaimNotice) -> None:
        try:
            document = self._rest.get(paths.resource_claim(ref.namespace, ref.name))
        except NotFoundError:
            return
        except ApiUnreachableError:
            raise  # the next claims would only wait as long
        except KubernetesApiError as error:
            log.warning("a claim is not told of a condition", extra={"claim": str(ref), "reason": error})
            return
        for about in told_objects(ref, document):
            self._recorder.record(about, notice.kind, notice.reason, notice.message)
        self._recorder.flush()


class Refusals:
    """Notes events that the API server did not take: a missing right once, with what gives it. For one thread."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, reason: str, error: KubernetesApiError) -> None:
        """The event with this reason was dropped for ``error``."""
        if isinstance(error, NotFoundError) or TERMINATING in str(error):
            log.debug("the namespace of an event is gone", extra={"reason": reason, "error": str(error)})
        elif not isinstance(error, ForbiddenError):
            log.warning("event on a claim not written; dropped", extra={"reason": reason, "error": str(error)})
        elif not self._said:
            self._said = True
            log.warning(
                f"events on claims and pods are not written: the right to is missing, see {RIGHTS}; "
                "apply it, or unset CLAIM_EVENTS (--claim-events). This is said once",
                extra={"error": str(error)},
            )


def _has(claim: Entry, notice: Notice) -> bool:
    """Whether a prepared claim has the device, also with admin access."""
    devices = devices_of(claim) if claim.state == "prepared" else ()
    return any(is_about(notice.condition, device, notice.gpu) for device in devices)


def _is_pod(user: object) -> TypeGuard[dict[str, str]]:
    """Whether an entry of ``reservedFor`` names a pod: the core API group is left out or empty."""
    if not isinstance(user, dict) or user.get("resource") != "pods" or user.get("apiGroup"):
        return False
    name, uid = user.get("name"), user.get("uid")
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME and isinstance(uid, str) and 0 < len(uid) <= MAX_UID


def open_claim_events(settings: NodeSettings, rest: RestClient, journal: Journal) -> ClaimEvents | None:
    """None unless the settings ask for it."""
    if not (settings.claim_events and (settings.health or settings.usage)):
        return None
    recorder = EventRecorder(rest, COMPONENT, settings.node_name, refused=Refusals())
    return ClaimEvents(rest, recorder, claims=journal.entries)
