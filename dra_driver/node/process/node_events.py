"""Record events on this node's Node object, after its UID was read."""

from collections.abc import Callable
from typing import Final, Literal

from dra_driver.kube.events import EventRecorder
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.kube.own_node import OwnNodeWatch

COMPONENT: Final = "dra-driver"
"""The source that events of the node process name."""

Kind = Literal["Normal", "Warning"]
Tell = Callable[[Kind, str, str], None]
"""Record an event on the Node, by kind, reason and message."""
Warn = Callable[[str, str], bool]
"""Record a Warning event on the Node, by reason and message; return False while its UID is unknown."""


def tell(own_node: OwnNodeWatch, events: EventRecorder, kind: Kind, reason: str, message: str) -> None:
    """Record an event on the Node; none while its UID is unknown."""
    node = own_node.current()
    if node is not None and node.uid:
        events.record(
            ObjectReference(api_version="v1", kind="Node", name=node.name, uid=node.uid), kind, reason, message
        )
