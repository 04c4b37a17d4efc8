"""When requests that ask the same share an answer. Pure; times are seconds of one clock.

A question that is asked up to `FRESH` times in a second is answered anew each time: who asks after a change sees it. Of
further requests in that second, those share an answer that come when one is at most `SHARED_S` old. Thousands of
requests for metrics would else take all of Python's time, and that of the thread that serves every other request.
"""

from collections import deque
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

T = TypeVar("T")

FRESH: Final = 8
SHARED_S: Final = 1.0


class HttpQuestion(Struct, Generic[T]):
    """The requests that ask it and wait for an answer, oldest first; ``making`` answers are being made."""

    making: int = 0
    _waiting: deque[tuple[T, float, bool]] = field(default_factory=deque)
    """A request, when it came, and whether it may share an answer."""
    _asked: int = 0
    _second_ends: float = 0.0
    _last: bytes = b""
    _last_at: float = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, request: T, now: float) -> None:
        if now >= self._second_ends:
            self._second_ends, self._asked = now + 1.0, 0
        self._asked += 1
        self._waiting.append((request, now, self._asked > FRESH))

    @property
    def first(self) -> T:
        """The request that has waited longest."""
        return self._waiting[0][0]

    @property
    def first_at(self) -> float:
        """When it came; infinity when none waits."""
        return self._waiting[0][1] if self._waiting else float("inf")

    def shared(self, now: float) -> bytes:
        """The answer that the first request shares; empty when one has to be made for it, or none waits."""
        may_share = bool(self._waiting) and self._waiting[0][2]
        return self._last if may_share and now - self._last_at <= SHARED_S else b""

    def take(self) -> T:
        """Remove the first request."""
        return self._waiting.popleft()[0]

    def answered(self, answer: bytes, begun: float) -> None:
        """An answer was made, which shows what held at ``begun``."""
        self.making -= 1
        if begun > self._last_at:
            self._last, self._last_at = answer, begun
