"""Reports problems with the node's ResourceSlices: each new problem once, in the log and as an event on the Node."""

import logging
from typing import Literal, Protocol

from dra_driver.core.text import listed
from dra_driver.kube.types import ObjectReference
from dra_driver.node.slices.reconcile import ReconcileResult
from dra_driver.node.slices.schedule import QUICK_EDITS

log = logging.getLogger(__name__)

SHOWN = 4  # of a list that may be long


class NodeEventRecorder(Protocol):
    """The part of ``kube.events.EventRecorder`` that reporting a problem needs."""

    def record(self, about: ObjectReference, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None: ...


def report_change(
    problem: str | None, before: str | None, node: str, node_uid: str, recorder: NodeEventRecorder | None
) -> None:
    """Log a change from ``before`` to ``problem``; also an event when a recorder and the node's UID are known."""
    if problem == before:
        return
    if problem is None:
        log.info("ResourceSlices are up to date again", extra={"node": node})
        return
    log.warning("ResourceSlices are not up to date", extra={"node": node, "problem": problem})
    warn("ResourceSliceProblem", problem, node, node_uid, recorder)


def warn(reason: str, message: str, node: str, node_uid: str, recorder: NodeEventRecorder | None) -> bool:
    """Record a Warning event on the Node; False without a recorder or the node's UID."""
    if recorder is None or not node_uid:
        return False
    about = ObjectReference(apiVersion="v1", kind="Node", name=node, uid=node_uid)
    recorder.record(about, "Warning", reason, message)
    return True


def problems_of(done: ReconcileResult, edits: int, driver: str, node: str) -> list[str]:
    """The problems that a pass found; ``edits`` is how often other clients changed the resource slices in the last
    minutes.
    """
    problems = []
    if done.foreign_pools:
        problems.append(
            f"second publisher: node {node} has ResourceSlices of driver {driver} in other pools "
            f"({', '.join(done.foreign_pools)}); stop the other driver, then delete its ResourceSlices"
        )
    if edits >= QUICK_EDITS:
        problems.append(
            f"second publisher: another client keeps changing the ResourceSlices of driver {driver} on node {node} "
            f"({edits} times in five minutes); find it and stop it"
        )
    if done.dropped:
        problems.append(
            "the API server drops fields of ResourceSlices, because their feature gates are off: "
            + listed(done.dropped, SHOWN)
        )
    return problems
