"""What people and others do on the objects of this node, as far as it changes what is published.

A drain that is asked for by an annotation (``drain_taint.py``), and other publishers of the same GPUs
(``second_publisher.py``).
"""

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Terms
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.own_node import OwnNodeWatch
from dra_driver.node.process.drain_taint import DrainTaint
from dra_driver.node.process.node_events import tell
from dra_driver.node.process.second_publisher import SecondPublisher, SecondPublisherFile
from dra_driver.node.slices import Publisher

FIRST_NODE_S: Final = 30.0
"""How long a run publishes nothing while its Node has not been read: GPUs that are drained would lose their taint."""
FIRST_SLICES_S: Final = 1.0
"""How long a start waits for the list of this node's slices: what else publishes its GPUs is known before this driver
does. Without an answer it goes on, and withdraws devices when the answer comes."""


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
        """See ``DrainTaint.amend``."""
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
