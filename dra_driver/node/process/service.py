"""The DRA service as the kubelet calls it, versions v1 and v1beta1.

Each claim of a call gets an answer: a failure is an entry with a message, so that the pod's event names the claim. Wire
rules: Kubernetes staging/src/k8s.io/kubelet/pkg/apis/dra, pkg/kubelet/cm/dra/manager.go. The kubelet cancels a call
after 45 s, so a second call for the same claim can overlap the first. A prepare can wait for an API server, a driver or
a device, so prepares have separate threads and never delay an unprepare.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Final, Protocol, TypeVar

import grpc

from dra_driver.core._pb.dra_v1 import api_pb2 as v1
from dra_driver.core._pb.dra_v1beta1 import api_pb2 as v1beta1
from dra_driver.core.errors import (
    ClaimError,
    ConfigurationError,
    DraError,
    HardwareError,
    KubernetesApiError,
    RetryableError,
)
from dra_driver.core.model.claim import ClaimRef, PreparedDevice
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.telemetry import metrics
from dra_driver.core.telemetry.logs import Deferred
from dra_driver.node.process.server import generic_handler

log = logging.getLogger(__name__)

# Prepares that run at the same time, each with the claims of one pod locked (see ``endpoints.py``).
PREPARE_THREADS = 8
# A pod lists at most a few dozen claims; more is not a kubelet's call.
MAX_CLAIMS = 256
# The error becomes an event of the pod, of which the API server keeps 1024 characters; a log keeps more.
MAX_ERROR_LENGTH = 2000
# The UID becomes part of file names. The API server generates RFC 4122 UIDs, which all match.
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

Prepared = tuple[PreparedDevice, ...]
# The types of v1 also stand for v1beta1, whose messages have the same fields except share ids.
Request = v1.NodePrepareResourcesRequest | v1.NodeUnprepareResourcesRequest
Answers = dict[str, Prepared | DraError | None]
Work = Callable[[Sequence[ClaimRef]], Mapping[ClaimUid, Prepared | DraError | None]]
_Response = TypeVar("_Response")


class ClaimPreparer(Protocol):
    """Returns one answer for every claim. Several threads call both methods. ``within_s`` is the time until the
    kubelet's deadline, None without one."""

    def prepare(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> Mapping[ClaimUid, Prepared | DraError]: ...
    def unprepare(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> Mapping[ClaimUid, DraError | None]: ...


def prepare_threads() -> ThreadPoolExecutor:
    """Threads for ``handlers``, started when first needed; the caller shuts the pool down."""
    return ThreadPoolExecutor(PREPARE_THREADS, thread_name_prefix="prepare")


def handlers(preparer: ClaimPreparer, driver: str, prepares: ThreadPoolExecutor) -> list[grpc.GenericRpcHandler]:
    """The gRPC handlers of both versions; ``prepares`` are the threads of both versions' prepares."""
    services = [DraService(preparer, driver, messages, prepares) for messages in (v1, v1beta1)]
    return [service.handler() for service in services]


class DraService:
    """One version of the service. ``messages`` is its generated module; v1beta1 has no share ids. Thread-safe."""

    def __init__(
        self, preparer: ClaimPreparer, driver: str, messages: ModuleType, prepares: ThreadPoolExecutor
    ) -> None:
        self._preparer, self._prepares, self._messages = preparer, prepares, messages
        self._timers = {operation: metrics.CallTimer(driver, operation) for operation in metrics.OPERATIONS}
        self._has_share_ids = "share_id" in messages.Device.DESCRIPTOR.fields_by_name

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {"NodePrepareResources": self.prepare, "NodeUnprepareResources": self.unprepare}
        pools = {"NodePrepareResources": self._prepares}
        return generic_handler(self._messages.DESCRIPTOR.services_by_name["DRAPlugin"], methods, pools)

    def prepare(self, request: Request, context: grpc.ServicerContext) -> v1.NodePrepareResourcesResponse:
        _check_size(request, context)
        if not context.is_active():
            # The call waited for a thread until the kubelet canceled it; serve only calls that still have a caller.
            facts = {"claims": len(request.claims)}
            log.warning("NodePrepareResources call canceled or timed out before processing", extra=facts)
            empty: v1.NodePrepareResourcesResponse = self._messages.NodePrepareResourcesResponse()
            return empty
        return self._timed("prepare", context, lambda: self._prepare(request, context.time_remaining()))

    def unprepare(self, request: Request, context: grpc.ServicerContext) -> v1.NodeUnprepareResourcesResponse:
        _check_size(request, context)
        return self._timed("unprepare", context, lambda: self._unprepare(request, context.time_remaining()))

    def _timed(
        self,
        operation: metrics.Operation,
        context: grpc.ServicerContext,
        work: Callable[[], tuple[_Response, list[metrics.Result]]],
    ) -> _Response:
        """The answer of ``work``. Its log lines are written when the kubelet has the answer."""
        timer = self._timers[operation]
        timer.started()
        begin, lines = time.monotonic(), Deferred()
        results: list[metrics.Result] = ["internal"]
        try:
            with lines:
                response, results = work()
        finally:
            timer.finished(time.monotonic() - begin, results)
            if not context.add_callback(lines.write):  # the call has ended already
                lines.write()
        return response

    def _prepare(
        self, request: Request, within_s: float | None
    ) -> tuple[v1.NodePrepareResourcesResponse, list[metrics.Result]]:
        refs, answers = _split(request)
        answers |= _guarded("prepare", refs, partial(self._preparer.prepare, within_s=within_s))
        response: v1.NodePrepareResourcesResponse = self._messages.NodePrepareResourcesResponse()
        for uid, answer in answers.items():
            entry = response.claims[uid]
            if isinstance(answer, DraError):
                entry.error = _text(answer)
            else:
                entry.devices.extend(self._device(device) for device in answer or ())
        return response, _outcomes("prepare", refs, answers)

    def _unprepare(
        self, request: Request, within_s: float | None
    ) -> tuple[v1.NodeUnprepareResourcesResponse, list[metrics.Result]]:
        refs, answers = _split(request)
        answers |= _guarded("unprepare", refs, partial(self._preparer.unprepare, within_s=within_s))
        response: v1.NodeUnprepareResourcesResponse = self._messages.NodeUnprepareResourcesResponse()
        for uid, answer in answers.items():
            response.claims[uid].error = _text(answer) if isinstance(answer, DraError) else ""
        return response, _outcomes("unprepare", refs, answers)

    def _device(self, device: PreparedDevice) -> v1.Device:
        message: v1.Device = self._messages.Device(
            request_names=device.request_names,
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_device_ids,
        )
        if device.share_id is not None and self._has_share_ids:
            message.share_id = device.share_id
        return message


class _InternalError(DraError):
    """A defect of this driver, as a message for the kubelet; the log has the traceback."""


def _check_size(request: Request, context: grpc.ServicerContext) -> None:
    if len(request.claims) > MAX_CLAIMS:
        message = f"the call names {len(request.claims)} claims, expected at most {MAX_CLAIMS}"
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)


def _split(request: Request) -> tuple[list[ClaimRef], Answers]:
    refs: dict[str, ClaimRef] = {}
    errors: Answers = {}
    for claim in request.claims:
        problem = _problem(claim)
        if problem is None:
            refs[claim.uid] = ClaimRef(namespace=claim.namespace, name=claim.name, uid=ClaimUid(claim.uid))
        else:
            errors[claim.uid] = ClaimError(f"the kubelet's call is malformed: {problem}; nothing was done")
    return list(refs.values()), errors


def _problem(claim: v1.Claim) -> str | None:
    if not _UID.fullmatch(claim.uid):
        return f"claim UID {claim.uid[:80]!r} is not a UID"
    for what, value in (("namespace", claim.namespace), ("name", claim.name)):
        if not _NAME.fullmatch(value):
            return f"{what} {value[:80]!r} of claim {claim.uid} is not a Kubernetes name"
    return None


def _guarded(operation: metrics.Operation, refs: list[ClaimRef], work: Work) -> Answers:
    """The preparer's answers, with an error for each claim that it omitted or failed on unexpectedly."""
    if not refs:
        return {}
    reason = "returned no answer"
    answers: Mapping[ClaimUid, Prepared | DraError | None] = {}
    try:
        answers = work(refs)
    except DraError as error:
        return {ref.uid: error for ref in refs}
    except Exception as error:  # RPC boundary: the kubelet gets a message, the log the traceback
        log.exception("unexpected failure", extra={"operation": operation, "claims": [str(ref) for ref in refs]})
        reason = f"failed unexpectedly ({type(error).__name__})"
    complete: Answers = {}
    for ref in refs:
        if ref.uid not in answers:
            metrics.internal_error("grpc")
            message = f"cannot {operation} claim {ref}: the driver {reason}; see its log; the kubelet repeats the call"
        complete[ref.uid] = answers[ref.uid] if ref.uid in answers else _InternalError(message)
    return complete


def _outcomes(operation: metrics.Operation, refs: list[ClaimRef], answers: Answers) -> list[metrics.Result]:
    """One metric label per claim. Logs failures; the preparer has logged successes."""
    names = {ref.uid: str(ref) for ref in refs}
    for uid, answer in answers.items():
        if isinstance(answer, DraError):
            facts = {"claim": names.get(ClaimUid(uid), uid[:80]), "result": result_of(answer), "reason": _text(answer)}
            log.warning(f"claim not {operation}d", extra=facts)
    return [result_of(answer if isinstance(answer, DraError) else None) for answer in answers.values()]


_RESULTS: Final[tuple[tuple[type[DraError], metrics.Result], ...]] = (
    (ConfigurationError, "configuration"),
    (ClaimError, "claim"),
    (HardwareError, "hardware"),
    (RetryableError, "retryable"),
    (KubernetesApiError, "kubernetes-api"),
)


def result_of(error: DraError | None) -> metrics.Result:
    """The ``result`` label for a claim's outcome: its branch of the error tree."""
    if error is None:
        return "ok"
    return next((result for branch, result in _RESULTS if isinstance(error, branch)), "internal")


def _text(error: DraError) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_ERROR_LENGTH else text[: MAX_ERROR_LENGTH - 1] + "…"
