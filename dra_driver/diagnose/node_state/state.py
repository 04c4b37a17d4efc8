"""Read this driver's state on a node: its files, sockets and mounts, and their contents. Changes nothing."""

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import DraError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.unix_socket import is_served
from dra_driver.hardware.cdi import CdiNames
from dra_driver.hardware.sharing import mps_files
from dra_driver.hardware.sharing.memory import own_mounts
from dra_driver.hardware.sharing.mps_files import DaemonFolder, MpsFolders
from dra_driver.node.claims import inspection


class Places(Struct, frozen=True, kw_only=True):
    """The directories as this process sees them. ``run`` and ``shm`` belong to the MPS host."""

    driver: str
    plugin: Path
    registry: Path
    cdi: Path
    run: Path
    shm: Path
    boot_id: Path = inspection.BOOT_ID

    @classmethod
    def of(cls, settings: NodeSettings, *, run_dir: Path, shm_dir: Path) -> "Places":
        """``run_dir`` and ``shm_dir`` are the settings of the MPS host."""
        driver = settings.driver_name
        return cls(
            driver=driver,
            plugin=Path(settings.kubelet_plugins_dir) / driver,
            registry=Path(settings.kubelet_registrar_dir),
            cdi=Path(settings.cdi_dir),
            run=run_dir / f"{driver}-mps",
            shm=shm_dir / f"{driver}-mps",
            boot_id=Path(settings.boot_id_file),
        )

    @property
    def journal(self) -> Path:
        return self.plugin / "state.db"

    @property
    def mps(self) -> Path:
        return self.plugin / "mps"

    @property
    def health(self) -> Path:
        return self.plugin / "health.json"


class JournalState(Struct, frozen=True, kw_only=True):
    """``problem`` is the reason why it is unreadable; ``content`` is None then, and if it does not exist."""

    path: Path
    content: inspection.JournalContent | None = None
    problem: str | None = None
    set_aside: tuple[Path, ...] = ()
    """Damaged journals that were kept."""


class CdiState(Struct, frozen=True, kw_only=True):
    """CDI files of this driver. ``problems`` has a message for each file that no container runtime would load."""

    folder: Path
    base: bool = False
    claims: frozenset[ClaimUid] = frozenset()
    problems: tuple[str, ...] = ()


class DaemonState(Struct, frozen=True, kw_only=True):
    """An MPS daemon's directory. ``status`` is that of the host, "released" until its release is complete, or ""."""

    id: str
    wanted: bool
    status: str = ""
    reason: str = ""


class MpsState(Struct, frozen=True, kw_only=True):
    """``host_problem`` is None while an MPS host works; a host that hangs has a problem and ``host_lives``.

    ``mounts`` are this driver's file systems in memory, by id.
    """

    host_problem: str | None = None
    host_lives: bool = False
    daemons: tuple[DaemonState, ...] = ()
    mounts: tuple[str, ...] = ()


class SocketState(Struct, frozen=True, kw_only=True):
    """A socket of this driver, and whether a process accepts connections on it."""

    path: Path
    served: bool


class NodeState(Struct, frozen=True, kw_only=True):
    """``runs`` are the ids of running node processes, ``boot_id`` is "" if unknown.

    ``gpus`` are GPUs by UUID, None if the hardware was not read; ``hardware_problem`` is the error of reading it.
    """

    plugin: Path
    exists: bool
    boot_id: str
    journal: JournalState
    cdi: CdiState
    mps: MpsState
    runs: frozenset[str] = frozenset()
    backups: tuple[inspection.GpuStateBackup, ...] = ()
    named: frozenset[ClaimUid] = frozenset()
    sockets: tuple[SocketState, ...] = ()
    sick_gpus: int | None = None
    health_problem: str | None = None
    gpus: Mapping[str, Gpu] | None = None
    hardware_problem: str | None = None

    @property
    def entries(self) -> tuple[inspection.Entry, ...]:
        """The entries of the journal; none if it is unreadable."""
        return self.journal.content.entries if self.journal.content is not None else ()

    def is_of_earlier_boot(self, entry: inspection.Entry) -> bool:
        """Return whether a reboot has ended all containers of the claim."""
        return bool(self.boot_id) and entry.boot_id not in ("", self.boot_id)


_MAX_FILE: Final = 8 * 2**20

Look = Callable[[], Snapshot]
"""Read the GPUs. Raises HardwareError."""


