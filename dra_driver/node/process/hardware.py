"""Choose the GPUs that this process serves, NVML's or simulated ones, with their files, tools and device nodes."""

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ConfigurationError, DetachedError, DriverUnavailableError, StorageError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.cdi import DriverRoot
from dra_driver.hardware.device_nodes.folder import DevFolder
from dra_driver.hardware.device_nodes.numbers import Majors, NodeNumbers, registered_names
from dra_driver.hardware.device_nodes.reconciler import DeviceNodeReconciler, Problem, ProblemKind, WantedNode
from dra_driver.hardware.device_nodes.tools import DriverTools, UvmModule
from dra_driver.hardware.driver_root.search import Detector, RootSource
from dra_driver.hardware.driver_root.smi import Smi
from dra_driver.hardware.gpu.backend import MIG_MODE, Backend, GpuBackend, GpuControl, GpuNotes
from dra_driver.hardware.gpu.holders import GpuHolders
from dra_driver.hardware.gpu.nvml.listings import InstanceReader
from dra_driver.hardware.gpu.reset import Persistence, Reset, SmiPersistence, SmiReset, has_reset
from dra_driver.hardware.mig.manager import CreationWatch, MigManager
from dra_driver.hardware.sharing.mps import MpsClient
from dra_driver.hardware.sharing.timeslice import TimeSlicer
from dra_driver.node.claims import HardwareDependencies, Journal
from dra_driver.node.process.usage_exporter import GpuChangeTracker, TrackedGpuControl

if TYPE_CHECKING:
    from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend

log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 10.0
_SHOWN: Final = 3
_ALL_DEVICES: Final = Path("/proc/devices")
SIMULATED_ROOT = "simulated-root"
KERNEL_DEVICES = "/proc/devices"
SIMULATED_STATE = "simulated-gpus.json"
MPS = "mps"
"""The folder, below the driver's own, that the node process and ``dra-driver mps-host`` share."""


class Hardware(Struct, frozen=True, kw_only=True):
    """GPUs and the files that belong to them. ``renew_root`` updates a simulated driver root.

    ``host`` shows the host's ``/`` where the driver root may be another one. ``host_dev`` is the host's ``/dev`` as
    this process sees it, None to leave it unchanged; ``has_tools``: the driver root is that of a real driver. ``procs``
    are proc file systems in which the node's processes may be visible, best first. ``faulty`` are simulated GPUs that
    accept faults.
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
    has_reset: Callable[[str], bool] = lambda _address: True

    @property
    def control(self) -> GpuControl:
        return self.backend if self.changes is None else TrackedGpuControl(self.backend, self.changes)

    @property
    def reset(self) -> Reset:
        return self.faulty.reset if self.faulty is not None else SmiReset(Smi(lambda: self.root().here("/")))

    @property
    def persistence(self) -> Persistence | None:
        """None for simulated GPUs, which have no such mode."""
        return None if self.faulty is not None else SmiPersistence(Smi(lambda: self.root().here("/")))

    def holders(self, snapshot: Callable[[], Snapshot]) -> GpuHolders:
        """The processes that have a GPU of the inventory open."""

        def minor(uuid: str) -> int | None:
            gpu = snapshot().gpu_by_uuid(GpuUuid(uuid))
            return None if gpu is None else gpu.minor

        return GpuHolders(self.procs, minor)

    def tools(
        self,
        notes: GpuNotes,
        mps: Path,
        changed: Callable[[], None],
        snapshot: Callable[[], Snapshot],
        watch: CreationWatch | None = None,
    ) -> HardwareDependencies:
        """The tools with which ``node/claims/`` changes GPUs. ``mps`` is the directory shared with the MPS host;
        ``watch`` receives the partitions that a GPU in use refused."""

        return HardwareDependencies(
            mig=MigManager(self.control, notes, holders=self.holders(snapshot), watch=watch),
            slicer=TimeSlicer(Smi(self._root_in_use), self.backend, notes),
            mps=MpsClient(mps, self.backend, notes),
            changed=changed,
            fabric=self.backend.fabric,
        )

    def _root_in_use(self) -> str:
        """The directory of the driver's programs. Raises DetachedError: they would open the driver."""
        if (reason := self.backend.detached) is not None:
            raise DetachedError(reason)
        return self.root().here("/")


