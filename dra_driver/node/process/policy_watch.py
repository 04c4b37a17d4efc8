"""Watch GpuPolicy objects and keep the ones for this node.

The list comes in small pages, each reduced before the next, so that large objects do not grow this process. While the
API server is unreachable, refuses, or does not serve the kind, the last known objects stay. Deleting the
CustomResourceDefinition deletes all objects first. So deleted objects count for `HOLD_S`, and only a list can report
that none is left.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Final

from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import ForbiddenError, KubernetesApiError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.reflector import ReducedLists, Reflector, ReflectorChange
from dra_driver.kube.rest import RestClient
from dra_driver.node.policy import MAX_POLICIES, PolicyObject, kept

THREAD_NAME: Final = "policies-watch"
PAGE: Final = 32
ABSENT_S: Final = (10.0, 300.0)
"""First and longest wait while the kind is not served or access is forbidden; up to a half shorter, at random."""
FIRST_S, LATER_S = 2.0, 30.0
"""The longest wait between attempts before the first answer: until then the node publishes nothing."""
HOLD_S: Final = 5.0
REFUSED_S: Final = 20.0
"""A refusal counts after this time: an API server refuses every request until it has read the roles."""
_REFUSED_PAUSE_S: Final = 0.5
"""Least pause between attempts until then."""


class PolicyWatch:
    """``start`` and ``stop`` once, by one owner; the rest from any thread. Its thread calls ``changed``."""

    def __init__(
        self,
        rest: RestClient,
        node_name: str,
        changed: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changed, self._clock = changed, clock
        self._lock = threading.Lock()  # guards the fields below
        self._counted: dict[str, PolicyObject] = {}
        self._current: tuple[PolicyObject, ...] | None = None
        self._held_until: float | None = None
        self._is_absent = False
        self._refused_since: float | None = None
        self._absent = Backoff(first_s=ABSENT_S[0], longest_s=ABSENT_S[1], rand=random.random)
        self._backoff = Backoff(first_s=0.5, longest_s=FIRST_S, rand=random.random)
        self._lists = ReducedLists(rest, lambda item, beside: kept(item, node_name, beside, MAX_POLICIES), PAGE)
        self._reflector = Reflector(
            self._lists,
            paths.gpu_policies(),
            "",
            self.notice,
            slim=lambda item: self._lists.slim(item, self._reflector.items().values()),
            name=THREAD_NAME,
            place="policies",
            backoff=self._backoff,
            patience=self.patience,
        )
        self.start, self.stop = self._reflector.start, self._reflector.stop

    @property
    def problem(self) -> str | None:
        return self._reflector.problem

    @property
    def is_absent(self) -> bool:
        """Return whether the last answer was that the kind is not served, or not readable."""
        with self._lock:
            return self._is_absent

    def current(self) -> tuple[PolicyObject, ...] | None:
        """The objects; the same value while nothing changed. None before the first list. Applies deletions whose hold
        has ended. Call it every few seconds."""
        with self._lock:
            is_due = self._held_until is not None and self._clock() >= self._held_until
            is_list_due = is_due and not self._settle()
        if is_list_due:
            self._reflector.list_again()
        with self._lock:
            return self._current

    def notice(self, change: ReflectorChange) -> None:
        items = self._reflector.items() if change.kind == "listed" else {}
        with self._lock:
            self._is_absent, self._refused_since = False, None
            self._absent.reset()
            if change.kind == "deleted":
                self._held_until = self._clock() + HOLD_S
                return
            if change.kind == "listed":
                self._backoff.longest_s = LATER_S
                self._counted, self._held_until = items, None
            else:
                self._counted[change.name] = change.item
                if self._held_until is None and any(found.data is None for found in self._counted.values()):
                    self._held_until = self._clock() + HOLD_S  # the change may have made room for names without content
            is_new = self._publish()
        if is_new:
            self._changed()

    def _settle(self) -> bool:
        """Apply deletions. False when a list is due: none would be left, or names without content may have room. Runs
        with the lock: a change that comes between the copy and its use would be lost."""
        self._held_until = None
        items = self._reflector.items()
        if not items or (len(items) <= MAX_POLICIES and any(found.data is None for found in items.values())):
            return False
        self._counted = items
        self._publish()
        return True

    def _publish(self) -> bool:
        found = tuple(self._counted[name] for name in sorted(self._counted))
        is_new = found != self._current
        if is_new:
            self._current = found
        return is_new

    def patience(self, error: KubernetesApiError) -> float:
        """The least seconds until the next attempt after this error; runs once for each, in the watch's thread."""
        with self._lock:
            if not isinstance(error, ForbiddenError):
                self._refused_since = None
            elif self._refused_since is None:
                self._refused_since = self._clock()
            if self._refused_since is not None and self._clock() - self._refused_since < REFUSED_S:
                return _REFUSED_PAUSE_S
            if not isinstance(error, NotFoundError | ForbiddenError):
                return 0.0
            is_new = not self._is_absent
            self._is_absent = True
            wait_s = self._absent.next_s()
        if is_new:
            self._changed()
        return wait_s
