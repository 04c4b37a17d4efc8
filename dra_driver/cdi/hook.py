"""Find NVIDIA's CDI hook on the host, which adds libraries to the container's linker cache.

There are two methods to make ``dlopen("libcuda.so.1")`` work in a container:

- *hooks*: libraries are mounted once, and NVIDIA's hook creates links and runs ``ldconfig`` in the container's root.
  This is the better one, but no container starts when the hook is missing on the host, so it is used only when the hook
  was found.
- *soname*: libraries are mounted under each name that programs use, in the loader's default folders. This needs nothing
  on the host and works without root and with a read-only root file system, but not for musl images.

Rejected: LD_LIBRARY_PATH overrides that of the pod, ``ldconfig`` inside the container fails without root, and a script
as hook would run as host root over an untrusted file system.

Source: NVIDIA Container Toolkit, ``nvidia-cdi-hook`` (commands create-symlinks and update-ldcache, present in all
versions; later commands are not used because the host's version is unknown and old binaries fail on an unknown
command).
"""

import os
import stat
from collections.abc import Iterable

from dra_driver.cdi.root import DriverRoot, resolve
from dra_driver.cdi.spec import Hook
from dra_driver.errors import ConfigurationError

CANDIDATES = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
)
"""Host paths in order: package, GPU operator, and the toolkit's main program, which has the hooks as sub-commands."""

# Never empty: runc runs a hook without an environment as host root with the container's environment, LD_PRELOAD too.
_ENV = ("NVIDIA_CTK_DEBUG=false",)


def find_hook(root: DriverRoot, wanted: str | None = None) -> str | None:
    """Host path of the hook to use, None for soname mode.

    ``wanted`` is the administrator's choice (a host path, or ``none`` to switch hooks off). It is checked when
    ``root`` shows the host's file system, and else used unchecked. Raises `ConfigurationError` when it is missing.
    """
    if wanted == "none":
        return None
    if wanted:
        if not wanted.startswith("/"):
            raise ConfigurationError(f"CDI hook path {wanted!r} is not an absolute path on the host (nor 'none')")
        if root.shows_host and not _is_program(root, wanted):
            raise ConfigurationError(
                f"CDI hook {wanted} is not an executable file on the host (checked {root.here(wanted)}), and every "
                "container would fail to start: install the NVIDIA Container Toolkit, correct the path, or set 'none'"
            )
        return wanted
    if not root.shows_host:  # a driver container's root does not show programs of the host
        return None
    return next((path for path in CANDIDATES if _is_program(root, path)), None)


def create_symlinks(hook: str, links: Iterable[tuple[str, str]]) -> Hook:
    """A hook that makes each ``(target, link)`` in the container; targets are relative to the link's folder."""
    return _hook(hook, "create-symlinks", *(word for target, link in links for word in ("--link", f"{target}::{link}")))


def update_ldcache(hook: str, folders: Iterable[str]) -> Hook:
    """A hook that adds ``folders`` to the container's linker cache."""
    return _hook(hook, "update-ldcache", *(word for folder in folders for word in ("--folder", folder)))


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