def choose(settings: NodeSettings, plugin_dir: Path, changes: GpuChangeTracker | None = None) -> Hardware:
    """The hardware of ``settings``, whose changes ``changes`` tracks. Imports only the modules that it uses.

    Raises ConfigurationError for a spec that cannot be read, for simulated GPUs' driver root that cannot be written,
    and for a driver root on the host without one here.
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
                "the same directory, as the host and as this process see it, or neither to have the driver searched"
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
        has_reset=has_reset("/sys"),
    )


def _on_host(driver_root: str, host_root: str) -> str:
    """A driver root at or below the host's root as the host sees it; "" for any other, which both see alike."""
    seen, root = Path(driver_root), Path(host_root)
    return str(Path("/") / seen.relative_to(root)) if seen.is_relative_to(root) else ""


def _procs(host_root: str, root: RootSource) -> Iterator[Path]:
    """Below the host's root, then below the driver's (a driver container runs in the host's PID namespace), then this
    process', which shows the node's processes only outside of a container."""
    if host_root != "/":
        yield Path(host_root) / "proc"
    with suppress(DriverUnavailableError):
        yield Path(root().here("/proc"))
    yield Path("/proc")


def _is_kernels(settings: NodeSettings) -> bool:
    return settings.proc_devices == KERNEL_DEVICES


def host_dev(settings: NodeSettings, own: str = "/dev") -> str | None:
    """The host's ``/dev`` as this process sees it; None to leave it unchanged. ``own`` is this process'. A pod
    has its own unless the host's is mounted there. If the host's root is visible, the two are compared."""
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
    """Simulated GPUs with state and driver root in the driver's directory, which host and container see alike."""
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
    """A ``gpu.backend.Backend`` that marks instances that this driver created. Thread-safe.

    A GPU does not record who created an instance (MIG UUIDs repeat). The journal is read before and after the hardware:
    an intent is recorded before an instance is created and removed after it is destroyed. An instance in neither
    reading was not created by this driver. Call ``use_journal`` before the first snapshot.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.open, self.close, self.wait_for_event = backend.open, backend.close, backend.wait_for_event
        self._lock = threading.Lock()  # guards _journal
        self._journal: Journal | None = None

    def use_journal(self, journal: Journal) -> None:
        """Compare with this journal from now on; before that, no instance counts as this driver's."""
        with self._lock:
            self._journal = journal

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. Also raises DriverUnavailableError when the journal cannot be read; the published
        devices then stay."""
        with self._lock:
            journal = self._journal
        if journal is None:
            return self._backend.snapshot()
        try:
            before = _own(journal)
            snapshot = self._backend.snapshot()
            after = _own(journal)
        except StorageError as error:
            raise DriverUnavailableError(
                f"cannot read which MIG devices this driver created: {error}", reason="PartitionsUnknown"
            ) from error
        own, modes = before[0] | after[0], before[1] | after[1]
        return replace(snapshot, gpus=tuple(_marked(gpu, own, modes) for gpu in snapshot.gpus))


def _own(journal: Journal) -> tuple[frozenset[PartitionId], frozenset[GpuUuid]]:
    return journal.created_partitions(), frozenset(journal.gpus_with_note(MIG_MODE))


def _marked(gpu: Gpu, own: frozenset[PartitionId], modes: frozenset[GpuUuid]) -> Gpu:
    if not gpu.mig_instances and gpu.uuid not in modes:
        return gpu
    instances = (
        replace(instance, owned=PartitionId(gpu.uuid, instance.profile_id, instance.start) in own)
        for instance in gpu.mig_instances
    )
    return replace(gpu, mig_instances=tuple(instances), mig_mode_owned=gpu.uuid in modes)


class HostDeviceNodes:
    """The node's device nodes. Without ``keeper``, only device numbers are given. Thread-safe. ``may_touch`` returns
    whether the driver can be used: not while the GPUs are detached."""

    def __init__(
        self, uvm: UvmModule, keeper: DeviceNodeReconciler | None, *, may_touch: Callable[[], bool] = lambda: True
    ) -> None:
        self.uvm, self._keeper, self._may_touch = uvm, keeper, may_touch

    @classmethod
    def of(cls, found: Hardware, tools: Callable[[RootSource], DriverTools] = DriverTools) -> Self:
        """For real GPUs with the driver's tools; for simulated ones without, and only in a named ``/dev``."""

        def may_touch() -> bool:
            return found.backend.detached is None

        used = tools(found.root) if found.has_tools else None
        uvm = UvmModule(lambda: Majors.read(found.proc_devices), used, may_load=may_touch)
        if found.host_dev is None:
            return cls(uvm, None, may_touch=may_touch)
        dev = DevFolder(found.host_dev) if found.has_tools else SimulatedDev(found.host_dev)
        keeper = DeviceNodeReconciler(
            dev,
            lambda: uvm.last,
            folder=found.host_dev,
            proc_driver=found.proc_driver,
            tools=used,
            may_use_tools=may_touch,
        )
        return cls(uvm, keeper, may_touch=may_touch)

    def ensure(self, nodes: Iterable[WantedNode]) -> None:
        if self._keeper is not None:
            self._keeper.ensure(nodes)

    def check(self, gpu_minors: Iterable[int]) -> tuple[Problem, ...] | None:
        """Load nvidia-uvm and make the nodes of all GPUs; return what remains, None while detached. Raises nothing."""
        if not self._may_touch():
            return None
        with suppress(DriverUnavailableError):
            self.uvm.majors()
        if self._keeper is None:
            return ()
        self._keeper.check(gpu_minors)
        return self._keeper.problems


