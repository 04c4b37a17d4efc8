"""Request a guarded operation of one GPU from its node process: free the GPU, wait for the result, undrain it."""

import secrets
from collections.abc import Callable
from typing import Final

from dra_driver.core.model.drain import DRAIN_ANNOTATION, DrainRequest
from dra_driver.core.model.gpu_operation import (
    DONE_EVENT,
    FAILED_EVENT,
    OPERATION_ANNOTATION,
    Operation,
    OperationRequest,
    requests_of,
    text_of,
)
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube.node_annotation import Annotations, change_annotation, node_metadata
from dra_driver.kubectl.drain.report import DrainReport, Say
from dra_driver.kubectl.drain.run import DrainFailedError, DrainOptions, DrainRun, check_rights, needed_rights, undrain
from dra_driver.kubectl.drain.view import DrainApi, DrainWait

OPERATION_S: Final = 300.0
"""Seconds that a request gets in any case, regardless of the timeout: two resets, and a new session after each."""


def operate(
    api: DrainApi, options: DrainOptions, report: DrainReport, patience: DrainWait, say: Say, *, operation: Operation
) -> None:
    """Free the only GPU of ``options`` and run the operation. Fill ``report``. Raises as `drain`; DrainFailedError with
    the node's reason when the operation failed."""
    node = options.node
    report.only = options.gpus
    run = DrainRun(api, options, report, patience, say)
    check_rights(api, needed_rights(node, reads_events=True))
    before = DrainRequest.of(node_metadata(api, node).annotations.get(DRAIN_ANNOTATION))
    if not run.mark():
        return
    gpu = GpuUuid(report.gpus[0])
    run.await_taint()
    run.await_free()
    request = OperationRequest(operation=operation, gpu=gpu, number=secrets.token_hex(4))
    change_annotation(api, node, OPERATION_ANNOTATION, _with(request))
    say(f"requested: {operation.phrase} of {gpu} (request {request.number})")
    result: dict[str, str] = {}

    def has_ended() -> bool:
        for reason in (DONE_EVENT, FAILED_EVENT):
            message = run.view.message(reason, f"(request {request.number})")
            if message is not None:
                result[reason] = message
        return bool(result)

    try:
        ended = patience.wait_for(has_ended, least_s=OPERATION_S)
    finally:  # the node process drops a waiting request, and finishes an operation that has begun
        change_annotation(api, node, OPERATION_ANNOTATION, _without(request))
    if not ended:
        raise DrainFailedError(
            f"node {node} has not reported the result of request {request.number}; the request was withdrawn. Check "
            "/readyz of its node process for the reason",
            reason="OperationUnconfirmed",
        )
    if DONE_EVENT in result:
        say(result[DONE_EVENT])
    if not before.covers(gpu):
        undrain(api, options, report, patience, say)
    if FAILED_EVENT in result:
        raise DrainFailedError(result[FAILED_EVENT], reason="OperationFailed")
    report.result = "done"


def _with(request: OperationRequest) -> Callable[[Annotations], str | None]:
    return lambda found: text_of([*requests_of(found.get(OPERATION_ANNOTATION))[0], request])


def _without(request: OperationRequest) -> Callable[[Annotations], str | None]:
    def decide(found: Annotations) -> str | None:
        return text_of(each for each in requests_of(found.get(OPERATION_ANNOTATION))[0] if each != request)

    return decide
