"""Taints the GPUs that an annotation of the Node asks to drain (``core/model/drain.py``), in all of their forms.

New claims do not get them. Claims that are allocated already are prepared as ever: their pods are bound to this node,
and a refused prepare would only leave them waiting. Who drains ends those pods.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec.structs import replace

from dra_driver.core.model.drain import DRAIN_ANNOTATION, DRAINED_TAINT, NOT_DRAINED, DrainRequest
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Taint, Terms, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.process.node_events import Tell

log = logging.getLogger(__name__)

TAINT: Final = Taint(key=DRAINED_TAINT, value="requested", effect="NoSchedule")
_SHOWN: Final = 4


class DrainTaint:
    """``node`` returns the last known Node, ``tell`` records an event on it. One thread calls ``look``.

    ``given_back`` is called with the GPUs whose drain has ended: the one who drained them says that they are in order.
    """

    def __init__(
        self,
        node: Callable[[], OwnNode | None],
        tell: Tell,
        given_back: Callable[[Collection[GpuUuid]], None] = lambda _: None,
    ) -> None:
        self._node, self._tell, self._given_back = node, tell, given_back
        self._drained: frozenset[GpuUuid] = frozenset()
        self._request = NOT_DRAINED  # replaced as a whole, so that any thread reads it without a lock
        self._names: tuple[str, ...] = ()
        self._strangers: tuple[str, ...] = ()
        self._told: tuple[str, ...] = ()

    @property
    def has_news(self) -> bool:
        """Whether a look would tell something, also of the Node that was looked at last."""
        return self._strangers != self._told

    def look(self) -> bool:
        """Follows the annotation; whether it asks for something else than before. Sends no request."""
        node = self._node()
        if node is None:
            return False
        before, self._request = self._request, DrainRequest.of(node.annotations.get(DRAIN_ANNOTATION))
        self._warn()
        if self._request == before:
            return False
        if back := frozenset(gpu for gpu in self._drained if not self._request.covers(gpu)):
            self._given_back(back)
        asked = "all GPUs of this node" if self._request.every else self._request.text or "none"
        log.info("GPUs to drain", extra={"by": f"annotation {DRAIN_ANNOTATION}", "gpus": asked})
        if self._request.text is None:
            self._tell("Normal", "GpusUndrained", "no GPU of this node is drained: new claims get them again")
        else:
            self._tell("Normal", "GpusDrained", f"new claims do not get {asked} ({_BY})")
        return True

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        """The terms of the drained GPUs with the taint in addition."""
        request = self._request
        drained = [gpu for gpu in snapshot.gpus if request.covers(gpu.uuid)]
        metrics.drained.set(len(drained))
        self._drained = frozenset(gpu.uuid for gpu in drained)
        self._names = tuple(gpu.device_name for gpu in drained)
        known = {gpu.uuid for gpu in snapshot.gpus} | {gpu.label for gpu in snapshot.left_out}
        self._strangers = (*request.unknown, *(sorted(request.gpus - known) if snapshot.gpus else ()))
        found = {gpu.uuid: terms_of(terms, gpu.uuid) for gpu in drained}
        return {gpu: replace(of, taints=(*of.taints, TAINT)) for gpu, of in found.items()}

    @property
    def remarks(self) -> list[str]:
        """A sentence about the drained GPUs, and one about what the annotation names and this node does not have."""
        found = [f"drained, so new claims do not get them: {', '.join(self._names)} ({_BY})"] if self._names else []
        return [*found, *([_stranger(self._strangers)] if self._strangers else [])]

    def _warn(self) -> None:
        strangers = self._strangers
        if strangers and strangers != self._told:
            self._tell("Warning", "DrainUnknownGpu", _stranger(strangers))
        self._told = strangers


_BY: Final = f"annotation {DRAIN_ANNOTATION}; kubectl dra undrain ends it"


def _stranger(words: tuple[str, ...]) -> str:
    shown = ", ".join(word[:60] for word in words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")
    return (
        f"the annotation {DRAIN_ANNOTATION} names what is no GPU of this node: {shown}; expected `all` or UUIDs of "
        "GPUs, separated by commas"
    )
