"""Writes CDI files of prepared claims again after the driver's folder or its device numbers have changed.

A claim's document names device nodes by the driver root's path and by numbers that the kernel gives out when a module
is loaded (``nvidia-uvm`` and ``nvidia-caps`` have no fixed major) or a GPU is bound (``/dev/nvidia<minor>``). A driver
that was upgraded or moved while a claim was prepared, or GPUs that were bound again in another order, make the document
wrong: a container of the pod that restarts before the next prepare would not start, or would get other devices.
Containers that run are not affected.
"""

import logging
from collections.abc import Hashable, Iterator

from dra_driver.core.errors import ClaimError, DeviceLostError, DraError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.workflow.recover import MOST_S, rewrite_file

log = logging.getLogger(__name__)


class OutdatedFiles:
    """Used by one thread. A new run checks every prepared claim once, because the driver may have changed before it."""

    def __init__(self, deps: ClaimDependencies) -> None:
        self._deps = deps
        self._driver: Hashable | None = None
        self._gpus: Snapshot | None = None
        self._minors: dict[GpuUuid, int] = {}
        self._todo: frozenset[ClaimUid] = frozenset()

    def rewrite(self) -> Iterator[ClaimUid]:
        """Write the files that differ, for about `recover.MOST_S`; the others follow at the next call.

        Cheap while driver and GPUs stay the same. A claim that cannot be checked now (its GPU is locked, the driver is
        detached) is checked at the next call; one whose device is gone, when a GPU comes. Raises `StorageError`.
        """
        driver, gpus = self._deps.provider.driver_identity, self._deps.snapshot()
        if driver is None or (gpus is self._gpus and driver == self._driver and not self._todo):
            return
        minors = {gpu.uuid: gpu.minor for gpu in gpus.gpus}
        if driver != self._driver or minors.items() - self._minors.items():
            self._todo = self._deps.journal.uids()
        self._driver, self._gpus, self._minors = driver, gpus, minors
        deadline = self._deps.clock.now() + MOST_S
        for uid in sorted(self._todo):
            if self._deps.clock.now() > deadline:
                return
            changed, done = self._rewrite(uid)
            if done:
                self._todo -= {uid}
            if changed:
                self._deps.count("file-rewritten")
                yield uid

    def _rewrite(self, uid: ClaimUid) -> tuple[bool, bool]:
        """Whether the file was written, and whether the claim needs no further check."""
        try:
            return rewrite_file(self._deps, uid), True
        except (DeviceLostError, ClaimError) as error:
            log.warning("CDI file of a prepared claim stays as it is", extra={"uid": uid, "reason": error})
            return False, True
        except DraError as error:
            log.debug("CDI file of a prepared claim is checked later", extra={"uid": uid, "reason": error})
            return False, False
