"""Find NVIDIA's CDI hook on the host and its version, and build its commands.

``dlopen("libcuda.so.1")`` works in a container in one of two modes:

- *hooks*: libraries are mounted once; NVIDIA's hook creates links and runs ``ldconfig`` in the container's root. No
  container starts if the hook is missing on the host.
- *soname*: libraries are mounted under each name that programs use, in the loader's default folders. It needs no hook,
  root or writable root file system, but musl images do not find the libraries.

Rejected: LD_LIBRARY_PATH overrides the pod's, ``ldconfig`` in the container fails without root, and a script as hook
would run as host root over an untrusted file system.

Versions matter, because the hook runs as host root over the image's file system. Below `FLOOR` the update-ldcache
command follows a link out of the container (CVE-2025-23267), and enable-cuda-compat (since 1.17.5) runs with the
image's environment (CVE-2025-23266). An older or unknown version means soname mode. A command that the program does not
know is an error before 1.18.0. Source: NVIDIA/nvidia-container-toolkit, ``cmd/nvidia-cdi-hook`` v1.17.4 to v1.19.0, its
CHANGELOG, and NVIDIA's security bulletin of July 2025.
"""

import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.semver import Semver
from dra_driver.hardware.cdi.spec import Hook
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.root import DriverRoot, resolve

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
"""Run ``<path> --version`` with a root as ``/`` and return its output."""


class HookVersions:
    """Versions of hooks, cached until the file changes. Thread-safe; a read takes at most `TIMEOUT_S`."""

    def __init__(self, run: Runner | None = None) -> None:
        self._run = run or print_version
        self._lock = threading.Lock()  # guards _known
        self._known: dict[_Identity, Semver] = {}

    def read(self, root: str, path: str, here: str) -> Semver:
        """The version of the program ``path`` below ``root``; ``here`` is the file as this process sees it. Raises
        `UnknownVersionError`; the next call tries again."""
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
    """The version in the output ``<name> version <version>``. Raises `UnknownVersionError` for anything else."""
    text = printed[:MAX_OUTPUT].decode("utf-8", "replace")
    with suppress(ValueError):
        if match := _LINE.search(text):
            return Semver.parse(match[1])
    raise UnknownVersionError(
        f"its --version printed {text[:80]!a}, expected a line such as 'NVIDIA CDI Hook version 1.17.8'"
    )


def print_version(root: str, path: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """Output of ``path --version`` with ``root`` as ``/`` (packages link it dynamically, and the GPU operator's is a
    script), killed after ``timeout_s``. Raises `UnknownVersionError`."""
    command = [*process.enter_root(root), path, "--version"]
    try:
        ended = process.run(command, environment=_ENVIRONMENT, within_s=timeout_s)
    except OSError as error:
        raise UnknownVersionError(f"it cannot be started: {error.strerror}") from error
    if ended.status is None:
        stuck = "does not end even when killed" if ended.stuck else f"did not end within {timeout_s:.0f} s"
        raise UnknownVersionError(f"its --version {stuck}")
    if not ended.output:
        raise UnknownVersionError(f"its --version printed nothing and ended with status {ended.status}")
    return ended.output.encode()


CANDIDATES = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/bin/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
)
"""Host paths in order: package, GPU operator, Talos before 1.13, and the toolkit's main program, which has the hooks as
sub-commands."""

FLOOR = Semver(1, 17, 8)
"""The oldest version that is used."""
NODE_MODIFICATION = Semver(1, 18, 0)
"""The first version with ``disable-device-node-modification``, which keeps the driver's libraries from creating nodes
in the container. v1.17.8 lacks it, though ``internal/discover/hooks.go`` of v1.18.0 says "Added in v1.17.8"."""

# Must have an entry: with an empty environment runc runs a hook as host root in the container's, LD_PRELOAD included.
_ENV = ("NVIDIA_CTK_DEBUG=false",)


class CdiHook(Struct, frozen=True, kw_only=True):
    """A hook that may be used: its path on the host and its version, at least `FLOOR`."""

    path: str
    version: Semver


