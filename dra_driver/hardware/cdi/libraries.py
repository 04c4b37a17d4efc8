"""Find the files of a driver root that a container needs: libraries, programs, firmware, configuration, sockets.

Sources: NVIDIA's driver README ("Installed components") and Container Toolkit documentation; ``ld.so(8)``; Debian's
multiarch layout. Omitted: 32-bit libraries, X server modules, and generic glvnd libraries, which the image has.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.cdi.elf import EM_AARCH64, EM_X86_64, read_shared_object
from dra_driver.hardware.driver_root.root import DriverRoot, resolve
from dra_driver.hardware.driver_root.search import (
    CUDA,
    LIBRARY_FOLDERS,
    NVML,
    PROGRAM_FOLDERS,
    SEARCHED_BY_CONTAINERS,
    TRIPLETS,
    cached_libraries,
)

MULTIARCH = dict(zip((EM_X86_64, EM_AARCH64), TRIPLETS, strict=True))
"""Debian's folder name of each machine that NVIDIA has Linux drivers for."""

VERSIONED_EXTRAS = (
    "libnvidia-egl-gbm.so.",
    "libnvidia-egl-wayland.so.",
    "libnvidia-egl-wayland2.so.",
    "libnvidia-egl-xcb.so.",
    "libnvidia-egl-xlib.so.",
    "libnvidia-nvvm70.so.",
)
"""Prefixes of libraries that come with the driver but have their own version."""

_DEVELOPMENT = ("libcuda", "libnvidia-ml", "libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow")
ALIASES = {
    **{stem: (f"{stem}.so",) for stem in _DEVELOPMENT},
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
    "libnvidia-allocator": ("gbm/nvidia-drm_gbm.so",),
}
"""Further names by which programs open a library, relative to its folder."""

MPS_PROGRAMS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
BINARIES = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", *MPS_PROGRAMS, "nvidia-imex", "nvidia-imex-ctl")
SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
SOCKET_FOLDERS = ("/run", "/var/run")

CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
CONFIGS = {
    "/usr/share": (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "nvidia/nvoptix.bin",
    ),
    "/etc": (
        "OpenCL/vendors/nvidia.icd",
        "vulkan/icd.d/nvidia_icd.json",
        "vulkan/icd.d/nvidia_layers.json",
        "vulkan/implicit_layer.d/nvidia_layers.json",
    ),
}
"""Configuration files by the container folder that they go to; each is searched in `CONFIG_FOLDERS`."""

FIRMWARE_FOLDERS = ("/lib/firmware/updates", "/lib/firmware")
"""Each is searched with and without the running kernel's release below it, as the kernel itself does."""

_DRIVER_LIBRARY = re.compile(r"(libcuda|libnvidia-ml)\.so\.(\d{1,5}(?:\.\d{1,5}){1,3})")
_ModeTest = Callable[[int], bool]
_MAX_LIBRARIES = 512  # a full driver has about seventy


class Library(Struct, frozen=True, kw_only=True):
    """A shared library: path of the real file inside the root (a mount through a link would keep its target), and
    SONAME."""

    path: str
    soname: str | None

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def file_name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """``libcuda`` of ``libcuda.so.580.65.06``."""
        return self.file_name.partition(".so")[0]


class DriverFile(Struct, frozen=True, kw_only=True):
    """Any other file: inside path of the real file, and its path in containers."""

    path: str
    container_path: str


class FolderState(Struct, frozen=True, kw_only=True):
    """A folder at one moment, by this process's path; ``inode`` and ``modified_ns`` are 0 when it is missing."""

    path: str
    inode: int
    modified_ns: int

    @classmethod
    def of(cls, path: str) -> "FolderState":
        try:
            status = os.stat(path)  # noqa: PTH116 - on the path of every prepare
        except OSError:
            return cls(path=path, inode=0, modified_ns=0)
        return cls(path=path, inode=status.st_ino, modified_ns=status.st_mtime_ns)


