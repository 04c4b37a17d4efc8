"""Limit the time that one answer spends on costly selectors.

Tenants write selectors. One that is just within Kubernetes' own limit (`COST_LIMIT`) takes half a second here for each
device, and a claim may have thousands. Selectors of a lower cost than `COSTLY` are always evaluated.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import SelectorBudgetError
from dra_driver.core.text import cut

ANSWER_S: Final = 2.0
COSTLY: Final = 20_000
"""In units of `COST_LIMIT`: about 20 ms."""


class SelectorBudget(Struct):
    """``left_s``: seconds of CPU time of this thread that costly selectors may still take."""

    total_s: float
    left_s: float
    clock: Callable[[], float]

    @contextmanager
    def spending(self, expression: str) -> Iterator[None]:
        """Raises SelectorBudgetError if no time is left."""
        if self.left_s <= 0:
            shown = cut(expression, 80)
            raise SelectorBudgetError(
                f"not evaluated, because costly selectors took {self.total_s:g} s: {' '.join(shown.split())!r}; "
                "write a selector that costs less"
            )
        begun = self.clock()
        try:
            yield
        finally:
            self.left_s -= self.clock() - begun


_CURRENT: Final[ContextVar[SelectorBudget | None]] = ContextVar("selector_budget", default=None)


@contextmanager
def selector_budget(seconds: float = ANSWER_S, clock: Callable[[], float] = time.thread_time) -> Iterator[None]:
    """Within this context costly selectors of this thread take ``seconds`` in all, plus the last one; then
    SelectorBudgetError: their result is unknown. An outer budget stays in force."""
    token = _CURRENT.set(_CURRENT.get() or SelectorBudget(seconds, seconds, clock))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_budget() -> SelectorBudget | None:
    return _CURRENT.get()
