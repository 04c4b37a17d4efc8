"""Programs that end, hang, talk too much or are not there."""

import time
from pathlib import Path

import pytest

from dra_driver.sharing import process
from dra_driver.sharing.process import Running

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def run(script: str, within_s: float = 5.0, stdin: str = "") -> process.Ended:
    return process.run(["/bin/sh", "-c", script], environment=ENVIRONMENT, within_s=within_s, stdin=stdin)


def test_output_and_status_of_both_streams_come_back() -> None:
    ended = run("echo out; echo err >&2; exit 3")
    assert (ended.status, ended.output.split(), ended.stuck) == (3, ["out", "err"], False)


def test_what_is_given_on_stdin_arrives() -> None:
    assert run("read -r line; echo got $line", stdin="quit\n").output == "got quit\n"


def test_nothing_of_the_own_environment_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in the environment of a node process are no business of a driver's program."""
    monkeypatch.setenv("SECRET", "token")
    assert "token" not in run("env").output


def test_the_deadline_ends_the_program_and_what_it_started() -> None:
    began = time.monotonic()
    ended = run("sleep 47 & echo $!; wait", within_s=0.05)
    assert ended.status is None
    assert time.monotonic() - began < 1.0
    child = Path(f"/proc/{int(ended.output)}/cmdline")
    for _ in range(100):
        if not _command_line(child):
            return
        time.sleep(0.01)
    pytest.fail("the child outlived the deadline")


def test_a_child_that_keeps_the_output_open_does_not_prolong_the_wait() -> None:
    """A daemon that a program leaves behind inherits its output and never closes it."""
    began = time.monotonic()
    ended = run("sleep 0.6 & echo started")
    assert (ended.status, ended.output) == (0, "started\n")
    assert time.monotonic() - began < 0.5


def test_endless_output_is_cut_and_does_not_stop_the_program() -> None:
    ended = run("head -c 300000 /dev/zero")
    assert ended.status == 0
    assert len(ended.output) == process.MAX_OUTPUT


def test_a_program_that_closes_its_output_and_works_on_is_waited_for_without_effort() -> None:
    before = time.process_time()
    ended = run("exec >&- 2>&-; sleep 0.2; exit 4")
    assert ended.status == 4
    assert time.process_time() - before < 0.1


def test_a_missing_program_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        process.run(["/nonexistent/tool"], environment={}, within_s=1.0)


def test_an_abandoned_run_is_gone() -> None:
    running = Running(["/bin/sleep", "47"], environment=ENVIRONMENT, within_s=60.0)
    assert running.poll() is None
    running.abandon()
    assert not any(b"sleep\x0047" in _command_line(path) for path in Path("/proc").glob("[0-9]*/cmdline"))


def test_descriptors_do_not_add_up() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        run("true")
    with pytest.raises(FileNotFoundError):
        process.run(["/nonexistent/tool"], environment={}, within_s=1.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("", "nothing"),
        ("  one\n two\t\n", "one two"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("x" * 1000, "x" * 299 + "…"),
    ],
)
def test_output_in_a_message_is_short_and_printable(output: str, shown: str) -> None:
    assert process.shown(output) == shown


def _command_line(path: Path) -> bytes:
    """'' for a process that is gone or a zombie."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
