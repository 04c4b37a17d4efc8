"""Limits of one evaluation that cel-go does not have: sizes of lists and strings, and work that the cost leaves out."""

import threading
from typing import Final

MAX_ELEMENTS: Final = 4_000_000
"""Longest list that an evaluation may build. cel-go has no limit but memory."""
MAX_TEXT: Final = 1 << 26
"""Longest string or bytes that an evaluation may build."""
MAX_WORK: Final = 5_000_000
"""Comparisons and copies of elements within one evaluation, which the cost model leaves out for nested values."""


class AbortedError(Exception):
    """Ends the evaluation; no operator absorbs it. Cost limit, limits of this module, and panics in Go."""


class _Work(threading.local):
    """The work left for the evaluation of this thread."""

    left: int = MAX_WORK


_work = _Work()


def reset_work() -> None:
    """Resets the work of this thread. Call it before an evaluation that may build or compare large values."""
    _work.left = MAX_WORK


def spend(amount: int) -> None:
    """Counts work outside the cost model. Raises AbortedError beyond MAX_WORK."""
    _work.left -= amount
    if _work.left < 0:
        raise AbortedError("the expression takes too much work on large values")


def check_size(size: int) -> int:
    """Returns ``size`` if a list of that size may be built. Raises AbortedError otherwise."""
    if size > MAX_ELEMENTS:
        raise AbortedError(f"a list of {size} elements is too large, at most {MAX_ELEMENTS} are allowed")
    spend(size)
    return size


def check_text(size: int) -> int:
    """Returns ``size`` if a string or bytes of that size may be built. Raises AbortedError otherwise."""
    if size > MAX_TEXT:
        raise AbortedError(f"a string of {size} characters is too large, at most {MAX_TEXT} are allowed")
    spend(size >> 6)
    return size
