"""Set up the mount namespace of a child of the MPS host, between fork and exec.

A daemon, the servers that it starts and the control program see

    /tmp/nvidia-mps      the daemon's pipes; containers see them under the same path
    /tmp/nvidia-log      the daemon's logs
    /dev/shm             the daemon's own folder of shared memory, mounted in its clients' containers too

in their own mount namespace (``unshare(2)``, ``mount_namespaces(7)``), where links in these folders are not followed.
Where the driver's root is a whole system, it becomes ``/``. So paths stay short (that of a unix socket has at most 107
characters, and the kubelet's plugin directory takes half of them), all users can reach them (servers run as their
client's user), and claims do not see each other's shared memory. Nothing is mounted outside of the namespace, so
nothing has to be unmounted.

These are raw system calls through the C library: Python has none of them before 3.12.
"""

import ctypes
import os
import signal
from pathlib import Path
from typing import Final

from msgspec import Struct, field

_TMP: Final = "/tmp"  # noqa: S108 - of the namespace, with a file system of its own
PIPE: Final = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's default
LOG: Final = "/tmp/nvidia-log"  # noqa: S108 - beside it, on the same private tmpfs
SHM: Final = "/dev/shm"  # noqa: S108 - the folder of shm_open

# linux/sched.h, linux/mount.h, linux/prctl.h
_CLONE_NEWNS: Final = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_NOSYMFOLLOW, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 32, 256, 4096, 16384, 1 << 19
# Containers also write into these folders, and daemons run as root and would follow links to any file that is mounted
# here. Kernels before 5.10 ignore the flag for links.
_OF_CONTAINERS: Final = _MS_REMOUNT | _MS_BIND | _MS_NOSUID | _MS_NODEV | _MS_NOSYMFOLLOW
_PR_SET_PDEATHSIG: Final = 1

_libc = ctypes.CDLL(None, use_errno=True)


class View(Struct, frozen=True, kw_only=True):
    """The child's view of the file system.

    ``root`` is the driver's root, or '' for this process' own. ``parent`` is the process that creates this value.
    """

    pipe: Path
    log: Path
    shm: Path
    root: str = ""
    parent: int = field(default_factory=os.getpid)

    def enter(self) -> None:
        """Mount everything; called in the child.

        A failure ends the child with status 126 and a sentence on its stderr: an exception would not reach the parent
        with its text.
        """
        try:
            die_with_parent(self.parent)
            self._mount()
        except OSError as error:
            hint = "; the MPS host must be privileged" if isinstance(error, PermissionError) else ""
            os.write(2, f"cannot set up the mount namespace for MPS: {error}{hint}\n".encode())
            os._exit(126)

    def _mount(self) -> None:
        _call(_libc.unshare(_CLONE_NEWNS), "unshare")
        _mount(None, "/", None, _MS_REC | _MS_SLAVE)  # later mounts of the host still propagate
        # Opened before the tmpfs, which may cover them, and after unshare: only mounts of the new namespace can be
        # bound.
        sources = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (self.pipe, self.log, self.shm)]
        _mount("tmpfs", self.root + _TMP, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777,size=1m")
        for path in (PIPE, LOG):
            os.mkdir(self.root + path)  # noqa: PTH102 - short and without imports, after a fork
        for source, path in zip(sources, (PIPE, LOG, SHM), strict=True):
            _mount(f"/proc/self/fd/{source}", self.root + path, None, _MS_BIND)
            _mount(None, self.root + path, None, _OF_CONTAINERS)
            os.close(source)
        if self.root:
            os.chroot(self.root)
        os.chdir("/")


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent``, its parent process, ends in any way."""
    _call(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:
        os._exit(126)  # the parent ended before the call


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    result = _libc.mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode())
    _call(result, f"mount {target}")


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