class DriverFiles(Struct, frozen=True, kw_only=True):
    """The files of one driver installation, in a stable order. ``watched`` are the folders whose change may change the
    result, as they were before they were read."""

    root: DriverRoot
    version: str
    multiarch: str
    libraries: tuple[Library, ...]
    files: tuple[DriverFile, ...]
    sockets: tuple[DriverFile, ...]
    watched: tuple[FolderState, ...]

    def is_current(self) -> bool:
        """Return whether no file was added, removed or renamed, as packages and driver containers do. About forty
        ``stat`` calls."""
        return all(folder == FolderState.of(folder.path) for folder in self.watched)

    @property
    def library_folders(self) -> tuple[str, ...]:
        """Inside paths, in order of first use."""
        return tuple(dict.fromkeys(library.folder for library in self.libraries))


def discover(root: DriverRoot, driver_version: str | None = None) -> DriverFiles:
    """Find the driver below ``root``: that of ``driver_version``, if given, among leftovers. Raises
    `DriverUnavailableError`."""
    try:
        return _Search(root).run(driver_version)
    except OSError as error:
        raise DriverUnavailableError(
            f"cannot search the NVIDIA driver root {root.here('/')}: {error.strerror} ({error.filename}); "
            "check that it is mounted into the node process and readable"
        ) from error


class _Candidate(Struct, frozen=True, kw_only=True):
    """A driver's main library; ``linked`` when the loader's name (``libcuda.so.1``) leads to it."""

    version: str
    machine: int
    folder: str
    linked: bool


