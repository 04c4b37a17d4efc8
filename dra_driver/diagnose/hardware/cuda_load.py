"""Load a GPU for the probes of a first GPU: ``python -m dra_driver.diagnose.hardware.cuda_load``, and its caller.

The program gets a `Load` as one JSON line on stdin and makes a context on the first device. When its work has begun,
it prints the code of each call (CUresult of cuda.h) as one JSON line. It ends with the work or with its stdin. Its
kernels are PTX, which the driver compiles: no CUDA toolkit is needed.
"""

import ctypes
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Final, Self, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.convert import decode_json
from dra_driver.diagnose.hardware.child import name_process, own_module, say
from dra_driver.hardware.sharing.control import die_with_parent

READY_S: Final = 30.0
_END_S: Final = 5.0
_HANDLE_BYTES: Final = 64  # CU_IPC_HANDLE_SIZE
_PTX: Final = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 span) {
    .reg .u64 %begin, %now, %span;
    .reg .pred %more;
    ld.param.u64 %span, [span];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %more, %now, %span;
    @%more bra again;
    ret;
}
.visible .entry poke(.param .u64 address) {
    .reg .u64 %address;
    .reg .u32 %value;
    ld.param.u64 %address, [address];
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
\0"""
_NOWHERE: Final = 0x10  # no allocation is at this address


class Load(Struct, frozen=True, kw_only=True):
    """Allocate ``mib``, or map the buffer of ``handle``; then run ``kernel`` ("spin", "poke", "" for none) for
    ``busy_ms`` every ``period_s`` (0: without a pause) until ``seconds`` have passed. ``share`` prints a handle of the
    buffer, which another process can map."""

    library: str
    parent: int = 0
    kernel: str = ""
    busy_ms: float = 20.0
    period_s: float = 0.0
    seconds: float = 60.0
    mib: int = 0
    share: bool = False
    handle: str = ""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * _HANDLE_BYTES),)


class CudaLoadProcess:
    """A context manager with a running program. ``started`` has its codes, or ``error``."""

    def __init__(self, load: Load, environment: Mapping[str, str], prepare: Callable[[], object] | None = None) -> None:
        self._process = subprocess.Popen(
            own_module("cuda_load"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            preexec_fn=prepare,  # noqa: PLW1509 - the child of a check has only one thread
        )
        self.pid = self._process.pid
        self._output = cast("IO[bytes]", self._process.stdout)
        source = cast("IO[bytes]", self._process.stdin)
        source.write(msgspec.json.encode(replace(load, parent=os.getpid())) + b"\n")
        source.flush()
        self.started = self.next_line(READY_S)

    def next_line(self, within_s: float) -> dict[str, Any]:
        """The next JSON object that the program prints, or ``error``."""
        if not select.select([self._output], [], [], within_s)[0]:
            return {"error": f"the CUDA program printed nothing within {within_s:.0f} s"}
        try:
            answer = json.loads(self._output.readline())
        except ValueError:
            return {"error": f"the CUDA program ended with status {self._process.wait(_END_S)}"}
        return answer if isinstance(answer, dict) else {"error": f"the CUDA program printed {answer!r:.80}"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(_END_S)


def work(load: Load) -> None:
    library = ctypes.CDLL(load.library)
    codes: dict[str, object] = {}

    def call(name: str, *arguments: Any) -> None:
        codes[name] = int(getattr(library, name)(*arguments))
        if codes[name]:
            raise _RefusedError

    try:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        _hold(load, call, codes)
        if load.kernel:
            module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
            call("cuModuleLoadData", ctypes.byref(module), _PTX)
            call("cuModuleGetFunction", ctypes.byref(kernel), module, load.kernel.encode())
            if load.kernel == "spin":  # a fault ends the context: only its code is printed
                _launch(call, kernel, 1000)
                say({"codes": codes})
            _repeat(load, lambda span: _launch(call, kernel, span))
            return
    except _RefusedError:
        failed = next(name for name, code in codes.items() if code)
        codes["error"] = f"{failed} failed with code {codes[failed]}"
    say({"codes": codes} | {key: codes.pop(key) for key in ("error", "handle") if key in codes})
    if "error" not in codes:
        time.sleep(load.seconds)


class _RefusedError(Exception):
    """A call of CUDA failed; ``codes`` has its code."""


def _hold(load: Load, call: Callable[..., None], codes: dict[str, object]) -> None:
    pointer, handle = ctypes.c_uint64(), _Handle()
    if load.handle:
        ctypes.memmove(ctypes.byref(handle), bytes.fromhex(load.handle), _HANDLE_BYTES)
        call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, 1)  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    elif load.mib:
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(load.mib << 20))
    if load.share:
        call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        codes["handle"] = bytes(handle.reserved).hex()


def _launch(call: Callable[..., None], kernel: ctypes.c_void_p, value: int) -> None:
    argument = ctypes.c_uint64(value)
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p))
    call("cuLaunchKernel", kernel, *(ctypes.c_uint(1),) * 6, ctypes.c_uint(0), None, arguments, None)
    call("cuCtxSynchronize")


def _repeat(load: Load, launch: Callable[[int], None]) -> None:
    if load.kernel == "poke":
        launch(_NOWHERE)
        return
    end = time.monotonic() + load.seconds
    while time.monotonic() < end:
        launch(int(load.busy_ms * 1e6))
        time.sleep(load.period_s)


def main() -> int:
    name_process()
    load = decode_json(sys.stdin.readline(), Load)
    die_with_parent(load.parent)
    threading.Thread(target=_end_with_stdin, name="stdin", daemon=True).start()
    try:
        work(load)
    except OSError as error:
        say({"error": f"cannot load {load.library}: {error}"})
    return 0


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
