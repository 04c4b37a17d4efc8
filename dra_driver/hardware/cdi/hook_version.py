"""Ask NVIDIA's hook for its version: ``nvidia-cdi-hook --version`` or ``nvidia-ctk --version``.

Both print ``<name> version <version>``, then often a line with the commit. Source: NVIDIA/nvidia-container-toolkit
d34b3046, ``cmd/nvidia-cdi-hook/main.go`` and ``internal/info/version.go``; a build without a version prints
``unknown``.

The program is one of the host: below a driver root other than ``/`` it runs with that root as ``/``, because packages
link it dynamically and the GPU operator installs a shell script that calls the program by its path on the host.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from dra_driver.core.semver import Semver
from dra_driver.hardware.driver_root.enter import enter

TIMEOUT_S: Final = 3.0
"""The real program answers in 20 ms; a cold disk or a loaded node takes longer."""
MAX_OUTPUT: Final = 4096
_LINE: Final = re.compile(r"^[A-Za-z][A-Za-z ]{0,63} version v?([0-9][0-9A-Za-z.+-]{0,63})\s*$", re.MULTILINE)
_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})


class UnknownVersionError(Exception):
    """The version cannot be read; the text is a sentence without the path."""


class _Identity(Struct, frozen=True, kw_only=True):
    """A file at one moment. ``modified_ns`` alone would miss a file that is replaced by one of the same time."""

    root: str
    path: str
    inode: int
    size: int
    modified_ns: int


Runner = Callable[[str, str], bytes]
"""Runs ``<path> --version`` with a root as ``/`` and returns what it prints."""


class HookVersions:
    """Versions of hooks, kept as long as the file does not change. Thread-safe; a read takes at most `TIMEOUT_S`."""

    def __init__(self, run: Runner | None = None) -> None:
        self._run = run or print_version
        self._lock = threading.Lock()  # guards _known
        self._known: dict[_Identity, Semver] = {}

    def read(self, root: str, path: str, here: str) -> Semver:
        """The version of the program ``path`` below ``root``; ``here`` is the file as this process sees it.

        Raises `UnknownVersionError`. A failure is not kept: a later call tries again.
        """
        try:
            status = os.stat(here)  # noqa: PTH116
        except OSError as error:
            raise UnknownVersionError(f"it cannot be read: {error.strerror}") from error
        key = _Identity(root=root, path=path, inode=status.st_ino, size=status.st_size, modified_ns=status.st_mtime_ns)
        with self._lock:
            if key in self._known:
                return self._known[key]
        version = parse_version(self._run(root, path))
        with self._lock:
            self._known = {key: version}
        return version


def parse_version(printed: bytes) -> Semver:
    """The version in what the program printed. Raises `UnknownVersionError` for anything else."""
    text = printed[:MAX_OUTPUT].decode("utf-8", "replace")
    match = _LINE.search(text)
    try:
        if match is not None:
            return Semver.parse(match[1])
    except ValueError:
        pass
    shown = ascii(text[:80])
    raise UnknownVersionError(
        f"its --version printed {shown}, expected a line such as 'NVIDIA CDI Hook version 1.17.8'"
    )


def print_version(root: str, path: str) -> bytes:
    """What ``path --version`` prints, at most `MAX_OUTPUT` bytes. Raises `UnknownVersionError`.

    The program is killed with its children after `TIMEOUT_S`, and when it prints more than that.
    """
    try:
        process = subprocess.Popen(
            [*enter(root), path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(_ENVIRONMENT),
            start_new_session=True,
        )
    except OSError as error:
        raise UnknownVersionError(f"it cannot be started: {error.strerror}") from error
    late: list[bool] = []

    def stop() -> None:
        if process.returncode is None:
            late.append(True)
            _kill(process.pid)

    timer = threading.Timer(TIMEOUT_S, stop)
    timer.name = "hook-version-limit"
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None  # noqa: S101 - for the type checker; Popen was given PIPE
        with process.stdout as stream:
            printed = stream.read(MAX_OUTPUT)
        _kill(process.pid)  # a child that holds the pipe, or a program that prints without end
        status = process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise UnknownVersionError("its --version does not end even when killed") from error
    finally:
        timer.cancel()
    if late:
        raise UnknownVersionError(f"its --version did not end within {TIMEOUT_S:.0f} s")
    if not printed:
        raise UnknownVersionError(f"its --version printed nothing and ended with status {status}")
    return printed


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