class _Search:
    """One search; caches resolved folders and records the folders that it read."""

    def __init__(self, root: DriverRoot) -> None:
        self._root = root
        self._known: dict[str, str] = {}
        self._listed: dict[str, list[str]] = {}
        self._watched: dict[str, FolderState] = {}

    def run(self, wanted: str | None) -> DriverFiles:
        version, machine, home = self._find_driver(wanted)
        libraries = tuple(self._libraries(version, machine, home))
        files = (*self._binaries(), *self._firmware(version), *self._configs())
        sockets = tuple(self._sockets())
        for folder in self._known.values():  # on the way of links, such as /etc/alternatives
            self._watch(folder)
        return DriverFiles(
            root=self._root,
            version=version,
            multiarch=MULTIARCH[machine],
            libraries=libraries,
            files=files,
            sockets=sockets,
            watched=tuple(self._watched.values()),
        )

    def _find_driver(self, wanted: str | None) -> tuple[str, int, str]:
        candidates = [found for found in self._driver_libraries() if found.version == (wanted or found.version)]
        if not candidates:
            what = f"libcuda.so.{wanted}" if wanted else "libcuda.so.<version> or libnvidia-ml.so.<version>"
            raise DriverUnavailableError(
                f"no NVIDIA driver found under {self._root.here('/')}: expected {what} (64-bit) in one of "
                f"{', '.join(LIBRARY_FOLDERS[:3])}, … or in etc/ld.so.cache; install the driver or set the driver root",
                reason="DriverFilesMissing",
            )
        # The loader's choice precedes leftovers of other versions. This machine's libraries precede other machines'.
        here = os.uname().machine
        best = max(candidates, key=lambda c: (MULTIARCH[c.machine].startswith(here), c.linked, _version_key(c.version)))
        return best.version, best.machine, best.folder

    def _driver_libraries(self) -> Iterator[_Candidate]:
        """Main libraries of the default folders, or else of the linker's cache."""
        paths = [path for folder in LIBRARY_FOLDERS for path in self._driver_paths(folder)]
        for path in paths or self._cached_paths():
            folder, _, name = path.rpartition("/")
            match = _DRIVER_LIBRARY.fullmatch(name)
            library = read_shared_object(self._root.here(path)) if match else None
            if match and library and library.machine in MULTIARCH:
                linked = self._resolve(f"{folder}/{match[1]}.so.1") == path
                yield _Candidate(version=match[2], machine=library.machine, folder=folder, linked=linked)

    def _driver_paths(self, folder: str) -> list[str]:
        names = [name for name in self._list(folder) if _DRIVER_LIBRARY.fullmatch(name)]
        return self._regular_files(f"{folder}/{name}" for name in sorted(names))

    def _cached_paths(self) -> list[str]:
        self._resolve("/etc/ld.so.cache")  # so that its folder is watched
        return self._regular_files(cached_libraries(self._root.root, {CUDA, NVML}))

    def _regular_files(self, paths: Iterable[str]) -> list[str]:
        found = (self._resolve(path) for path in paths)
        return [path for path in found if path and self._is(path, stat.S_ISREG)]

    def _libraries(self, version: str, machine: int, home: str) -> Iterator[Library]:
        seen: set[str] = set()
        for folder in (home, f"{home}/vdpau"):
            for name in self._library_names(folder, version):
                path = self._resolve(f"{folder}/{name}")
                if path is None or path in seen or len(seen) >= _MAX_LIBRARIES or not self._is(path, stat.S_ISREG):
                    continue
                seen.add(path)
                library = read_shared_object(self._root.here(path))
                if library is not None and library.machine == machine:
                    yield Library(path=path, soname=library.soname)

    def _library_names(self, folder: str, version: str) -> list[str]:
        """Libraries of the driver's version, then those with a separate version; the first of two names for a file
        wins."""
        names = sorted(self._list(folder))
        own = [name for name in names if name.endswith(f".so.{version}")]
        return own + [name for start in VERSIONED_EXTRAS for name in names if name.startswith(start)]

    def _binaries(self) -> Iterator[DriverFile]:
        for name in BINARIES:
            if found := self._first(PROGRAM_FOLDERS, name, _is_program):
                folder = found.container_path.rpartition("/")[0]
                target = found.container_path if folder in SEARCHED_BY_CONTAINERS else f"/usr/bin/{name}"
                yield DriverFile(path=found.path, container_path=target)

    def _firmware(self, version: str) -> Iterator[DriverFile]:
        releases = (f"/{os.uname().release}", "")
        seen: set[str] = set()
        for folder in (f"{base}{release}/nvidia/{version}" for base in FIRMWARE_FOLDERS for release in releases):
            for name in sorted(self._list(folder)):
                if name in seen or not (name.startswith("gsp") and name.endswith(".bin")):
                    continue
                if found := self._file(f"{folder}/{name}", stat.S_ISREG):
                    seen.add(name)
                    yield found

    def _configs(self) -> Iterator[DriverFile]:
        for target, names in CONFIGS.items():
            for name in names:
                if found := self._first(CONFIG_FOLDERS, name, stat.S_ISREG):
                    yield DriverFile(path=found.path, container_path=f"{target}/{name}")

    def _sockets(self) -> Iterator[DriverFile]:
        for name in SOCKETS:
            if found := self._first(SOCKET_FOLDERS, name, stat.S_ISSOCK):
                yield found

    def _first(self, folders: Iterable[str], name: str, wanted: _ModeTest) -> DriverFile | None:
        return next((found for folder in folders if (found := self._file(f"{folder}/{name}", wanted))), None)

    def _file(self, inside: str, wanted: _ModeTest) -> DriverFile | None:
        """``inside`` as a file of the wanted type; its folder is watched even if the file is missing."""
        self._watch(inside.rpartition("/")[0])
        path = self._resolve(inside)
        return DriverFile(path=path, container_path=inside) if path and self._is(path, wanted) else None

    def _is(self, path: str, wanted: _ModeTest) -> bool:
        return wanted(os.lstat(self._root.here(path)).st_mode)

    def _resolve(self, inside: str) -> str | None:
        path = resolve(self._root.root, inside, self._known)
        if path is not None:
            self._watch(path.rpartition("/")[0])
        return path

    def _list(self, folder: str) -> list[str]:
        """Names in an inside folder; [] when it is missing or not a folder."""
        path = self._resolve(folder)
        self._watch(path or folder)
        if path is None:
            return []
        if path not in self._listed:
            try:
                self._listed[path] = os.listdir(self._root.here(path))  # noqa: PTH208 - names, not paths
            except (FileNotFoundError, NotADirectoryError):
                self._listed[path] = []
        return self._listed[path]

    def _watch(self, folder: str) -> None:
        path = self._root.here(folder)
        if path not in self._watched:
            self._watched[path] = FolderState.of(path)


def _is_program(mode: int) -> bool:
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def _version_key(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
