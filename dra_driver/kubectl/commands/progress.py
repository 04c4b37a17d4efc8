"""One line that says what a command is doing, on a terminal and only when it takes long; nothing in a pipe."""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TextIO

from dra_driver.core.text import printable
from dra_driver.core.worker import Worker

AFTER_S: Final = 2.0
_EVERY_S: Final = 0.5
_STOP_S: Final = 2.0
_CLEAR: Final = "\r\x1b[K"


class Progress:
    """A context: the line appears on standard error after two seconds, with the seconds so far, and goes at the end.

    What the command itself prints has to come after the context, or between `hide` and the next `say`.
    """

    def __init__(self, text: str, *, stream: TextIO | None = None, after_s: float = AFTER_S) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()  # guards the text and what is written
        self._text, self._is_shown = text, False
        self._began = time.monotonic()
        self._worker = Worker("progress", self._write, first_s=after_s)

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.stop(_STOP_S)
        self.hide()

    def say(self, text: str) -> None:
        """What is being done now."""
        with self._lock:
            self._text = text

    def hide(self) -> None:
        """Take the line away, so that other output can be written; it comes back within half a second of a `say`."""
        with self._lock:
            if self._is_shown:
                self._stream.write(_CLEAR)
                self._stream.flush()
            self._is_shown, self._text = False, ""

    def _write(self) -> float:
        with self._lock:
            if self._text:
                self._stream.write(f"{_CLEAR}{line(self._text, time.monotonic() - self._began)}")
                self._stream.flush()
                self._is_shown = True
        return _EVERY_S


def line(text: str, seconds: float, width: Callable[[], int] = lambda: shutil.get_terminal_size().columns) -> str:
    """The text and the seconds, in one line of the terminal."""
    shown = printable(text)
    end = f" ... {seconds:.0f} s"
    return f"{shown[: max(0, width() - len(end) - 1)]}{end}"
