"""SIGINT and SIGTERM of commands that clean up at their end."""

import signal
from types import FrameType


def interrupt_once() -> None:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt; later ones must not interrupt cleaning up."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
