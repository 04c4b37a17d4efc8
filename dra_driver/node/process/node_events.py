"""Events on the own Node, written once its UID is known."""

from typing import Final, Literal

from dra_driver.kube.events import EventRecorder
from dra_driver.kube.own_node import OwnNodeWatch
from dra_driver.kube.types import ObjectReference

COMPONENT: Final = "dra-driver"
"""The source that events of the node process name."""


def tell(
    own_node: OwnNodeWatch, events: EventRecorder, kind: Literal["Normal", "Warning"], reason: str, message: str
) -> None:
    """An event on the Node; none while its UID is unknown."""
    node = own_node.current()
    if node is not None and node.uid:
        events.record(
            ObjectReference(apiVersion="v1", kind="Node", name=node.name, uid=node.uid), kind, reason, message
        )
