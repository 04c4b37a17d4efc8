"""When the next pass is due. Pure but for the clock's reading and the random number, which are arguments.

No wait after a change of the desired state. A short one after a change by another client: the kubelet deletes resource
slices one by one when it starts, and the nodes of a cluster must not all answer at the same moment. Growing waits after
failures, and when the same repairs are needed again and again.
"""

import random
from collections import deque
from collections.abc import Callable

from dra_driver.core.backoff import Backoff

# Seconds from a change by another client to the repair: at most 1.3, so that deleted resource slices are back in 2 s.
REPAIR_S = (0.3, 1.3)
# How many repairs within WINDOW_S are made without a longer wait. The kubelet deletes resource slices when it restarts;
# nothing legitimate edits them.
WINDOW_S = 300.0
QUICK_EDITS = 3
QUICK_DELETIONS = 8
LONGEST_REPAIR_S = 60.0
# A pass even when nothing happened, in case the watch lost an event.
RESYNC_S = 600.0


class Schedule:
    """Not thread-safe: its owner holds a lock."""

    def __init__(self, *, rand: Callable[[], float] = random.random) -> None:
        self._rand = rand
        self._backoff = Backoff(first_s=0.5, longest_s=30.0, rand=rand)
        self._due: float | None = None
        self._not_before = 0.0
        self._deletions: deque[float] = deque(maxlen=64)
        self._edits: deque[float] = deque(maxlen=64)

    def due_s(self) -> float | None:
        """The clock's reading at which the next pass is due; None when none is needed."""
        return None if self._due is None else max(self._due, self._not_before)

    def wanted(self, now: float) -> None:
        """The desired state changed: a pass is due at once, even while waiting after a failure."""
        self._due, self._not_before = now, 0.0

    def disturbed(self, now: float) -> None:
        """Another client changed the resource slices."""
        shortest, longest = REPAIR_S
        at = now + shortest + (longest - shortest) * self._rand()
        last = max([*self._deletions, *self._edits], default=now)
        at = max(at, last + self._spacing(now))
        self._due = at if self._due is None else min(self._due, at)

    def succeeded(self, now: float) -> None:
        self._backoff.reset()
        self._not_before = 0.0
        self._due = now + RESYNC_S * (0.9 + 0.2 * self._rand())

    def failed(self, now: float, retry_after_s: float = 0.0) -> None:
        self._not_before = now + max(self._backoff.next_s(), retry_after_s)
        self._due = self._not_before

    def repaired(self, now: float, *, only_created: bool) -> None:
        """A pass that another client's change caused had to write."""
        (self._deletions if only_created else self._edits).append(now)

    def edits(self, now: float) -> int:
        """How many repairs of edited resource slices the last minutes had; deletions do not count."""
        return sum(now - at < WINDOW_S for at in self._edits)

    def _spacing(self, now: float) -> float:
        """The least time between two repairs."""
        deletions = sum(now - at < WINDOW_S for at in self._deletions)
        too_many = max(self.edits(now) - QUICK_EDITS, deletions - QUICK_DELETIONS)
        return 0.0 if too_many < 0 else float(min(LONGEST_REPAIR_S, 4.0 * 2.0 ** min(too_many, 8)))
