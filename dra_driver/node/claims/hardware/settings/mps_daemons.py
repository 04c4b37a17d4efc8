"""MPS daemons, see `sharing.mps.MpsClient`. The record of a daemon is its folder, not a GPU note."""

from collections.abc import Collection, Iterator
from functools import partial

from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.hardware.sharing.daemon import MpsDaemon
from dra_driver.node.claims.entry import Entry
from dra_driver.node.claims.hardware.deadline import Deadline
from dra_driver.node.claims.hardware.settings.setting import STEP_S, GpuSetting, ReleaseStep
from dra_driver.node.claims.planning import PreparePlan
from dra_driver.node.claims.waiting import GpuLockedError

START_S = 25.0
"""Seconds until an MPS daemon has to be ready. Starting one takes about a second, on a busy node several."""
LEAST_S = 1.0
"""Seconds that stopping a daemon takes as a rule."""


class MpsDaemonSetting(GpuSetting):
    """The daemon of a shared GPU has the GPU's UUID as id and serves several claims; others serve one claim each."""

    def apply(self, todo: PreparePlan, deadline: Deadline) -> None:
        """Start the plan's daemons and wait until they are ready."""
        for daemon in _daemons_of(todo):
            self._hardware.mps.ensure(daemon, within_s=deadline.left_s(most_s=START_S))

    def verify(self, prepared: PreparePlan, deadline: Deadline) -> None:
        """Start daemons that do not run; one that is ready takes no time."""
        for daemon in _daemons_of(prepared):
            self._hardware.mps.ensure(daemon, within_s=deadline.left_s())

    def release_steps(self, entry: Entry, deadline: Deadline) -> Iterator[ReleaseStep]:
        """Stop the claim's daemons that no other claim uses."""
        for daemon_id, gpus in self._daemons_to_stop(entry).items():
            within_s = deadline.left_s(least_s=LEAST_S)
            yield next(iter(gpus), GpuUuid("")), partial(self._hardware.mps.release, daemon_id, gpus, within_s=within_s)

    def release_without_entry(self, uid: ClaimUid, *, within_s: float) -> None:
        """Stop daemons that serve this claim alone: their ids begin with its UID."""
        for daemon in [each for each in self._hardware.mps.daemons() if each.startswith(f"{uid}-")]:
            self._hardware.mps.release(daemon, (), within_s=within_s)

    def has_orphans(self) -> bool:
        """Whether a daemon exists that no entry needs."""
        return bool(tuple(self._orphans()))

    def remove_orphans(self, locked: Collection[GpuUuid]) -> None:
        """Stop every daemon that no entry needs. A MIG device's daemon does not say which GPU it uses."""
        self._stop_orphans(locked)

    def stop_orphans_of(self, gpu: GpuUuid, locked: Collection[GpuUuid]) -> None:
        """Stop the GPU's daemons that no entry needs, and those that do not say which GPU they use."""
        self._stop_orphans(locked, gpu)

    def _stop_orphans(self, locked: Collection[GpuUuid], gpu: GpuUuid | None = None) -> None:
        mps = self._hardware.mps
        for daemon_id in self._orphans():
            daemon = mps.daemon(daemon_id)
            if gpu is not None and daemon is not None and gpu not in daemon.gpus:
                continue
            # Stopping it restores the compute mode of all its GPUs, and another claim may be about to use one of them.
            others = set(daemon.gpus if daemon else ()).difference(locked)
            # Does not wait: the call that has those locks may wait for ours.
            with self._gpu_locks.acquire(others, 0.0) as acquired:
                if not acquired:
                    raise GpuLockedError(f"orphaned MPS daemon {daemon_id} cannot be stopped: its GPUs are locked")
                mps.release(daemon_id, (), within_s=STEP_S)

    def _orphans(self) -> Iterator[str]:
        # The daemons are listed before the journal is read: an intent is in the journal before its daemon is requested,
        # so a listed daemon without an entry is orphaned, not new. (A repeated request is seen under the lock.)
        listed = self._hardware.mps.daemons()
        if listed:
            needed = {
                assigned.device.sharing.daemon.id
                for assigned in self._journal.assignments()
                if assigned.device.sharing is not None and assigned.device.sharing.daemon is not None
            }
            yield from (daemon for daemon in listed if daemon not in needed)

    def _daemons_to_stop(self, entry: Entry) -> dict[str, tuple[GpuUuid, ...]]:
        """Ids with the GPUs whose compute mode the daemon changed. A shared GPU's daemon stays while a rebuild is
        pending: claims that use it may be missing in the journal."""
        used = {
            device.sharing.daemon.id: (device.gpu_uuid, device.sharing.daemon.gpus)
            for device in reversed(entry.devices)
            if device.changes_hardware and device.sharing is not None and device.sharing.daemon is not None
        }
        return {
            daemon: gpus
            for daemon, (gpu, gpus) in used.items()
            if not (daemon == gpu and self._journal.rebuild_pending)
            and daemon not in set(self._daemons_of_others(entry.ref.uid, gpu))
        }

    def _daemons_of_others(self, uid: ClaimUid, gpu: GpuUuid) -> Iterator[str]:
        for other in self._journal.assignments(gpu):
            if other.uid != uid and other.device.sharing is not None and other.device.sharing.daemon is not None:
                yield other.device.sharing.daemon.id


def _daemons_of(todo: PreparePlan) -> list[MpsDaemon]:
    """The plan's daemons, each once."""
    daemons = [d.sharing.daemon for d in todo.devices if d.sharing is not None and d.sharing.daemon is not None]
    return list({daemon.id: daemon for daemon in daemons}.values())
