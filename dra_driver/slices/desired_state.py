"""What should be published: the newest inventory and terms, as slices.

Owns the one copy of the wire objects that is kept. Refuses to know the API server and threads: its owner holds a lock.
"""

import logging

from dra_driver.model.gpu import LeftOutGpu, Snapshot
from dra_driver.model.terms import Terms
from dra_driver.slices.build import build_devices
from dra_driver.slices.gates import NO_FEATURES, ApiServerFeatures
from dra_driver.slices.layout import DesiredSlice, split

log = logging.getLogger(__name__)


class DesiredState:
    """Not thread-safe. ``slices`` is None until `build` was called with an inventory there."""

    def __init__(self) -> None:
        self._inventory: tuple[Snapshot, Terms] | None = None
        self._built: tuple[tuple[Snapshot, Terms], ApiServerFeatures] | None = None
        self.slices: tuple[DesiredSlice, ...] | None = None
        self.left_out: tuple[LeftOutGpu, ...] = ()

    @property
    def has_inventory(self) -> bool:
        """Whether there is an inventory at all."""
        return self._inventory is not None

    def offer(self, snapshot: Snapshot, terms: Terms) -> bool:
        """Takes the newest inventory; False when it is the one that was there."""
        if self._inventory == (snapshot, terms):
            return False
        self._inventory = (snapshot, terms)
        return True

    def build(self, features: ApiServerFeatures = NO_FEATURES) -> bool:
        """Brings ``slices`` up to date. True when they changed: most changes of an inventory are not published.

        Unchanged slices stay the same object. What is left out is logged when it is news.
        """
        if self._inventory is None or self._built == (self._inventory, features):
            return False
        self._built = (self._inventory, features)
        built = build_devices(*self._inventory, features)
        if built.left_out != self.left_out:
            for gpu in built.left_out:
                log.warning("not all of a GPU is published", extra={"gpu": gpu.label, "reason": gpu.reason})
        self.left_out = built.left_out
        slices = split(built)
        if slices == self.slices:
            return False
        self.slices = slices
        return True
