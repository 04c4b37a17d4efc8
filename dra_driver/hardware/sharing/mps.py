"""The node process's side of MPS: request a daemon, wait until it is ready, and release it later.

The MPS host (``host.py``) starts the daemon; both processes communicate through files. A process that dies between any
two steps leaves a folder, which `MpsClient.daemons` lists, and notes: repeating the call, or `MpsClient.release`,
continues.

Limits follow NVIDIA's DRA driver (``api/nvidia.com/resource/v1beta1`` ``sharing.go``): whole MiB, rounded down; a key
of the per-device limits is a UUID, or a position in the group's sorted list of UUIDs. Two different limits of one
device are refused; in that driver the order of a Go map decides.
"""

import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.config.parameters import MpsLimits
from dra_driver.core.errors import DraError, InvalidParametersError, MpsUnavailableError, StorageError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.quantity import NANO, Quantity
from dra_driver.hardware.driver_root.process import Clock, Sleep
from dra_driver.hardware.gpu.backend import ComputeMode, ComputeModes, GpuNotes
from dra_driver.hardware.sharing.mps_files import (
    MAX_DAEMONS,
    MAX_LIMIT_MIB,
    DaemonFolder,
    DaemonStatus,
    MpsDaemon,
    MpsFolders,
)
from dra_driver.hardware.sharing.timeslice import restore_compute_mode, set_compute_mode

_MIB: Final = 2**20
_FIELD: Final = "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit"
_MAX_NAMED: Final = 8


def shared_gpu_daemon(gpu: GpuUuid) -> MpsDaemon:
    """The daemon of a GPU that several claims share. It has no limits: each share has its own."""
    return MpsDaemon(id=gpu, devices=(gpu,), gpus=(gpu,))


def shared_partition_daemon(uuid: str) -> MpsDaemon:
    """The same for a MIG device."""
    return MpsDaemon(id=uuid, devices=(uuid,), gpus=())


def group_daemon_id(claim: ClaimUid, devices: Iterable[str]) -> str:
    """The id of the daemon for one claim's devices under one config; each group of a claim has another."""
    digest = hashlib.sha256(",".join(sorted(devices)).encode()).hexdigest()
    return f"{claim}-{digest[:8]}"


def group_daemon(
    claim: ClaimUid, *, gpus: Sequence[GpuUuid], partitions: Sequence[str], limits: MpsLimits
) -> MpsDaemon:
    """The daemon for the whole GPUs and MIG devices (UUIDs) of a claim that have one config. Raises
    InvalidParametersError, with the field's path, for unknown and for contradicting per-device keys."""
    devices = tuple(sorted((*gpus, *partitions)))
    return MpsDaemon(
        id=group_daemon_id(claim, devices),
        devices=devices,
        gpus=tuple(sorted(gpus)),
        default_percentage=limits.default_percentage,
        memory_limits=memory_limits(limits, devices),
    )


def memory_limits(limits: MpsLimits, devices: Sequence[str]) -> dict[str, int]:
    """MiB by device UUID: the default for all, replaced by limits for one device. ``devices`` are sorted."""
    found: dict[str, int] = {}
    if limits.default_memory is not None:
        default = whole_mib(limits.default_memory, "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit")
        found = dict.fromkeys(devices, default)
    named: dict[str, tuple[str, int]] = {}
    for key, text in limits.per_device.items():
        device = _device(key, devices)
        limit = whole_mib(text, f"{_FIELD}.{key}")
        before = named.setdefault(device, (key, limit))
        if before[1] != limit:
            raise InvalidParametersError(
                f"{_FIELD}: {before[0]!r} and {key!r} both name {device}, with {before[1]}Mi and {limit}Mi: remove one"
                " of them"
            )
        found[device] = limit
    return found


def whole_mib(text: str, field: str) -> int:
    """A quantity in whole MiB, rounded down. Raises InvalidParametersError below 1 MiB and above any GPU."""
    try:
        mib = Quantity.parse(text).nano // (_MIB * NANO)
    except ValueError as error:
        raise InvalidParametersError(f"{field}: {error}") from error
    if not 1 <= mib <= MAX_LIMIT_MIB:
        raise InvalidParametersError(f"{field}: expected 1Mi to {MAX_LIMIT_MIB // 2**20}Ti, got {text!r}")
    return mib


