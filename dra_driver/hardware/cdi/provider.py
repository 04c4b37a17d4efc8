"""CDI edits for this node's GPUs, and the base document, rebuilt when drivers, modules, hooks or files change."""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

from msgspec import Struct

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import ClaimUid
from dra_driver.hardware.cdi import edits
from dra_driver.hardware.cdi.edits import drm_nodes, partition_capabilities, without_mps_programs
from dra_driver.hardware.cdi.hook import CANDIDATES, CdiHook, HookVersions, choose_hook
from dra_driver.hardware.cdi.libraries import DriverFiles, FolderState, discover
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.spec import CdiSpec, ContainerEdits
from dra_driver.hardware.cdi.watch import FolderWatch, MountWatch
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.hardware.device_nodes.numbers import CONTROL_NODES, Majors, node_numbers
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.driver_root.search import RootSource

log = logging.getLogger(__name__)

LOOK_S: Final = 60.0
"""Seconds between full checks: the watches report no changes of a network file system."""


class _Base(Struct, frozen=True, kw_only=True):
    """One base document and its sources."""

    files: DriverFiles
    majors: Majors
    hook: CdiHook | None
    hook_folders: tuple[FolderState, ...]
    spec: CdiSpec
    watch: FolderWatch

    def is_current(self, *, thorough: bool = False) -> bool:
        """Return whether files and hook are unchanged. Checks each folder when the watch reports a change, or if
        ``thorough``."""
        if not self.watch.is_quiet():
            self.watch.arm()
        elif not thorough:
            return True
        return self.files.is_current() and all(folder == FolderState.of(folder.path) for folder in self.hook_folders)


