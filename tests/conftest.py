"""Settings of all tests."""

import gc
import importlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import settings

from tests.fakes.node_process import SHARED_MEMORY, memory_folder
from tests.fakes.scripts import script
from tests.fakes.syscalls import inotify_is_used_up
from tests.harness import forked

# A time limit for each example fails on a machine that does much else; pytest-timeout ends what hangs. Each run of
# `make test` tries the same few examples, `make test-slow` many others.
settings.register_profile("quick", deadline=None, max_examples=25, stateful_step_count=30, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile("quick")
MEMORY = 4 << 30
# In these folders workers fork the project's commands. `make chaos` has workers too, and measures how processes start.
TESTS = ("tests/unit", "tests/contract", "tests/scenario")


def has_room(folder: str | None) -> bool:
    """Return whether the folder can hold the files of runs, programs and device nodes."""
    if folder is None:
        return False
    found = os.statvfs(folder)
    return not found.f_flag & (os.ST_NOEXEC | os.ST_NODEV) and found.f_bavail * found.f_frsize > MEMORY


def pytest_configure(config: pytest.Config) -> None:
    """Thousands of collected tests stay until the end: the garbage collector does not look at them again and again."""
    gc.disable()
    if config.args == config.getini("testpaths") and has_room(memory_folder()):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", SHARED_MEMORY)  # where `tmp_path` is
    if "PYTEST_XDIST_WORKER" in os.environ and all(path.startswith(TESTS) for path in config.args):
        forked.install()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each worker imports its share of the tests first: in a new checkout their assertions are then compiled once."""
    worker, root, folders = os.environ.get("PYTEST_XDIST_WORKER"), session.config.rootpath, session.config.args
    if worker is None or folders != session.config.getini("testpaths"):
        return
    paths = sorted(path for folder in folders for path in (root / folder).rglob("test_*.py"))
    for path in paths[int(worker.removeprefix("gw")) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        with suppress(Exception, pytest.skip.Exception):  # collection reports it
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A run that skips hundreds of tests does not look like one that tried all."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.write_line(f"Not tried: {reasons.total()} tests, because")
        for line in script("check_skips").not_tried(reasons):
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that a test calls in its own process set up logging, to a stream that ends with the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        if handler not in handlers and not type(handler).__module__.startswith("_pytest."):
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def inotify() -> None:
    """For tests that see changes by inotify; without it the driver compares folders at each look."""
    if inotify_is_used_up():
        pytest.skip("this user's inotify instances are used up (fs.inotify.max_user_instances)")


@pytest.fixture
def new_interpreters() -> Iterator[None]:
    """For tests about the start of commands, their memory or their /proc: none is a fork (tests/harness/forked.py)."""
    forked.are_new.set()
    yield
    forked.are_new.clear()
