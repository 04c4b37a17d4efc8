"""What was found on a node, as values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.mig import MigInstance
from dra_driver.node.claims.inspection import GpuStateBackup, JournalContent


class JournalState(Struct, frozen=True, kw_only=True):
    """``problem`` is a sentence when it cannot be read; ``content`` is None then, and when there is none."""

    path: Path
    content: JournalContent | None = None
    problem: str | None = None
    set_aside: tuple[Path, ...] = ()
    """Damaged journals that were kept."""


class CdiState(Struct, frozen=True, kw_only=True):
    """CDI files of this driver. ``problems`` has a sentence for each file that no container runtime would load."""

    folder: Path
    base: bool = False
    claims: frozenset[ClaimUid] = frozenset()
    problems: tuple[str, ...] = ()


class DaemonState(Struct, frozen=True, kw_only=True):
    """An MPS daemon's folder. ``status`` is that of the host, "released" until its release is complete, or ""."""

    id: str
    wanted: bool
    status: str = ""
    reason: str = ""


class MpsState(Struct, frozen=True, kw_only=True):
    """``host_problem`` is None while an MPS host works; one that hangs has a problem and lives.

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


class FoundGpu(Struct, frozen=True, kw_only=True):
    """A GPU as it was read, with its instances."""

    minor: int
    mig_enabled: bool
    instances: tuple[MigInstance, ...] = ()


class NodeState(Struct, frozen=True, kw_only=True):
    """Everything. ``runs`` are the ids of node processes that are alive, ``boot_id`` "" when unknown.

    ``gpus`` is None when the hardware was not read, else it has what was found by UUID; ``hardware_problem`` says why
    it could not be read.
    """

    plugin: Path
    exists: bool
    boot_id: str
    journal: JournalState
    cdi: CdiState
    mps: MpsState
    runs: frozenset[str] = frozenset()
    backups: tuple[GpuStateBackup, ...] = ()
    named: frozenset[ClaimUid] = frozenset()
    sockets: tuple[SocketState, ...] = ()
    health: Mapping[str, Any] | None = None
    health_problem: str | None = None
    gpus: Mapping[str, FoundGpu] | None = None
    hardware_problem: str | None = None
