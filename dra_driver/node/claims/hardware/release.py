"""Releases what was created for a claim, in reverse order: MPS daemons, time slices, partitions.

Released is what the claim's entry records as created for it, plus shared state (a GPU's daemon, its time slice, its
compute mode) that no other entry uses. Shared state stays while a new journal is being rebuilt, because entries are
missing; `orphans.reclaim_orphans` restores it later.

The caller holds the locks of the entry's GPUs, and removes the entry under them afterwards: of two claims that end at
once, the second one then sees that it is the last. Every step may be repeated, and finding nothing is success.
"""

import logging
from collections.abc import Iterator
from functools import partial

from dra_driver.core.errors import DeviceLostError, DraError, DriverUnavailableError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import Entry
from dra_driver.node.claims.hardware.partitions import destroy_if_owned
from dra_driver.node.claims.hardware.settings import ReleaseStep, settings_of
from dra_driver.node.claims.waiting import Deadline

log = logging.getLogger(__name__)


def release(deps: ClaimDependencies, entry: Entry, *, within_s: float, without_driver: bool = False) -> bool:
    """Run all steps, also those after a step that fails; then raise the first step's error.

    Returns False when a GPU of the claim is gone from the node: its pod does not wait for that, because the changes are
    gone with the GPU or are looked at when it is back. A GPU that does not answer but is still listed is not gone:
    `DeviceLostError`. With ``without_driver``, False also when the NVIDIA driver cannot be used: no program computes
    then, and what remains is recorded and waits for the driver.

    All steps together wait for ``within_s``; each later step still runs once, and steps that another process carries
    out get a second each. Raises `HardwareError`, `StorageError`.
    """
    first: DraError | None = None
    complete = True
    try:
        for gpu, step in _steps(deps, entry, Deadline(deps.clock, deps.clock.now() + within_s)):
            try:
                step()
            except DeviceLostError as error:
                if not _is_gone(deps, gpu):
                    first = first or error
                    continue
                complete = False
                facts = {"claim": str(entry.ref), "reason": error}
                log.warning("GPU of a claim is gone from the node; the claim ends without it", extra=facts)
            except DriverUnavailableError as error:
                if not without_driver:
                    first = first or error
                    continue
                complete = False
                facts = {"claim": str(entry.ref), "reason": error}
                log.warning("claim ends before its GPUs are restored, which waits for the NVIDIA driver", extra=facts)
            except DraError as error:
                first = first or error
    finally:
        if any(device.partition is not None for device in entry.devices):
            require_hardware(deps).changed()
    if first is not None:
        raise first
    return complete


def _steps(deps: ClaimDependencies, entry: Entry, deadline: Deadline) -> Iterator[ReleaseStep]:
    """Computed one by one, because each gets the time that the steps before it have left."""
    for setting in reversed(settings_of(deps)):
        yield from setting.release_steps(entry, deadline)
    mig = require_hardware(deps).mig
    for device in reversed(entry.devices):
        if device.changes_hardware and device.partition is not None and device.partition.created_by_driver:
            destroy = partial(destroy_if_owned, mig, device.partition, within_s=deadline.left_s())
            yield device.gpu_uuid, destroy


def _is_gone(deps: ClaimDependencies, gpu: GpuUuid) -> bool:
    """Whether the node's inventory has no such GPU. While no GPU at all can be read, none counts as gone."""
    snapshot = deps.snapshot()
    return bool(snapshot.gpus or snapshot.left_out) and snapshot.gpu_by_uuid(gpu) is None
