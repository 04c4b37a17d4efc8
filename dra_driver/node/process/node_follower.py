"""Follows what people and others do on the objects of this node, as far as it changes what is published.

- An annotation of the Node requests a drain (``core/model/drain.py``): all forms of the GPUs are tainted. New claims do
  not get them. Claims that are allocated already are prepared as ever: their pods are bound to this node, and a refused
  prepare would only leave them waiting. Who drains ends those pods.
- Other publishers offer the same GPUs (``second_publisher.py``).
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from dra_driver.core.model.drain import DRAIN_ANNOTATION, DRAINED_TAINT, NOT_DRAINED, DrainRequest
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Taint, Terms, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.own_node import OwnNode, OwnNodeWatch
from dra_driver.node.process.node_events import Tell, tell
from dra_driver.node.process.second_publisher import SecondPublisher, SecondPublisherFile
from dra_driver.node.slices import Publisher

log = logging.getLogger(__name__)

FIRST_NODE_S: Final = 30.0
"""How long a run publishes nothing while its Node has not been read: GPUs that are drained would lose their taint."""
FIRST_SLICES_S: Final = 1.0
"""How long a start waits for the list of this node's slices: what else publishes its GPUs is known before this driver
does. Without an answer it goes on, and withdraws devices when the answer comes."""
TAINT: Final = Taint(key=DRAINED_TAINT, value="requested", effect="NoSchedule")
_SHOWN: Final = 4
_BY: Final = f"annotation {DRAIN_ANNOTATION}; kubectl dra undrain ends it"


class NodeFollower:
    """``look`` and ``report`` from one thread; the rest from any."""

    def __init__(
        self,
        own_node: OwnNodeWatch,
        events: EventRecorder,
        publisher: Publisher,
        inventory: Inventory,
        driver: str,
        *,
        folder: Path,
        allow_second: bool,
        given_back: Callable[[Collection[GpuUuid]], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call it before anything is published; takes up to `FIRST_SLICES_S`."""
        self._own_node, self._was_known = own_node, False
        self._clock, self._began = clock, clock()
        self._inventory, self._publisher = inventory, publisher
        self._seen: tuple[object, ...] = ()
        self._known_gpus: frozenset[GpuUuid] = frozenset()
        self._drain = DrainTaint(own_node.current, partial(tell, own_node, events), given_back)
        self._second = SecondPublisher(
            own_node.current,
            lambda: publisher.neighbours(self._gpus(inventory.current())),
            driver,
            SecondPublisherFile(folder),
            allowed=allow_second,
            clock=clock,
        )
        if own_node.current() is not None:  # the API server answers
            publisher.wait_listed(FIRST_SLICES_S)
        self.look()

    def _gpus(self, snapshot: Snapshot) -> frozenset[GpuUuid]:
        """The GPUs that another driver must not publish: the last that were read, also while none can be read."""
        self._known_gpus = frozenset(gpu.uuid for gpu in snapshot.gpus) or self._known_gpus
        return self._known_gpus

    @property
    def problem(self) -> str | None:
        """Why devices are withdrawn or not published yet, as a sentence; None while they are published."""
        return self.conflict or (None if self.is_known else self._own_node.problem)

    @property
    def conflict(self) -> str | None:
        """Why devices are withdrawn, as a sentence; None while they are not."""
        return self._second.problem

    @property
    def is_known(self) -> bool:
        """Whether the API server has answered what the Node says, or has not for `FIRST_NODE_S`."""
        return self._own_node.wait_first(0.0) or self._clock() - self._began >= FIRST_NODE_S

    @property
    def remarks(self) -> list[str]:
        """What is drained and what is allowed beside this driver, one sentence each."""
        return [*self._drain.remarks, *self._second.remarks]

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        return self._drain.amend(snapshot, terms)

    def call_after_changes(self, callback: Callable[[], None]) -> None:
        """Call ``callback``, which must not block, when `look` may find something new. For one caller."""
        self._own_node.subscribe(callback)
        self._inventory.subscribe(lambda _: callback())
        self._publisher.on_notice(callback)

    def is_waiting(self) -> bool:
        """Whether `look` may find something new by time alone, or has to be repeated."""
        return not self._was_known or self._second.is_waiting or self._drain.has_news

    def look(self) -> bool:
        """Whether what is to be published changed. Sends no request, and looks at nothing twice: it is called often."""
        seen = (self._own_node.current(), self._inventory.current(), self._publisher.noticed)
        if not self.is_waiting() and seen == self._seen:
            return False
        self._seen = seen
        known, self._was_known = self._was_known, self.is_known
        return any([self._was_known != known, self._drain.look(), self._second.look()])

    def follow(self, publish: Callable[[], None]) -> None:
        """Look, and ``publish`` after a change."""
        if self.look():
            publish()

    def report(self, warn: Callable[[str, str], bool]) -> None:
        """Record an event for a second publisher, once."""
        self._second.report(warn)


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


def _stranger(words: tuple[str, ...]) -> str:
    shown = ", ".join(word[:60] for word in words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")
    return (
        f"the annotation {DRAIN_ANNOTATION} names what is no GPU of this node: {shown}; expected `all` or UUIDs of "
        "GPUs, separated by commas"
    )
