"""Takes back what was made of GPUs for a claim, in reverse: MPS daemons, time slices, partitions.

Owns what may go: what this claim's entry says was made for it, and of what several claims share (a GPU's daemon, its
time slice, its compute mode) what no other entry has to do with; nothing, while a new journal is not
rebuilt and entries are missing: then it is left to `settle`. Refuses to know why, and what comes before and after
(`teardown`). The caller holds the locks of the entry's GPUs, and forgets the entry under them when this is done: of two
claims that end at once the second one then sees that it is the last.

Every step may be repeated, and what is gone already is success, whoever removed it.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial

from dra_driver.claims.dependencies import ClaimDependencies, HardwareDependencies
from dra_driver.claims.entry import AssignedDevice, Entry
from dra_driver.claims.hardware.orphans import uses_strategy
from dra_driver.claims.hardware.ownership import destroy_if_owned
from dra_driver.errors import CommandError, DeviceLostError, DraError, DriverUnavailableError
from dra_driver.model.ids import ClaimUid, GpuUuid
from dra_driver.model.terms import Strategy

log = logging.getLogger(__name__)

Step = Callable[[], None]

LEAST_S = 1.0
"""What the end of a daemon or nvidia-smi takes as a rule."""


def release(deps: ClaimDependencies, entry: Entry, *, within_s: float, without_driver: bool = False) -> bool:
    """Do all of it, also what comes after a step that fails; then raise the first step's error.

    False when a GPU is gone from the node, so that what was made of it is gone as well or will be looked at when it is
    back: a pod does not have to wait for that with its end. A GPU that fails to answer and is still listed is not gone:
    `DeviceLostError`, as for any other failure. With ``without_driver``, False also when the driver cannot be used: no
    program computes then, and whatever there is to undo is noted and waits for the driver.

    All steps together wait for ``within_s``; after that each is still tried once, and `LEAST_S` is left for what
    another process has to do. Raises `HardwareError`, `StorageError`.
    """
    hardware = deps.require_hardware()
    first: DraError | None = None
    answers = True
    try:
        for gpu, step in _steps(deps, hardware, entry, deps.clock.now() + within_s):
            try:
                step()
            except DeviceLostError as error:
                if not _is_gone(deps, gpu):
                    first = first or error
                    continue
                answers = False
                log.warning(
                    "a GPU is lost, and what a claim had of it", extra={"claim": str(entry.ref), "reason": error}
                )
            except DriverUnavailableError as error:
                if not without_driver:
                    first = first or error
                    continue
                answers = False
                facts = {"claim": str(entry.ref), "reason": error}
                log.warning("a claim goes before its GPUs can be put right, which waits for the driver", extra=facts)
            except DraError as error:
                first = first or error
    finally:
        if any(device.partition is not None for device in entry.devices):
            hardware.changed()
    if first is not None:
        raise first
    return answers


def _steps(
    deps: ClaimDependencies, hardware: HardwareDependencies, entry: Entry, deadline: float
) -> Iterator[tuple[GpuUuid, Step]]:
    """With the GPU that each is about, and the time that the ones before it have left."""

    def left_s(least_s: float = 0.0) -> float:
        return max(least_s, deadline - deps.clock.now())

    devices = [device for device in reversed(entry.devices) if device.changes_hardware]
    for daemon_id, gpus in _daemons_to_end(deps, entry.ref.uid, devices).items():
        yield next(iter(gpus), GpuUuid("")), partial(hardware.mps.release, daemon_id, gpus, within_s=left_s(LEAST_S))
    for gpu in _slices_to_reset(deps, entry.ref.uid, devices):
        yield gpu, partial(_reset_slice, hardware, gpu, left_s(LEAST_S))
    for device in devices:
        if device.partition is not None and device.partition.created_by_driver:
            yield device.gpu_uuid, partial(destroy_if_owned, deps, device.partition, within_s=left_s())


def _reset_slice(hardware: HardwareDependencies, gpu: GpuUuid, within_s: float) -> None:
    """A pod does not have to wait with its end for an nvidia-smi that is missing or hangs: the note stays, `settle`
    tries again, and nobody is given the GPU before that worked."""
    try:
        hardware.slicer.reset(gpu, within_s=within_s)
    except CommandError as error:
        log.warning("the time slice of a GPU is not reset yet", extra={"gpu": gpu, "reason": str(error)})


def _is_gone(deps: ClaimDependencies, gpu: GpuUuid) -> bool:
    """Whether the node's inventory has no such GPU. While nothing at all can be read, nothing is known to be gone."""
    snapshot = deps.snapshot()
    return bool(snapshot.gpus or snapshot.left_out) and snapshot.gpu_by_uuid(gpu) is None


def _daemons_to_end(
    deps: ClaimDependencies, uid: ClaimUid, devices: list[AssignedDevice]
) -> dict[str, tuple[GpuUuid, ...]]:
    """Daemons of the claim that no other one uses, with the GPUs whose compute mode they changed."""
    own = {
        device.sharing.daemon.id: (device.gpu_uuid, device.sharing.daemon.gpus)
        for device in devices
        if device.sharing is not None and device.sharing.daemon is not None
    }
    return {
        daemon: gpus
        for daemon, (gpu, gpus) in own.items()
        if not (daemon == gpu and deps.journal.rebuild_pending) and daemon not in set(_others_daemons(deps, uid, gpu))
    }


def _others_daemons(deps: ClaimDependencies, uid: ClaimUid, gpu: GpuUuid) -> Iterator[str]:
    for assigned in deps.journal.assignments(gpu):
        if assigned.uid != uid and assigned.device.sharing is not None and assigned.device.sharing.daemon is not None:
            yield assigned.device.sharing.daemon.id


def _slices_to_reset(deps: ClaimDependencies, uid: ClaimUid, devices: list[AssignedDevice]) -> Iterator[GpuUuid]:
    sliced = (d.gpu_uuid for d in devices if d.sharing is not None and d.sharing.strategy is Strategy.TIME_SLICING)
    for gpu in dict.fromkeys(sliced):
        others = tuple(assigned for assigned in deps.journal.assignments(gpu) if assigned.uid != uid)
        if not deps.journal.rebuild_pending and not uses_strategy(others, Strategy.TIME_SLICING):
            yield gpu
