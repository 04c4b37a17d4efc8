"""What is wrong with the slices, as sentences, and how people hear of it.

Owns the words, and that each new problem is told once: in the log, and as an event on the node. Refuses to know how
problems come about (``publisher.py``).
"""

import logging
from typing import Literal, Protocol

from dra_driver.kube.types import ObjectReference
from dra_driver.slices.reconcile import ReconcileResult
from dra_driver.slices.schedule import QUICK_EDITS

log = logging.getLogger(__name__)

_SHOWN = 4  # of a list that may be long


class NodeEventRecorder(Protocol):
    """The part of ``kube.events.EventRecorder`` that reporting a problem needs."""

    def record(self, about: ObjectReference, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None: ...


def report_change(
    problem: str | None, before: str | None, node: str, node_uid: str, recorder: NodeEventRecorder | None
) -> None:
    """Logs a change from ``before`` to ``problem``; with a recorder and a known node there is an event, too."""
    if problem == before:
        return
    if problem is None:
        log.info("slices are right again", extra={"node": node})
        return
    log.warning("slices are not right", extra={"node": node, "problem": problem})
    warn("ResourceSliceProblem", problem, node, node_uid, recorder)


def warn(reason: str, message: str, node: str, node_uid: str, recorder: NodeEventRecorder | None) -> bool:
    """A Warning event at the node; False without a recorder or a known node."""
    if recorder is None or not node_uid:
        return False
    about = ObjectReference(apiVersion="v1", kind="Node", name=node, uid=node_uid)
    recorder.record(about, "Warning", reason, message)
    return True


def problems_of(done: ReconcileResult, edits: int, driver: str, node: str) -> list[str]:
    """What a pass found; ``edits`` counts how often others changed our slices in the last minutes."""
    problems = []
    if done.foreign_pools:
        problems.append(
            f"a second publisher: node {node} has slices of driver {driver} in other pools "
            f"({', '.join(done.foreign_pools)}); stop the other driver, then delete the slices that it left"
        )
    if edits >= QUICK_EDITS:
        problems.append(
            f"somebody else keeps changing the slices of driver {driver} on node {node} "
            f"({edits} times in five minutes); find the second publisher for this driver and node and stop it"
        )
    if done.dropped:
        problems.append(
            f"the API server drops fields of the slices, their feature gates are off: {shown(done.dropped)}"
        )
    return problems


def shown(paths: tuple[str, ...]) -> str:
    """The first few."""
    return ", ".join(paths[:_SHOWN]) + (", …" if len(paths) > _SHOWN else "")