class HookChoice(Struct, frozen=True, kw_only=True):
    """The hook to use, None for soname mode; ``note`` says why a hook that was found or chosen is not used."""

    hook: CdiHook | None = None
    note: str | None = None


def choose_hook(root: DriverRoot, wanted: str | None, versions: HookVersions) -> HookChoice:
    """The hook for this node. ``wanted`` and errors as `find_hook`; takes at most `TIMEOUT_S`."""
    path = find_hook(root, wanted)
    if path is None:
        return HookChoice()
    if not root.shows_host:
        why = "is of unknown version: this process cannot see programs of the host, so it cannot ask for it"
        return HookChoice(note=_note(path, why))
    try:
        inside = resolve(root.root, path) or path
        version = versions.read(root.here("/"), path, root.here(inside))
    except UnknownVersionError as error:
        return HookChoice(note=_note(path, f"is of unknown version: {error}"))
    if version < FLOOR:
        return HookChoice(note=_note(path, f"is version {version}, which has CVE-2025-23267"))
    return HookChoice(hook=CdiHook(path=path, version=version))


def _note(path: str, why: str) -> str:
    return (
        f"the CDI hook {path} {why}; it is not used, and libraries are mounted under each of their names instead: "
        f"install the NVIDIA Container Toolkit {FLOOR} or newer on this node, or set --nvidia-cdi-hook-path "
        "(NVIDIA_CDI_HOOK_PATH) to 'none' to keep this mode without this message"
    )


def find_hook(root: DriverRoot, wanted: str | None = None) -> str | None:
    """Host path of the hook to use, None for soname mode. ``wanted`` is a host path, or ``none``. Raises
    `ConfigurationError` when it is missing and ``root`` shows the host's file system."""
    if wanted == "none":
        return None
    if wanted:
        if not wanted.startswith("/"):
            raise ConfigurationError(
                f"CDI hook path {wanted!r} is not an absolute path on the host (nor 'none')", reason="HookPathRelative"
            )
        if root.shows_host and not _is_program(root, wanted):
            raise ConfigurationError(
                f"CDI hook {wanted} is not an executable file on the host (checked {root.here(wanted)}), and every "
                "container would fail to start: install the NVIDIA Container Toolkit, correct the path, or set 'none'",
                reason="HookNotExecutable",
            )
        return wanted
    if not root.shows_host:  # a driver container's root does not show programs of the host
        return None
    return next((path for path in CANDIDATES if _is_program(root, path)), None)


def base_hooks(
    hook: CdiHook, links: Iterable[tuple[str, str]], folders: Iterable[str], driver_version: str
) -> tuple[Hook, ...]:
    """The hooks of the base document that ``hook`` knows. enable-cuda-compat precedes update-ldcache, which caches its
    folder."""
    hooks = [
        create_symlinks(hook.path, links),
        _hook(hook.path, "enable-cuda-compat", f"--host-driver-version={driver_version}"),
        _hook(hook.path, "update-ldcache", *(word for folder in folders for word in ("--folder", folder))),
    ]
    if hook.version >= NODE_MODIFICATION:
        hooks.append(_hook(hook.path, "disable-device-node-modification"))
    return tuple(hooks)


def create_symlinks(hook: str, links: Iterable[tuple[str, str]]) -> Hook:
    """Create each ``(target, link)`` in the container; targets are relative to the link's folder."""
    return _hook(hook, "create-symlinks", *(word for target, link in links for word in ("--link", f"{target}::{link}")))


def _hook(path: str, *args: str) -> Hook:
    program = path.rpartition("/")[2]
    prefix = (program, "hook") if program == "nvidia-ctk" else (program,)
    return Hook(hook_name="createContainer", path=path, args=(*prefix, *args), env=_ENV)


def _is_program(root: DriverRoot, inside: str) -> bool:
    try:
        path = resolve(root.root, inside)
        mode = os.lstat(root.here(path)).st_mode if path else 0
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)
