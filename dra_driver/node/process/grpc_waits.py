"""Lets gRPC's server threads sleep until there is something to do: otherwise each wakes five times a second.

grpc's synchronous server waits in slices of 200 ms, between which Python looks for signals, and looks once a second
whether its server was dropped without ``stop`` (grpc/_server.py, ``_serve``;
grpc/_cython/_cygrpc/completion_queue.pyx.pxi). Signals are handled in the main thread, which waits elsewhere, and
servers of this driver are always stopped, so both are for nothing here. Calls and ``stop`` end a wait at once.

grpc changes the first interval itself where gevent is used (grpc_gevent.pyx.pxi), and both are internal: without them,
nothing happens but the wake-ups.
"""

import ctypes
import importlib
import logging
from contextlib import suppress
from typing import Final

log = logging.getLogger(__name__)

LOOK_S: Final = 600
_EXPORTED: Final = "g_interrupt_check_period_ms"
_DROPPED: Final = "_DEALLOCATED_SERVER_CHECK_PERIOD_S"


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
