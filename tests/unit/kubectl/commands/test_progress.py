"""The line of a command that takes long: on a terminal, late, short, and gone at the end."""

import io
import threading

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.commands.source import Progress, line, split_target


class Terminal(io.StringIO):
    """Tells when something was written."""

    def __init__(self, is_terminal: bool = True) -> None:
        super().__init__()
        self.is_terminal = is_terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        done = super().write(text)
        self.written.set()
        return done


def test_the_line_comes_and_goes() -> None:
    terminal = Terminal()
    with Progress("reading pods", stream=terminal, after_s=0.0):
        assert terminal.written.wait(5)
    assert terminal.getvalue().startswith("\r\x1b[Kreading pods ... 0 s")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_short_command_writes_nothing() -> None:
    terminal = Terminal()
    with Progress("reading pods", stream=terminal, after_s=60.0) as progress:
        progress.say("reading claims")
    assert terminal.getvalue() == ""


def test_a_pipe_gets_nothing() -> None:
    pipe = Terminal(is_terminal=False)
    with Progress("reading pods", stream=pipe, after_s=0.0):
        assert not pipe.written.wait(0.05)
    assert pipe.getvalue() == ""


def test_an_error_takes_the_line_away() -> None:
    terminal = Terminal()

    def work() -> None:
        with Progress("reading pods", stream=terminal, after_s=0.0):
            assert terminal.written.wait(5)
            split_target("node/a/b")

    with pytest.raises(ConfigurationError):
        work()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_line_fits_the_terminal_and_moves_no_cursor() -> None:
    assert line("node \x1b[31m" + "a" * 100, 12.4, lambda: 40) == "node ?[31m" + "a" * 20 + " ... 12 s"
    assert len(line("a" * 100, 3.0, lambda: 20)) == 19
