"""``dra-driver kubelet-plugin``: read the settings, tune the process and run it."""

import argparse
import ctypes
import importlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dra_driver.config.options import add_flags
from dra_driver.config.settings import load_node_settings, node_flags

log = logging.getLogger(__name__)

LOOK_S: Final = 600
_EXPORTED: Final = "g_interrupt_check_period_ms"
_DROPPED: Final = "_DEALLOCATED_SERVER_CHECK_PERIOD_S"
M_MMAP_THRESHOLD: Final = -3
DEFAULT: Final = 128 * 1024
"""glibc's own default, in bytes (malloc/malloc.c, DEFAULT_MMAP_THRESHOLD_MIN)."""
DESCRIPTION = """\
Publish this node's GPUs as ResourceSlices and prepare claims for its kubelet.

Each flag can also be set by the environment variable in brackets; the flag takes precedence. The process runs until
SIGTERM. A wrong setting or directory ends it immediately with status 2 and an error message. It waits for a missing
NVIDIA driver or API server; /readyz reports the missing ones.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, node_flags())


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM and end the process. Raises ConfigurationError if it cannot start."""
    settings = load_node_settings(vars(args), os.environ)
    from dra_driver.core.telemetry import logs

    logs.configure(settings.log_format, settings.log_level)
    # gRPC's core would write lines in its own format to stderr; its failures are also raised as exceptions here.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    keep_large_blocks_apart()
    sleep_long()
    from dra_driver.node.process import plugin

    plugin.run(settings)
    logging.shutdown()
    # Everything is closed at this point. A normal exit would wait for worker threads; one that hangs in a call to the
    # API server or the hardware would delay it beyond the pod's grace period.
    os._exit(0)


def keep_large_blocks_apart(library: object = None) -> None:
    """Give each block of 128 KiB and more separate pages, which return to the kernel when it is freed.

    glibc raises that size with each such block that is freed (M_MMAP_THRESHOLD, mallopt(3)), so texts of some 100 KiB
    leave holes in the heap: 20 MiB of 74 after 2,000 claims. With the default fixed, a process stayed at 61 MiB. Call
    it before other threads start; does nothing with another C library. ``library`` is for tests.
    """
    set_option = getattr(_of(library), "mallopt", None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, DEFAULT)


def trimmer(library: object = None) -> Callable[[], object]:
    """A function that returns free pages inside the heap to the kernel (malloc_trim(3)), in under a millisecond."""
    trim = getattr(_of(library), "malloc_trim", None)
    return (lambda: None) if trim is None else (lambda: trim(0))


def _of(library: object) -> object:
    return ctypes.CDLL(None) if library is None else library


def sleep_long() -> bool:
    """Set two intervals of grpc to `LOOK_S`; return whether that was possible. Call it before a server starts.

    grpc's synchronous server waits in slices of 200 ms to check for signals, and checks once a second whether its
    server was dropped without ``stop`` (grpc/_server.py, ``_serve``; grpc/_cython/_cygrpc/completion_queue.pyx.pxi).
    This driver handles signals in the main thread, which must make no gRPC calls, and always stops servers. grpc
    itself changes the first interval for gevent (grpc_gevent.pyx.pxi). Both are internal.
    """
    server, interval = importlib.import_module("grpc._server"), _interval_ms()
    if interval is None or not hasattr(server, _DROPPED):
        log.debug("this version of grpc wakes its threads five times a second")
        return False
    interval.value = LOOK_S * 1000
    setattr(server, _DROPPED, float(LOOK_S))
    return True


def _interval_ms() -> ctypes.c_int | None:
    """grpc's variable, from Cython's table of exports; None if the table lacks it."""
    find = ctypes.pythonapi.PyCapsule_GetPointer
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    with suppress(ImportError, AttributeError, KeyError, ValueError):  # ValueError: its type is no longer int
        exported = importlib.import_module("grpc._cython.cygrpc").__pyx_capi__
        return ctypes.c_int.from_address(find(exported[_EXPORTED], b"int"))
    return None
