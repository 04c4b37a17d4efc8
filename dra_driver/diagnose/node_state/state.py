"""What was found on a node, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.mig import MigInstance
from dra_driver.node.claims.inspection import GpuStateBackup, JournalContent


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalState:
    """``problem`` is a sentence when it cannot be read; ``content`` is None then, and when there is none."""

    path: Path
    content: JournalContent | None = None
    problem: str | None = None
    set_aside: tuple[Path, ...] = ()
    """Damaged journals that were kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiState:
    """CDI files of this driver. ``problems`` has a sentence for each file that no container runtime would load."""

    folder: Path
    base: bool = False
    claims: frozenset[ClaimUid] = frozenset()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """An MPS daemon's folder. ``status`` is that of the host, "released" until its release is complete, or ""."""

    id: str
    wanted: bool
    status: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsState:
    """``host_problem`` is None while an MPS host works; one that hangs has a problem and lives.

    ``mounts`` are this driver's file systems in memory, by id.
    """

    host_problem: str | None = None
    host_lives: bool = False
    daemons: tuple[DaemonState, ...] = ()
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketState:
    """A socket of this driver, and whether a process accepts connections on it."""

    path: Path
    served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpu:
    """A GPU as it was read, with its instances."""

    minor: int
    mig_enabled: bool
    instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
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
