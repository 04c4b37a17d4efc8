"""Runs the node process (``plugin.py``) until a signal ends it."""

import faulthandler
import gc
import logging
import signal
import time
from queue import Empty, SimpleQueue

from dra_driver import __version__
from dra_driver.config.settings import NodeSettings
from dra_driver.node.process.plugin import NodeProcess

log = logging.getLogger(__name__)

# By then the first slices are written, which a full collection would hold up by 30 ms.
SETTLED_S = 10.0


def run(settings: NodeSettings) -> None:
    """Runs until SIGTERM or SIGINT. Raises ConfigurationError when it cannot start.

    SIGUSR2 prints the stacks of all threads on stderr, for a process that seems to hang.
    """
    # Not an Event: its lock is not reentrant, and a handler that interrupts this thread inside wait() would wait for it
    # for ever. SimpleQueue.put is safe in signal handlers.
    wanted: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: wanted.put(received))
    faulthandler.register(signal.SIGUSR2)
    begin = time.monotonic()
    facts = {"version": __version__, "node": settings.node_name, "driver": settings.driver_name}
    log.info("starting", extra=facts)
    process = NodeProcess(settings)
    process.start()
    log.info("started", extra={"seconds": round(time.monotonic() - begin, 3)})
    _wait(wanted)
    begin = time.monotonic()
    log.info("stopping; slices and prepared claims stay")
    process.stop()
    log.info("stopped", extra={"seconds": round(time.monotonic() - begin, 3)})


def _wait(wanted: SimpleQueue[int]) -> None:
    """Waits for a signal; takes the objects of the start out of garbage collection in the meantime."""
    try:
        wanted.get(timeout=SETTLED_S)
    except Empty:
        # What is there now stays: without it, each full collection would look at all modules, inside of some call.
        gc.collect()
        gc.freeze()
        wanted.get()