def read_state(places: Places, *, hardware: Look | None = None) -> NodeState:
    """Read all state; GPUs only with ``hardware``. Raises no `DraError`: problems are in the state."""
    runs = inspection.living_runs(places.plugin)
    journal = _journal(places, in_use=bool(runs))
    cdi = _cdi(places)
    entries = journal.content.entries if journal.content else ()
    sick_gpus, health_problem = _health(places.health)
    gpus, hardware_problem = _gpus(hardware)
    return NodeState(
        plugin=places.plugin,
        exists=places.plugin.is_dir(),
        boot_id=inspection.read_boot_id(places.boot_id),
        journal=journal,
        cdi=cdi,
        mps=_mps(places),
        runs=frozenset(runs),
        backups=inspection.read_backups(places.plugin),
        named=frozenset(inspection.read_names(places.plugin, cdi.claims | {entry.ref.uid for entry in entries})),
        sockets=tuple(SocketState(path=path, served=is_served(path)) for path in socket_paths(places)),
        sick_gpus=sick_gpus,
        health_problem=health_problem,
        gpus=gpus,
        hardware_problem=hardware_problem,
    )


def socket_paths(places: Places) -> tuple[Path, ...]:
    found = [
        *places.registry.glob(f"{places.driver}-reg.sock"),
        *places.registry.glob(f"{places.driver}-*-reg.sock"),
        *places.plugin.glob("dra.sock"),
        *places.plugin.glob("dra-*.sock"),
    ]
    return tuple(sorted(path for path in found if _is_socket(path)))


def cdi_files(places: Places) -> Iterator[Path]:
    """This driver's files in the CDI directory: of claims, the base document and temporary ones."""
    names = CdiNames(places.driver)
    if places.cdi.is_dir():
        for name in sorted(os.listdir(places.cdi)):  # noqa: PTH208 - names
            if name == names.base_file_name or names.uid_of(name) is not None or names.is_temporary(name):
                yield places.cdi / name


def _journal(places: Places, *, in_use: bool) -> JournalState:
    path = places.journal
    aside = tuple(sorted(each for each in path.parent.glob(f"{path.name}.damaged-*Z")))
    try:
        return JournalState(path=path, content=inspection.read_journal(path, in_use=in_use), set_aside=aside)
    except DraError as error:
        return JournalState(path=path, problem=str(error), set_aside=aside)


def _cdi(places: Places) -> CdiState:
    names = CdiNames(places.driver)
    files = list(cdi_files(places))
    claims = (names.uid_of(path.name) for path in files)
    return CdiState(
        folder=places.cdi,
        base=any(path.name == names.base_file_name for path in files),
        claims=frozenset(uid for uid in claims if uid is not None),
        problems=tuple(problem for path in files if (problem := _cdi_problem(names, path)) is not None),
    )


def _cdi_problem(names: CdiNames, path: Path) -> str | None:
    if names.is_temporary(path.name):
        return None
    kind = names.device_kind if path.name == names.base_file_name else names.claim_kind
    found, problem = _json(path)
    if problem is None and (found or {}).get("kind") == kind and isinstance((found or {}).get("devices"), list):
        return None
    return f"{path} is not a CDI file of kind {kind}: {problem or 'another kind, or no devices'}"


def _health(path: Path) -> tuple[int | None, str | None]:
    """The number of GPUs with saved faults, and the read error; both None if the file does not exist."""
    if not path.exists():
        return None, None
    found, problem = _json(path)
    gpus = (found or {}).get("gpus")
    if isinstance(gpus, dict):
        return len(gpus), problem
    return None, problem or f"{path} does not contain the faults of GPUs"


def _mps(places: Places) -> MpsState:
    folders = MpsFolders(places.mps)
    try:
        daemons = tuple(_daemon(folders.of(daemon_id), daemon_id) for daemon_id in folders.ids())
    except DraError:
        daemons = ()
    mounts = tuple(sorted(path.name for path in own_mounts() if path.parent == places.run))
    problem, lives = mps_files.host_problem(folders), folders.host_lives()
    return MpsState(host_problem=problem, host_lives=lives, daemons=daemons, mounts=mounts)


def _daemon(folder: DaemonFolder, daemon_id: str) -> DaemonState:
    wanted, status = folder.read_desired() is not None, folder.read_status()
    if status is not None:
        return DaemonState(id=daemon_id, wanted=wanted, status=status.state, reason=status.reason)
    return DaemonState(id=daemon_id, wanted=wanted, status="" if wanted else "released")


def _gpus(hardware: Look | None) -> tuple[Mapping[str, Gpu] | None, str | None]:
    if hardware is None:
        return None, None
    try:
        return {gpu.uuid: gpu for gpu in hardware().gpus}, None
    except DraError as error:
        return None, f"cannot read the GPUs: {error}"


def _json(path: Path) -> tuple[dict[str, object] | None, str | None]:
    """The object in a file, or the error."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_FILE))
    except OSError as error:
        return None, f"cannot read {path}: {error.strerror}"
    except (ValueError, RecursionError):
        return None, f"{path} is not JSON"
    return (found, None) if isinstance(found, dict) else (None, f"{path} has no object")


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
