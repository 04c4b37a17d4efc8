"""Stops a component that may hang in a call to the hardware or the API server."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


def within(seconds: float, stop: Callable[[], object]) -> None:
    """Calls ``stop`` and returns after ``seconds`` even if it has not returned."""
    stopper = threading.Thread(target=stop, name="stop", daemon=True)
    stopper.start()
    stopper.join(seconds)
    if stopper.is_alive():
        log.warning(f"component did not stop within {seconds:g} s; abandoning it", extra={"component": stop})