def _device(key: str, devices: Sequence[str]) -> str:
    if key in devices:
        return key
    if key.isascii() and key.isdigit() and len(key) <= 4 and int(key) < len(devices):
        return devices[int(key)]
    more = f" and {len(devices) - _MAX_NAMED} more" if len(devices) > _MAX_NAMED else ""
    positions = "0" if len(devices) == 1 else f"0 to {len(devices) - 1}"
    shown = key if len(key) <= 60 else f"{key[:59]}…"
    raise InvalidParametersError(
        f"{_FIELD}: {shown!r} names no device of this config: expected a position, {positions}, or one of"
        f" {', '.join(devices[:_MAX_NAMED])}{more}",
        reason="UnknownDevice",
    )


log = logging.getLogger(__name__)

HOST_GRACE_S: Final = 1.0
"""Seconds to wait for a host that is being restarted, before anything is changed."""
UNDO_S: Final = 5.0
"""Seconds that a failed call may take to restore the previous state, beyond the caller's own limit."""
LEAST_REMOVE_S: Final = 1.0
"""Seconds to remove a folder in which containers wrote, when waiting for the daemon used all of the caller's time."""
_STEP_S: Final = 0.05


class MpsDirectories(Struct, frozen=True, kw_only=True):
    """A daemon's pipes, and the ``/dev/shm`` of daemon and clients, as paths for the container runtime."""

    pipe: Path
    shm: Path


