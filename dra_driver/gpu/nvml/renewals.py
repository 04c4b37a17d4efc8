"""When the NVML session is ended because it no longer shows the node as it is.

Before a look: GPUs were bound or unbound, or the driver was replaced (``surroundings.py``). After a look: NVML counts
no GPU, or a GPU has been left out for ``LEFT_OUT_LOOKS`` looks. The latter repeats at twice the number of looks each
time, as a board that is really broken does not come back by it, and a new session may initialise GPUs again.
"""

import logging

from dra_driver.gpu.nvml.session import Session
from dra_driver.gpu.nvml.surroundings import Surroundings
from dra_driver.model.gpu import Snapshot

log = logging.getLogger(__name__)

LEFT_OUT_LOOKS = 6  # a minute at the default poll interval
MAX_LOOKS = 360  # an hour


class Renewals:
    """For one thread at a time, the one that takes a snapshot."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._left_out: frozenset[str] = frozenset()
        self._looks = 0
        self._limit = LEFT_OUT_LOOKS
        self._replaced = False

    def before_look(self) -> None:
        """End a session that is outdated. One directory listing, one small read and a search for the library, which is
        some ten calls of stat."""
        outlook = self._session.outlook()
        if outlook is None:
            return
        generation, began, now = outlook
        reason = began.outdated(now)
        if reason is None:
            self._report_library(began, now)
        elif self._session.renew(generation):
            log.info("NVML session is outdated and begins again", extra={"reason": reason})

    def after_look(self, generation: int, found: Snapshot) -> None:
        """End a session that shows no GPU, or that has missed one for long."""
        missing = frozenset(gpu.label for gpu in found.left_out)
        if not found.gpus and not missing:
            self._session.renew(generation)  # NVML without GPUs opens in milliseconds
        if missing - self._left_out or not missing:
            self._looks, self._limit = 0, LEFT_OUT_LOOKS
        self._left_out = missing
        self._looks += bool(missing)
        if self._looks >= self._limit and self._session.renew(generation):
            self._looks, self._limit = 0, min(2 * self._limit, MAX_LOOKS)
            log.info("NVML session begins again to find lost GPUs", extra={"gpus": " ".join(sorted(missing))})

    def _report_library(self, began: Surroundings, now: Surroundings) -> None:
        replaced = began.replaced(now)
        if replaced and not self._replaced:
            log.warning(
                "the driver's library was replaced while its kernel module is in use: finish the upgrade or reboot the "
                "node; the NVML session goes on with the former library",
                extra={"library": now.release, "loaded": now.module},
            )
        self._replaced = replaced
