"""Chooses the GPUs that this process serves, NVML's or simulated ones, with their files and control tools.

Snapshots are used in ``inventory_publisher.py``; ``node/claims/`` decides when a GPU is changed.

A GPU does not record who created an instance (MIG UUIDs are derived from GPU and instance ids and repeat), so
`OwnedBackend` compares it with the journal. The journal is read before and after the hardware: an intent is noted
before an instance is created and removed after it is destroyed. An instance that is in neither reading is foreign,
whatever this or another node process (a rolling update) did in between.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ConfigurationError, DetachedError, DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.cdi import DriverRoot
from dra_driver.hardware.driver_root.search import Detector, RootSource
from dra_driver.hardware.gpu.backend import GpuBackend, GpuNotes
from dra_driver.hardware.gpu.holders import GpuHolders
from dra_driver.hardware.gpu.nvml.listings import InstanceReader
from dra_driver.hardware.mig.manager import CreationWatch, MigManager
from dra_driver.hardware.sharing.mps import MpsClient
from dra_driver.hardware.sharing.timeslice import Smi, TimeSlicer
from dra_driver.node.claims import HardwareDependencies
from dra_driver.node.process.gpu_changes import GpuChangeTracker, TrackedGpuControl

if TYPE_CHECKING:
    from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
import threading

from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import PartitionId
from dra_driver.hardware.gpu.backend import MIG_MODE, Backend
from dra_driver.node.claims import Journal

SIMULATED_ROOT = "simulated-root"
KERNEL_DEVICES = "/proc/devices"
SIMULATED_STATE = "simulated-gpus.json"
MPS = "mps"
"""The folder, below the driver's own, that the node process and ``dra-driver mps-host`` share."""


class Hardware(Struct, frozen=True, kw_only=True):
    """GPUs and the files that belong to them. ``renew_root`` brings a simulated driver root up to date.

    ``host`` shows the host's ``/`` where the driver root may be another one. ``host_dev`` is the host's ``/dev`` as
    this process sees it, None to leave it alone; ``has_tools``: the driver root is one of a real driver. ``procs`` are
    proc file systems in which the node's processes may be visible, best first. ``faulty`` are simulated GPUs, which can
    be made ill. ``changes`` tracks changes of MIG mode and partitions while they run.
    """

    backend: GpuBackend
    root: RootSource
    proc_devices: str
    host: DriverRoot | None = None
    proc_driver: str = "/proc/driver"
    host_dev: str | None = None
    has_tools: bool = False
    renew_root: Callable[[], None] = lambda: None
    procs: Callable[[], Iterable[Path]] = tuple
    faulty: "SimulatedBackend | None" = None
    changes: GpuChangeTracker | None = None

    def tools(
        self,
        notes: GpuNotes,
        mps: Path,
        changed: Callable[[], None],
        snapshot: Callable[[], Snapshot],
        watch: CreationWatch | None = None,
    ) -> HardwareDependencies:
        """The tools with which ``node/claims/`` changes GPUs. ``mps`` is the folder shared with the MPS host; ``watch``
        is told which partitions a GPU in use did not let them create."""

        def minor(uuid: str) -> int | None:
            gpu = snapshot().gpu_by_uuid(GpuUuid(uuid))
            return None if gpu is None else gpu.minor

        control = self.backend if self.changes is None else TrackedGpuControl(self.backend, self.changes)
        return HardwareDependencies(
            mig=MigManager(control, notes, holders=GpuHolders(self.procs, minor), watch=watch),
            slicer=TimeSlicer(Smi(self._root_in_use), self.backend, notes),
            mps=MpsClient(mps, self.backend, notes),
            changed=changed,
            fabric=self.backend.fabric,
        )

    def _root_in_use(self) -> str:
        """Where the driver's programs are. Raises DetachedError: they would open the driver that was given up."""
        if (reason := self.backend.detached) is not None:
            raise DetachedError(reason)
        return self.root().here("/")


def choose(settings: NodeSettings, plugin_dir: Path, changes: GpuChangeTracker | None = None) -> Hardware:
    """The hardware of ``settings``, whose changes ``changes`` tracks.

    Raises ConfigurationError for a spec that cannot be read, when the simulated GPUs' driver root cannot be written,
    and for a driver root on the host without one here.

    Imports only what is used: NVML's bindings or the catalogue of models.
    """
    if settings.simulate is not None:
        return _simulated(settings.simulate, settings.node_name, plugin_dir, settings.host_dev, changes)
    from dra_driver.hardware.gpu.nvml.backend import NvmlBackend  # noqa: PLC0415 - 6 MB that simulated GPUs do not need

    dev_root, host_dev_root = settings.dev_root or "", settings.dev_root_on_host or ""
    root: RootSource
    nvml_root: str | Callable[[], str]
    host: DriverRoot | None
    if settings.driver_root is None:
        if settings.driver_root_on_host is not None:
            raise ConfigurationError(
                "--driver-root-on-host (DRIVER_ROOT_ON_HOST) is set without --driver-root (DRIVER_ROOT): set both to "
                "the same folder, as the host and as this process see it, or neither to have the driver searched"
            )
        root = Detector(settings.host_root, dev_root=dev_root, host_dev_root=host_dev_root).current
        host, nvml_root = DriverRoot(root=settings.host_root, host_root="/"), lambda: root().here("/")
    else:
        given = DriverRoot.locate(
            settings.driver_root,
            host_root=settings.driver_root_on_host or _on_host(settings.driver_root, settings.host_root),
            dev_root=dev_root,
            host_dev_root=host_dev_root,
        )
        host, nvml_root, root = None, settings.driver_root, lambda: given
    return Hardware(
        backend=NvmlBackend(driver_root=nvml_root, reads_instances=InstanceReader(plugin_dir / "instances.lock")),
        root=root,
        host=host,
        proc_devices=settings.proc_devices,
        host_dev=host_dev(settings),
        has_tools=_is_kernels(settings),
        procs=partial(_procs, settings.host_root, root),
        changes=changes,
    )


