"""Make a CUDA context: ``python -m dra_driver.diagnose.hardware.cuda_probe``, with a `ClaimView` on stdin.

The program enters the view (a root with only the named mounts and device nodes, like a container), makes a context on
the first device and prints one JSON object: the code of each call by name (CUresult of cuda.h: 0 success, 2 out of
memory, 100 no device, 304 operating system call failed, 999 unknown), and the returned values.
"""

import ctypes
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from msgspec import Struct

from dra_driver.core.convert import decode_json
from dra_driver.diagnose.hardware import mounts
from dra_driver.diagnose.hardware.child import name_process

CUDA: Final = "libcuda.so.1"
# Parts of the C library that a driver library needs, kept loaded: a root with only the driver's files has none.
_C_LIBRARIES: Final = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6")
_MAX_VIEW: Final = 1 << 20


class ClaimView(Struct, frozen=True, kw_only=True):
    """The program's view. ``folder`` is an empty directory that becomes its root, "" for this process' root.

    ``files`` are pairs of source and path in the root; ``nodes`` have path, major and minor. ``library`` is opened.
    ``allocate_mib`` are sizes to allocate one by one, each freed again.
    """

    folder: str = ""
    files: tuple[tuple[str, str], ...] = ()
    nodes: tuple[tuple[str, int, int], ...] = ()
    library: str = CUDA
    allocate_mib: tuple[int, ...] = (64,)

    def enter(self) -> None:
        """Make the directory the root. Raises OSError."""
        if not self.folder:
            return
        root = Path(self.folder)
        mounts.enter()
        mounts.tmpfs(root)
        mounts.plain_dev(root / "dev")
        for path, major, minor in self.nodes:
            mounts.make_node(root / path.lstrip("/"), major, minor)
        for source, path in (*self.files, ("/proc", "/proc"), ("/sys", "/sys")):
            mounts.bind(source, root / path.lstrip("/"))
        (root / "tmp").mkdir(exist_ok=True)
        os.chroot(root)
        os.chdir("/")


class _Calls:
    """Calls of one library until the first failure."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.seen: dict[str, object] = {}

    def __call__(self, name: str, *arguments: Any, key: str = "") -> bool:
        code = int(getattr(self._library, name)(*arguments))
        self.seen[key or name] = code
        return code == 0


def run(view: ClaimView) -> dict[str, object]:
    """Enter the view and make a context. Does not raise errors of CUDA."""
    for name in _C_LIBRARIES:
        with suppress(OSError):
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    try:
        view.enter()
    except OSError as error:
        return {"error": f"cannot enter the view: {error}", "permission": isinstance(error, PermissionError)}
    try:
        calls = _Calls(ctypes.CDLL(view.library))
    except OSError as error:
        return {"error": f"cannot load {view.library}: {error}"}
    version, count = ctypes.c_int(), ctypes.c_int()
    calls("cuDriverGetVersion", ctypes.byref(version))
    calls.seen["version"] = version.value
    if calls("cuInit", 0) and calls("cuDeviceGetCount", ctypes.byref(count)):
        calls.seen["count"] = count.value
        if count.value:
            _use_device(calls, view.allocate_mib)
    return calls.seen


def _use_device(calls: _Calls, allocate_mib: tuple[int, ...]) -> None:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    raw = (ctypes.c_ubyte * 16)()
    if not calls("cuDeviceGet", ctypes.byref(device), 0):
        return
    if calls("cuDeviceGetUuid", ctypes.byref(raw), device):
        calls.seen["uuid"] = str(UUID(bytes=bytes(raw)))
    if not calls("cuCtxCreate_v2", ctypes.byref(context), 0, device):
        return
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if calls("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)):
        calls.seen |= {"free_mib": free.value >> 20, "total_mib": total.value >> 20}
    for size in allocate_mib:
        pointer = ctypes.c_uint64()
        if calls("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size << 20), key=f"cuMemAlloc {size} MiB"):
            calls("cuMemFree_v2", pointer)
    calls("cuCtxDestroy_v2", context)


def main() -> int:
    name_process()
    view = decode_json(sys.stdin.read(_MAX_VIEW), ClaimView)
    os.write(1, (json.dumps(run(view)) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
