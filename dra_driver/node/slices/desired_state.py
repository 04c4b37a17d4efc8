"""The ResourceSlices that should be published, from the newest inventory and terms."""

import logging

from dra_driver.core.model.gpu import LeftOutGpu, Snapshot
from dra_driver.core.model.terms import Terms
from dra_driver.node.slices.build import build_devices
from dra_driver.node.slices.gates import NO_FEATURES, ApiServerFeatures
from dra_driver.node.slices.layout import DesiredSlice, split

log = logging.getLogger(__name__)


class DesiredState:
    """Not thread-safe: its owner holds a lock. ``slices`` is None until `build` has an inventory."""

    def __init__(self) -> None:
        self._inventory: tuple[Snapshot, Terms] | None = None
        self._built: tuple[tuple[Snapshot, Terms], ApiServerFeatures] | None = None
        self.slices: tuple[DesiredSlice, ...] | None = None
        self.left_out: tuple[LeftOutGpu, ...] = ()

    @property
    def has_inventory(self) -> bool:
        """Whether an inventory was offered."""
        return self._inventory is not None

    def offer(self, snapshot: Snapshot, terms: Terms) -> bool:
        """Set the newest inventory; False when it equals the previous one."""
        if self._inventory == (snapshot, terms):
            return False
        self._inventory = (snapshot, terms)
        return True

    def build(self, features: ApiServerFeatures = NO_FEATURES) -> bool:
        """Update ``slices``. True when they changed: most changes of an inventory are not published.

        Unchanged resource slices stay the same object. Logs what is left out when that changed.
        """
        if self._inventory is None or self._built == (self._inventory, features):
            return False
        self._built = (self._inventory, features)
        built = build_devices(*self._inventory, features)
        if built.left_out != self.left_out:
            for gpu in built.left_out:
                log.warning("GPU is not published in every form", extra={"gpu": gpu.label, "reason": gpu.reason})
        self.left_out = built.left_out
        slices = split(built, counters_beside_devices=features.counters and features.counters_beside_devices)
        if slices == self.slices:
            return False
        self.slices = slices
        return True