def _on_host(driver_root: str, host_root: str) -> str:
    """A driver root at or below the host's root as the host sees it; "" for any other, which both see alike."""
    seen, root = Path(driver_root), Path(host_root)
    return str(Path("/") / seen.relative_to(root)) if seen.is_relative_to(root) else ""


def _procs(host_root: str, root: RootSource) -> Iterator[Path]:
    """Below the host's root, then below the driver's (a driver container runs in the host's PID namespace), then this
    process' own, which shows the node's processes outside of a container only."""
    if host_root != "/":
        yield Path(host_root) / "proc"
    with suppress(DriverUnavailableError):
        yield Path(root().here("/proc"))
    yield Path("/proc")


def _is_kernels(settings: NodeSettings) -> bool:
    """Whether device numbers are those of this machine's kernel, and not a test's."""
    return settings.proc_devices == KERNEL_DEVICES


def host_dev(settings: NodeSettings, own: str = "/dev") -> str | None:
    """The host's ``/dev`` as this process sees it; None to leave it alone. ``own`` is this process' own.

    A pod has its own unless the host's is mounted there. Where the host's root is visible, a difference shows.
    """
    below = Path(settings.host_root) / "dev"
    if settings.host_dev is not None:
        return settings.host_dev
    if not _is_kernels(settings):
        return None
    try:
        return str(below) if below.is_dir() and not below.samefile(own) else own
    except OSError:
        return own


def _simulated(
    spec: str, node_name: str, plugin_dir: Path, host_dev: str | None, changes: GpuChangeTracker | None
) -> Hardware:
    """Simulated GPUs with a driver root below the driver's own directory, which host and container see alike.

    Their state is kept beside it: like that of real GPUs it outlives the process.
    """
    from dra_driver.hardware.gpu.simulated import root as simulated_root  # noqa: PLC0415
    from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend  # noqa: PLC0415

    folder = plugin_dir / SIMULATED_ROOT

    def written(snapshot: Snapshot) -> None:
        simulated_root.write(folder, snapshot)

    backend = SimulatedBackend.from_spec(spec, node_name, state_file=plugin_dir / SIMULATED_STATE, on_change=written)
    try:
        written(backend.snapshot())
    except StorageError as error:
        raise ConfigurationError(f"cannot start without a driver root: {error}") from error
    root = DriverRoot(root=str(folder), dev_root=str(folder))
    return Hardware(
        backend=backend,
        root=lambda: root,
        proc_devices=str(folder / "proc" / "devices"),
        proc_driver=str(folder / "proc" / "driver"),
        host_dev=host_dev,
        renew_root=backend.announce,
        faulty=backend,
        changes=changes,
    )


class OwnedBackend:
    """A ``gpu.backend.Backend`` that marks what this driver created. Thread-safe.

    Call ``use_journal`` before the first snapshot.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()  # guards _journal
        self._journal: Journal | None = None

    def use_journal(self, journal: Journal) -> None:
        """Compare with this journal from now on; before that, every instance counts as foreign."""
        with self._lock:
            self._journal = journal

    def open(self) -> None:
        self._backend.open()

    def close(self) -> None:
        self._backend.close()

    def wait_for_event(self, timeout_s: float) -> bool:
        return self._backend.wait_for_event(timeout_s)

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. Raises DriverUnavailableError also when the journal cannot be read: the published
        devices then stay, and this driver's own instances are not taken for foreign ones."""
        with self._lock:
            journal = self._journal
        if journal is None:
            return self._backend.snapshot()
        try:
            before = _own(journal)
            snapshot = self._backend.snapshot()
            after = _own(journal)
        except StorageError as error:
            raise DriverUnavailableError(f"it is not known which MIG devices this driver created: {error}") from error
        own, modes = before[0] | after[0], before[1] | after[1]
        return replace(snapshot, gpus=tuple(_marked(gpu, own, modes) for gpu in snapshot.gpus))


def _own(journal: Journal) -> tuple[frozenset[PartitionId], frozenset[GpuUuid]]:
    """One reading of the journal: the partitions that this driver created, and GPUs whose mode it switched."""
    return journal.created_partitions(), frozenset(journal.gpus_with_note(MIG_MODE))


def _marked(gpu: Gpu, own: frozenset[PartitionId], modes: frozenset[GpuUuid]) -> Gpu:
    if not gpu.mig_instances and gpu.uuid not in modes:
        return gpu
    instances = (
        replace(instance, owned=PartitionId(gpu.uuid, instance.profile_id, instance.start) in own)
        for instance in gpu.mig_instances
    )
    return replace(gpu, mig_instances=tuple(instances), mig_mode_owned=gpu.uuid in modes)
