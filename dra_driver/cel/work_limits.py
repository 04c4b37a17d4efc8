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
    """Ends the evaluation whatever absorbs errors: the cost limit, our own limits, what would be a panic in Go."""


class _Work(threading.local):
    """How much is left in this thread's evaluation."""

    left: int = MAX_WORK


_work = _Work()


def reset_work() -> None:
    """Start of an evaluation that may build or compare large values."""
    _work.left = MAX_WORK


def spend(amount: int) -> None:
    """Counts work that is not part of the cost model. Raises AbortedError when there was too much."""
    _work.left -= amount
    if _work.left < 0:
        raise AbortedError("the expression takes too much work on large values")


def check_size(size: int) -> int:
    """``size`` if a list of it may be built. Raises AbortedError."""
    if size > MAX_ELEMENTS:
        raise AbortedError(f"a list of {size} elements is too large, at most {MAX_ELEMENTS} are allowed")
    spend(size)
    return size


def check_text(size: int) -> int:
    """``size`` if a string or bytes of it may be built. Raises AbortedError."""
    if size > MAX_TEXT:
        raise AbortedError(f"a string of {size} characters is too large, at most {MAX_TEXT} are allowed")
    spend(size >> 6)
    return size