class MpsClient:
    """Requests daemons from the node's MPS host, through files below ``root``. Keeps no state. The caller holds the
    locks of a daemon's GPUs. Methods raise MpsUnavailableError, StorageError, what `ComputeModes` raises, and
    ValueError."""

    def __init__(
        self,
        root: Path,
        control: ComputeModes,
        notes: GpuNotes,
        *,
        sleep: Sleep = time.sleep,
        clock: Clock = time.monotonic,
    ) -> None:
        self._folders = MpsFolders(root)
        self._control = control
        self._notes = notes
        self._sleep = sleep
        self._clock = clock

    def ensure(self, daemon: MpsDaemon, *, within_s: float) -> None:
        """Request a daemon with exactly these limits, and wait until clients can connect. Idempotent. A daemon of other
        limits is replaced, which ends its clients' work. A failed call restores the previous state within `UNDO_S`."""
        deadline = self._clock() + within_s
        folder = self._folders.of(daemon.id)
        self._check_host(daemon, deadline)
        self._check_others(daemon)
        before = folder.read_desired()
        try:
            folder.make()
            for gpu in daemon.gpus:
                set_compute_mode(self._control, self._notes, gpu, ComputeMode.EXCLUSIVE_PROCESS)
            if before != daemon:
                folder.write_desired(daemon)
            self._wait_ready(daemon, folder, deadline)
        except DraError:
            self._undo(daemon, folder, before)
            raise
        if before != daemon:
            log.info("MPS daemon ready", extra={"daemon": daemon.id, "devices": daemon.devices})

    def release(self, daemon_id: str, gpus: Sequence[GpuUuid], *, within_s: float) -> None:
        """Stop the daemon, wait for its end, restore the compute modes of ``gpus`` and of those in its file, remove its
        folder. Idempotent, also for an unknown id and after a failure."""
        deadline = self._clock() + within_s
        folder = self._folders.of(daemon_id)
        known = folder.read_any()
        folder.release()
        while folder.read_status() is not None and self._folders.host_lives():
            if self._clock() >= deadline:
                raise MpsUnavailableError(
                    f"MPS daemon {daemon_id} did not end within {within_s:.1f} s, {_said(folder.read_status())}: look"
                    " at the log of this node's dra-driver mps-host; it is tried again",
                    reason="DaemonStuck",
                )
            self._sleep(_STEP_S)
        for gpu in sorted({*gpus, *(known.gpus if known else ())}):
            restore_compute_mode(self._control, self._notes, gpu, ComputeMode.EXCLUSIVE_PROCESS)
        self._remove(folder, deadline)
        if known is not None:
            log.info("MPS daemon gone", extra={"daemon": daemon_id})

    def daemons(self) -> tuple[str, ...]:
        return self._folders.ids()

    def daemon(self, daemon_id: str) -> MpsDaemon | None:
        return self._folders.of(daemon_id).read_any()

    def directories(self, daemon_id: str) -> MpsDirectories:
        folder = self._folders.of(daemon_id)
        status = folder.read_status()
        if status is None or not status.shm.startswith("/"):
            raise MpsUnavailableError(
                f"MPS daemon {daemon_id} has no shared memory yet: the node's dra-driver mps-host has not started it",
                reason="NotStarted",
            )
        return MpsDirectories(pipe=folder.pipe_on_host, shm=Path(status.shm))

    def _check_host(self, daemon: MpsDaemon, deadline: float) -> None:
        """Raise, before anything changes, when no host runs that would start the daemon."""
        until = min(deadline, self._clock() + HOST_GRACE_S)
        while not self._folders.host_lives():
            if self._clock() >= until:
                raise MpsUnavailableError(self._no_host(daemon), reason="HostMissing")
            self._sleep(_STEP_S)

    def _check_others(self, daemon: MpsDaemon) -> None:
        """A GPU is under one daemon at most: in compute mode EXCLUSIVE_PROCESS a second one could not open it."""
        others = [daemon_id for daemon_id in self._folders.ids() if daemon_id != daemon.id]
        if len(others) >= MAX_DAEMONS:
            raise MpsUnavailableError(
                f"{len(others)} MPS daemons exist on this node, at most {MAX_DAEMONS} are run: remove the folders"
                f" of daemons without a claim from {self._folders.daemons}"
            )
        for daemon_id in others:
            other = self._folders.of(daemon_id).read_desired()
            shared = set(other.devices).intersection(daemon.devices) if other else ()
            if shared:
                raise MpsUnavailableError(
                    f"{min(shared)} is under MPS daemon {daemon_id} already and cannot be under {daemon.id} too: it is"
                    " tried again when that one has been released",
                    reason="GpuTaken",
                )

    def _wait_ready(self, daemon: MpsDaemon, folder: DaemonFolder, deadline: float) -> None:
        while True:
            status = folder.read_status()
            alive = self._folders.host_lives()
            if alive and status is not None and status.generation == daemon.generation:
                if status.state == "ready":
                    return
                if status.state == "failed" and status.restarts > 0:
                    raise MpsUnavailableError(
                        f"MPS daemon {daemon.id} {_said(status)}; {_ADVICE}", reason="DaemonFailed"
                    )
            if self._clock() >= deadline:
                raise MpsUnavailableError(
                    f"MPS daemon {daemon.id} is not ready in time: {_said(status)}; {_ADVICE}"
                    if alive
                    else self._no_host(daemon),
                    reason="NotReady",
                )
            self._sleep(_STEP_S)

    def _no_host(self, daemon: MpsDaemon) -> str:
        return (
            f"MPS daemon {daemon.id} for {', '.join(daemon.devices)} cannot run: no dra-driver mps-host runs on this"
            f" node (no process holds the lock {self._folders.lock}). Install it (mpsHost.enabled=true"
            " of the chart), or find out why its pod on this node does not run; the kubelet tries the waiting pod again"
        )

    def _undo(self, daemon: MpsDaemon, folder: DaemonFolder, before: MpsDaemon | None) -> None:
        """Never raises, so that the caller reports the first error."""
        try:
            if before is None:
                self.release(daemon.id, daemon.gpus, within_s=UNDO_S)
            elif before != daemon:
                folder.write_desired(before)
        except DraError as error:
            log.warning("MPS daemon is not restored yet; will retry", extra={"daemon": daemon.id, "reason": str(error)})

    def _remove(self, folder: DaemonFolder, deadline: float) -> None:
        """Clients may write into the pipe folder during the removal, so a failed removal is repeated."""
        while True:
            try:
                return folder.remove(within_s=max(LEAST_REMOVE_S, deadline - self._clock()))
            except StorageError:
                if self._clock() >= deadline:
                    raise
                self._sleep(_STEP_S)


_ADVICE: Final = "the daemon's log is beside its pipes on the node, the host's is that of the pod dra-driver-mps-host"


def _said(status: DaemonStatus | None) -> str:
    if status is None:
        return "this node's dra-driver mps-host has not taken it up"
    return f"{status.state}, {status.reason}" if status.reason else status.state
