"""Frees prepared claims that the API server says are over and the kubelet no longer knows.

The kubelet unprepares claims itself and retries until it succeeds. Only when it lost its own record (a wiped node
directory, a pod deleted by force while the driver was away) does an entry stay, and no pod can get its device any more.

An entry is freed only when the API server said, at two looks at least `GRACE_S` apart, that the claim is gone,
replaced, not allocated, or allocated without the devices of the entry. An error is no evidence. The grace period is for
containers that still run after their pod was deleted by force: the API server does not know of them.
"""

import logging
from collections.abc import Callable

from dra_driver.core.errors import ClaimNotAllocatedError, ClaimReplacedError, DraError, HardwareError
from dra_driver.core.model.ids import ClaimUid
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.entry import AttemptToken, Entry, State
from dra_driver.node.claims.waiting import GpuLockedError
from dra_driver.node.claims.workflow.teardown import teardown

log = logging.getLogger(__name__)

GRACE_S = 600.0


class StaleClaimCollector:
    """Remembers since when which claim looks over. For one thread; claims may come and go meanwhile.

    The memory is lost with the process: after a restart the grace period begins anew.
    """

    def __init__(self, deps: ClaimDependencies, *, grace_s: float = GRACE_S) -> None:
        self._deps = deps
        self._grace_s = grace_s
        self._suspected: dict[ClaimUid, tuple[AttemptToken, float]] = {}  # the attempt, and since when on the clock

    def collect(self, stopping: Callable[[], bool] = lambda: False) -> tuple[ClaimUid, ...]:
        """Check every prepared claim once, with one API read each; return the claims freed.

        Ends early when ``stopping`` returns True.

        Raises `StorageError` when the journal cannot be read or written; claims freed until then stay freed.
        """
        entries = [entry for entry in self._deps.journal.entries() if entry.state is State.PREPARED]
        self._suspected = {entry.ref.uid: s for entry in entries if (s := self._suspected.get(entry.ref.uid))}
        freed: list[ClaimUid] = []
        for entry in entries:
            if stopping():
                break
            try:
                reason = self._why_over(entry)
            except DraError as error:
                facts = {"claim": str(entry.ref), "reason": str(error)}
                log.debug("prepared claim cannot be checked; will retry", extra=facts)
                continue
            if self._is_due(entry, reason) and self._free(entry, reason or ""):
                freed.append(entry.ref.uid)
        return tuple(freed)

    def _why_over(self, entry: Entry) -> str | None:
        """Why the claim is over, None when it is not. Raises what leaves that open."""
        try:
            claim = self._deps.reader.read(entry.ref)
        except (ClaimReplacedError, ClaimNotAllocatedError) as error:
            return str(error)
        allocated = {(result.pool, result.device, result.share_id) for result in claim.results}
        assigned = {(device.pool, device.device, device.share_id) for device in entry.devices}
        return None if assigned <= allocated else f"claim {entry.ref} is allocated to other devices now"

    def _is_due(self, entry: Entry, reason: str | None) -> bool:
        if reason is None:
            self._suspected.pop(entry.ref.uid, None)
            return False
        now = self._deps.clock.now()
        known = self._suspected.get(entry.ref.uid)
        if known is None or known[0] != entry.attempt:
            self._suspected[entry.ref.uid] = entry.attempt, now
            return False
        return now - known[1] >= self._grace_s

    def _free(self, entry: Entry, reason: str) -> bool:
        with self._deps.locks.acquire(entry.ref.uid, 0.0) as acquired:
            if not acquired:
                return False  # a call works on it, so the kubelet knows it
            try:
                if not teardown(self._deps, entry.ref.uid, only=entry.attempt):
                    return False
            except (HardwareError, GpuLockedError) as error:
                # Its state is ``unpreparing`` now, from which `recover` continues.
                log.warning("stale claim is not freed yet; will retry", extra={"reason": str(error)})
                return False
        del self._suspected[entry.ref.uid]
        self._deps.count("collected")
        log.warning("stale claim freed", extra={"claim": str(entry.ref), "reason": reason})
        return True