class SimulatedDev(DevFolder):
    """A real ``/dev`` for nodes of simulated GPUs, whose dynamic majors may belong to real devices of the machine."""

    def make_node(self, path: str, numbers: NodeNumbers, *, mode: int, uid: int, gid: int, replace: bool) -> None:
        """As in `DevFolder`, unless the kernel gave the major to another driver."""
        name = registered_names(_ALL_DEVICES.read_text(encoding="ascii", errors="replace")).get(numbers.major)
        if name is not None and not name.startswith("nvidia"):
            raise OSError(errno.EBUSY, f"major {numbers.major} belongs to the driver {name} of this machine")
        super().make_node(path, numbers, mode=mode, uid=uid, gid=gid, replace=replace)


class DeviceNodeReport:
    """Checks the nodes and reports problems: in the log, as events on the Node, in metrics and in ``/readyz``.
    ``remarks`` from any thread. ``warn`` records an event and returns whether that was possible."""

    def __init__(
        self, nodes: HostDeviceNodes, gpu_minors: Callable[[], Iterable[int]], warn: Callable[[str, str], bool]
    ) -> None:
        self._nodes, self._gpu_minors, self._warn = nodes, gpu_minors, warn
        self._remarks: list[str] = []
        self._reported: dict[str, str | None] = {}

    def remarks(self) -> list[str]:
        return self._remarks

    def check(self) -> None:
        problems = self._nodes.check(self._gpu_minors())
        if problems is None:
            return
        for kind in ProblemKind:
            metrics.device_node_problems.labels(kind.value).set(sum(problem.kind is kind for problem in problems))
        texts = [problem.text for problem in problems]
        more = len(texts) - _SHOWN
        self._remarks = texts[:_SHOWN] + ([f"{more} more device nodes have such problems."] if more > 0 else [])
        self._report("CudaUnavailable", self._nodes.uvm.problem)
        self._report("DeviceNodeProblem", " ".join(self._remarks) or None)

    def _report(self, reason: str, text: str | None) -> None:
        before = self._reported.get(reason)
        if text == before:
            return
        if text is None:
            log.info("device nodes are correct again", extra={"before": before})
        else:
            log.warning("device nodes are missing or wrong", extra={"problem": text})
        if text is None or self._warn(reason, text):
            self._reported[reason] = text