class CdiProvider:
    """Edits for one driver root, fixed or found by a function at each search. Thread-safe.

    ``proc_driver`` lists MIG capabilities. ``hook_path`` is NVIDIA's hook on the host, ``none`` for no hook, None to
    search for it below ``host``. ``majors`` returns the numbers for a new base document, may load modules, and raises
    `DriverUnavailableError`. ``remounted``: whether the mount table changed since the last call. ``graphics`` adds each
    GPU's DRM nodes for rendering without a display; off by default: CUDA, video and NVML never open them, and a card
    node lets a container drive displays.
    """

    def __init__(
        self,
        root: DriverRoot | RootSource,
        names: CdiNames,
        writer: CdiWriter,
        proc_devices: str = "/proc/devices",
        hook_path: str | None = None,
        *,
        graphics: bool = False,
        sysfs_root: str = "/sys",
        proc_driver: str = "/proc/driver",
        hook_versions: HookVersions | None = None,
        host: DriverRoot | None = None,
        majors: Callable[[], Majors] | None = None,
        remounted: Callable[[], bool] | None = None,
        simulated: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._locate: RootSource = (lambda: root) if isinstance(root, DriverRoot) else root
        self._host = host
        self._names = names
        self._writer = writer
        self._proc_devices = str(proc_devices)
        self._hook_path = hook_path
        self._graphics = graphics
        self._simulated = simulated
        self._sysfs_root = sysfs_root
        self._proc_driver = str(proc_driver)
        self._hook_versions = hook_versions or HookVersions()
        self._new_majors = majors or (lambda: Majors.read(self._proc_devices))
        self._remounted = remounted or MountWatch().changed
        self._clock, self._looked_at = clock, clock()
        self._hook_note: str | None = None
        self._lock = threading.Lock()  # guards _base and the fields above from _remounted on; one search at a time
        self._base: _Base | None = None

    def refresh(self) -> bool:
        """Search the driver root and write the base document; True when the file changed. Raises
        `DriverUnavailableError`, `ConfigurationError` (the configured hook is missing) or `StorageError`; the previous
        document stays then."""
        with self._lock:
            return self._rebuild()[1]

    def ensure_base(self) -> bool:
        """Make sure that the base file exists and is up to date, before each prepare; True when it was written. A few
        system calls when nothing changed. Errors as `refresh`."""
        return self._ensure_base(thorough=False)

    def check_base(self) -> bool:
        """As `ensure_base`, and check each folder after a mount and every `LOOK_S`."""
        return self._ensure_base(thorough=True)

    def _ensure_base(self, *, thorough: bool) -> bool:
        with self._lock:
            base, thorough = self._base, thorough and self._must_look()
            if base is None or base.majors != Majors.read(self._proc_devices) or not base.is_current(thorough=thorough):
                return self._rebuild()[1]
            return self._writer.write_base(base.spec)

    def _must_look(self) -> bool:
        remounted, now = self._remounted(), self._clock()
        if not remounted and now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        return True

    @property
    def driver_identity(self) -> Hashable | None:
        """The driver's folders, device numbers and hook, on which claims' documents depend. None before the driver was
        found."""
        base = self._base
        return None if base is None else (base.files.root, base.majors, base.hook)

    @property
    def hook_version(self) -> str | None:
        """The version of NVIDIA's hook in the base document; None without a hook. Never waits for the disk."""
        base = self._base
        return str(base.hook.version) if base is not None and base.hook is not None else None

    def edits_for(self, gpu: Gpu) -> ContainerEdits:
        """Edits for the whole ``gpu``, without the base document's. Errors as `refresh`."""
        base = self._known_base()
        root = base.files.root
        path = f"/dev/nvidia{gpu.minor}"
        found = node_numbers(root.dev_here(path))
        result = edits.gpu_edits(gpu.minor, base.majors, root, found=found, uuid=gpu.uuid)
        if self._graphics and gpu.pci_bus_id:
            nodes = drm_nodes(gpu.pci_bus_id, self._sysfs_root)
            result += edits.graphics_edits(nodes, root, gpu.pci_bus_id, base.hook)
        return result

    def edits_for_partition(self, gpu: Gpu, *, gi_id: int, ci_id: int, uuid: str) -> ContainerEdits:
        """Edits for one MIG partition, with a variable for each instance. Reads two small files, because later
        instances reuse ids. Errors as `refresh`, and `DeviceLostError` for a missing instance."""
        base = self._known_base()
        root = base.files.root
        capabilities = partition_capabilities(self._proc_driver, gpu.minor, gi_id, ci_id) if base.majors.caps else ()
        found = node_numbers(root.dev_here(f"/dev/nvidia{gpu.minor}"))
        variable = f"DRA_GPU_{gpu.minor}_MIG_{gi_id}_{ci_id}_UUID={uuid}"
        return edits.partition_edits(gpu.minor, base.majors, root, capabilities, found=found, variable=variable)

    def edits_of_claim(self, claim: ClaimUid) -> ContainerEdits:
        """Edits that every device of the claim adds: none with real GPUs."""
        return edits.simulated_claim_edits(claim) if self._simulated else ContainerEdits()

    def edits_of_share(self) -> ContainerEdits:
        """Additional edits of a share of a GPU: see `without_mps_programs`. Errors as `refresh`."""
        # The base document itself exists when a container starts, has no secrets and is not executable.
        return without_mps_programs(self._known_base().files, f"{self._writer.directory}/{self._names.base_file_name}")

    def _known_base(self) -> _Base:
        with self._lock:
            return self._base or self._rebuild()[0]

    def _rebuild(self) -> tuple[_Base, bool]:
        majors = self._new_majors()
        root = self._locate()
        files = discover(root)
        host = self._host or root
        hook_folders = tuple(FolderState.of(host.here(path.rpartition("/")[0])) for path in self._hook_candidates(host))
        hook = self._choose_hook(host)
        nodes = ((path, node_numbers(root.dev_here(path))) for path in CONTROL_NODES)
        found = {path: numbers for path, numbers in nodes if numbers}
        spec = edits.base_spec(self._names, files, majors, hook, found)
        changed = self._writer.write_base(spec)
        folders = [folder.path for folder in (*files.watched, *hook_folders)]
        watch = FolderWatch(folders, (root.here("/"), *(root.here(folder) for folder in files.library_folders[:1])))
        self._base = base = _Base(
            files=files, majors=majors, hook=hook, hook_folders=hook_folders, spec=spec, watch=watch
        )
        log.info(
            "NVIDIA driver files found",
            extra={
                "driver_version": files.version,
                "root": root.here("/"),
                "libraries": len(files.libraries),
                "mode": "hooks" if hook else "soname",
                "hook_version": str(hook.version) if hook else None,
                "changed": changed,
            },
        )
        return base, changed

    def _hook_candidates(self, host: DriverRoot) -> tuple[str, ...]:
        if self._hook_path == "none" or not host.shows_host:
            return ()
        return (self._hook_path,) if self._hook_path else CANDIDATES

    def _choose_hook(self, host: DriverRoot) -> CdiHook | None:
        """Logs a hook that must not be used, once."""
        choice = choose_hook(host, self._hook_path, self._hook_versions)
        if choice.note and choice.note != self._hook_note:
            log.warning("CDI hook is not used", extra={"reason": choice.note})
        self._hook_note = choice.note
        return choice.hook
