"""Programs that end, hang, talk too much or are not there."""

import os
import signal
import time
from pathlib import Path

import pytest

from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.process import Running

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
PATIENCE_S = 30.0
"""How long a test waits for another process on a busy machine; nothing is measured with it."""


def run(script: str, within_s: float = 5.0, stdin: str = "") -> process.Ended:
    return process.run(["/bin/sh", "-c", script], environment=ENVIRONMENT, within_s=within_s, stdin=stdin)


def test_input_and_output_of_both_streams_arrive() -> None:
    ended = run("read -r line; echo got $line; echo err >&2; exit 3", stdin="quit\n")
    assert (ended.status, ended.output, ended.stuck) == (3, "got quit\nerr\n", False)


def test_nothing_of_the_own_environment_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in the environment of the node process must not reach a program of the driver."""
    monkeypatch.setenv("SECRET", "token")
    assert "token" not in run("env").output


def test_the_deadline_ends_the_program_and_what_it_started(tmp_path: Path) -> None:
    now = [0.0]
    running = Running(shell(tmp_path, wait=True), environment=ENVIRONMENT, within_s=60.0, clock=lambda: now[0])
    program, child = pids(tmp_path)
    assert running.poll() is None
    now[0] = 59.9
    assert running.poll() is None
    assert is_alive(program)
    now[0] = 60.0
    ended = running.wait()
    assert (ended.status, ended.stuck) == (None, False)
    until_gone(program, child)


def test_a_child_that_keeps_the_output_open_does_not_prolong_the_wait(tmp_path: Path) -> None:
    """A daemon that a program leaves behind inherits its output and never closes it."""
    ended = process.run(shell(tmp_path, wait=False), environment=ENVIRONMENT, within_s=60.0)
    _, child = pids(tmp_path)
    assert (ended.status, is_alive(child)) == (0, True)
    os.kill(child, signal.SIGKILL)


def test_endless_output_is_cut_and_does_not_stop_the_program() -> None:
    ended = run("head -c 300000 /dev/zero")
    assert ended.status == 0
    assert len(ended.output) == process.MAX_OUTPUT


def test_a_program_that_closes_its_output_and_works_on_is_waited_for_without_effort() -> None:
    looks: list[None] = []

    def clock() -> float:
        looks.append(None)
        return time.monotonic()

    arguments = ["/bin/sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 4"]
    ended = Running(arguments, environment=ENVIRONMENT, within_s=60.0, clock=clock).wait()
    assert ended.status == 4
    assert len(looks) < 100, "it must sleep between looks; a loop without pauses looks thousands of times"


def test_an_abandoned_run_is_gone(tmp_path: Path) -> None:
    running = Running(shell(tmp_path, wait=True), environment=ENVIRONMENT, within_s=60.0)
    program, child = pids(tmp_path)
    assert running.poll() is None
    assert is_alive(program)
    running.abandon()
    until_gone(program, child)


def test_descriptors_do_not_add_up() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        run("true")
    with pytest.raises(FileNotFoundError):
        process.run(["/nonexistent/tool"], environment={}, within_s=1.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(
    ("output", "shown"), [("", "nothing"), ("  one\n two\t\n", "one two"), ("x" * 1000, "x" * 299 + "…")]
)
def test_output_in_a_message_is_short_and_printable(output: str, shown: str) -> None:
    assert process.shown(output) == shown


def shell(folder: Path, *, wait: bool) -> list[str]:
    script = f"sleep 100000 & echo $$ $! >{folder}/new; mv {folder}/new {folder}/pids"
    return ["/bin/sh", "-c", f"{script}; wait" if wait else script]


def pids(folder: Path) -> tuple[int, int]:
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "pids").exists():
        assert time.monotonic() < deadline, "the program has not started"
        time.sleep(0.005)
    program, child = (folder / "pids").read_text().split()
    return int(program), int(child)


def is_alive(pid: int) -> bool:
    """False for a zombie too: it has no command line any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def until_gone(*pids: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} still run"
        time.sleep(0.005)
