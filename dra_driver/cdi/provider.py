"""CDI edits for this node's GPUs, kept true while drivers, modules and files come and go.

Owns the base document's life: built from what is on disk, written, checked in every prepare, built again when something
changed. Refuses to know claims; the prepare step asks for a GPU's edits and writes the claim's document itself.
"""

import logging
import threading
from dataclasses import dataclass

from dra_driver.cdi import edits
from dra_driver.cdi.caps import partition_capabilities
from dra_driver.cdi.hook import find_hook
from dra_driver.cdi.host import Majors, drm_nodes, node_numbers
from dra_driver.cdi.libraries import DriverFiles, discover
from dra_driver.cdi.names import CdiNames
from dra_driver.cdi.root import DriverRoot
from dra_driver.cdi.spec import CdiSpec, ContainerEdits
from dra_driver.cdi.writer import CdiWriter
from dra_driver.model.gpu import Gpu

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """One built base document and what it was built from."""

    files: DriverFiles
    majors: Majors
    hook: str | None
    spec: CdiSpec


class CdiProvider:
    """Edits for one driver root. Thread-safe.

    ``proc_devices`` is the kernel's list of device numbers and ``proc_driver`` the folder in which NVIDIA's module
    tells of MIG capabilities (a simulated root brings its own of both). ``hook_path`` is NVIDIA's hook on the host,
    ``none`` to do without, None to look for it. ``graphics`` adds each GPU's DRM nodes (``/dev/dri/card*`` and
    ``renderD*``, found in ``sysfs_root``). It is off unless asked for: CUDA, video and NVML never open them, a card
    node lets a container drive displays, and a claim for compute should grant no more than it needs. Nodes that render
    without a display (EGL, Vulkan, GBM) are the reason to switch it on.
    """

    def __init__(
        self,
        root: DriverRoot,
        names: CdiNames,
        writer: CdiWriter,
        proc_devices: str = "/proc/devices",
        hook_path: str | None = None,
        *,
        graphics: bool = False,
        sysfs_root: str = "/sys",
        proc_driver: str = "/proc/driver",
    ) -> None:
        self._root = root
        self._names = names
        self._writer = writer
        self._proc_devices = str(proc_devices)
        self._hook_path = hook_path
        self._graphics = graphics
        self._sysfs_root = sysfs_root
        self._proc_driver = str(proc_driver)
        self._lock = threading.Lock()  # guards _base: one search at a time, and nobody uses a half-made answer
        self._base: _Base | None = None

    def refresh(self) -> bool:
        """Search the driver root again and write the base document; True when the file changed.

        Raises `DriverUnavailableError` (no driver, no module), `ConfigurationError` (the chosen hook is missing) or
        `StorageError`; the base document of before stays in all these cases.
        """
        with self._lock:
            return self._rebuild()[1]

    def ensure_base(self) -> bool:
        """Make sure that the base file is there, complete and true; True when it had to be written.

        For every prepare, before the answer: a runtime refuses all of a container's devices when the base file is
        missing, and fails to start it when a file that the document mounts is gone. Costs some forty ``stat`` calls
        and two small reads when nothing changed. Errors as `refresh`.
        """
        with self._lock:
            base = self._base
            if base is None or base.majors != Majors.read(self._proc_devices) or not base.files.is_current():
                return self._rebuild()[1]
            return self._writer.write_base(base.spec)

    def edits_for(self, gpu: Gpu) -> ContainerEdits:
        """What ``gpu`` as a whole adds to a container beside the base document. Errors as `refresh`."""
        base = self._known_base()
        path = f"/dev/nvidia{gpu.minor}"
        found = node_numbers(self._root.dev_here(path))
        result = edits.gpu_edits(gpu.minor, base.majors, self._root, found=found, uuid=gpu.uuid)
        if self._graphics and gpu.pci_bus_id:
            nodes = drm_nodes(gpu.pci_bus_id, self._sysfs_root)
            result += edits.graphics_edits(nodes, self._root, gpu.pci_bus_id, base.hook)
        return result

    def edits_for_partition(self, gpu: Gpu, *, gi_id: int, ci_id: int, uuid: str) -> ContainerEdits:
        """What one MIG partition of ``gpu`` adds to a container beside the base document.

        The variable ``DRA_GPU_<minor>_MIG_<gi>_<ci>_UUID`` names the MIG device, so partitions of one parent do not
        replace each other's. Reads two small files, never a cache: ids are used again by later instances. Errors as
        `refresh`, and `DeviceLostError` when the kernel module knows no such instance.
        """
        base = self._known_base()
        capabilities = partition_capabilities(self._proc_driver, gpu.minor, gi_id, ci_id) if base.majors.caps else ()
        found = node_numbers(self._root.dev_here(f"/dev/nvidia{gpu.minor}"))
        variable = f"DRA_GPU_{gpu.minor}_MIG_{gi_id}_{ci_id}_UUID={uuid}"
        return edits.partition_edits(gpu.minor, base.majors, self._root, capabilities, found=found, variable=variable)

    def _known_base(self) -> _Base:
        with self._lock:
            return self._base or self._rebuild()[0]

    def _rebuild(self) -> tuple[_Base, bool]:
        """`refresh` with the lock held: what is known now, and whether the file changed."""
        majors = Majors.read(self._proc_devices)
        files = discover(self._root)
        hook = find_hook(self._root, self._hook_path)
        nodes = ((path, node_numbers(self._root.dev_here(path))) for path in edits.CONTROL_NODES)
        found = {path: numbers for path, numbers in nodes if numbers}
        spec = edits.base_spec(self._names, files, majors, hook, found)
        changed = self._writer.write_base(spec)
        self._base = base = _Base(files=files, majors=majors, hook=hook, spec=spec)
        log.info(
            "NVIDIA driver files found",
            extra={
                "driver_version": files.version,
                "root": self._root.here("/"),
                "libraries": len(files.libraries),
                "mode": "hooks" if hook else "soname",
                "changed": changed,
            },
        )
        return base, changed
