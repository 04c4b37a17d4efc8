"""Settings of the C library and of gRPC that keep an idle node process small and asleep.

A node process makes texts of some 100 KiB (claims, resource slices) and drops them. glibc raises the size from which it
takes memory from the kernel alone with each such block that is freed (M_MMAP_THRESHOLD, mallopt(3)), up to 32 MiB; then
the texts leave holes in the heap: 20 MiB of 74 after 2,000 claims. With the size fixed at its default, a process stayed
at 61 MiB.

grpc's synchronous server waits in slices of 200 ms, between which Python looks for signals, and looks once a second
whether its server was dropped without ``stop`` (grpc/_server.py, ``_serve``;
grpc/_cython/_cygrpc/completion_queue.pyx.pxi). Signals are handled in the main thread, and servers of this driver are
always stopped. grpc changes the first interval itself for gevent (grpc_gevent.pyx.pxi). Both are internal: without
them, threads wake five times a second.
"""

import ctypes
import importlib
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

log = logging.getLogger(__name__)

LOOK_S: Final = 600
_EXPORTED: Final = "g_interrupt_check_period_ms"
_DROPPED: Final = "_DEALLOCATED_SERVER_CHECK_PERIOD_S"
M_MMAP_THRESHOLD: Final = -3
DEFAULT: Final = 128 * 1024
"""glibc's own default, in bytes (malloc/malloc.c, DEFAULT_MMAP_THRESHOLD_MIN)."""


def keep_large_blocks_apart(library: object = None) -> None:
    """Give each block of 128 KiB and more pages of its own, which go back to the kernel when it is freed.

    Call it before other threads start. Does nothing where the C library cannot do it; ``library`` is the process's own
    C library unless a test gives another one.
    """
    set_option = getattr(_of(library), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, DEFAULT)


def trimmer(library: object = None) -> Callable[[], object]:
    """What gives free pages inside the heap back when called (malloc_trim(3)), in under a millisecond."""
    trim = getattr(_of(library), "malloc_trim", None)
    return (lambda: None) if trim is None else (lambda: trim(0))


def _of(library: object) -> object:
    return ctypes.CDLL(None) if library is None else library


def sleep_long() -> bool:
    """Sets both intervals to `LOOK_S` for this process; whether that was possible. Call it before a server starts.

    For a process whose main thread makes no gRPC calls: a wait for an answer would not end at a signal.
    """
    server, interval = importlib.import_module("grpc._server"), _interval_ms()
    if interval is None or not hasattr(server, _DROPPED):
        log.debug("this version of grpc wakes its threads five times a second")
        return False
    interval.value = LOOK_S * 1000
    setattr(server, _DROPPED, float(LOOK_S))
    return True


def _interval_ms() -> ctypes.c_int | None:
    """grpc's own variable, by Cython's table of what a module exports to others; None where it is not in it."""
    find = ctypes.pythonapi.PyCapsule_GetPointer
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    with suppress(ImportError, AttributeError, KeyError, ValueError):  # the last: it is no int any more
        exported = importlib.import_module("grpc._cython.cygrpc").__pyx_capi__
        return ctypes.c_int.from_address(find(exported[_EXPORTED], b"int"))
    return None
