"""Keep NVIDIA's device nodes in the host's ``/dev``, and their links in ``/dev/char``. Nothing is deleted.

CDI documents carry device numbers, so most containers need no node on the host. Exceptions: runtimes mount the host's
node in pods with ``hostUsers: false`` (opencontainers/runc 76d9cf5d, ``libcontainer/rootfs_linux.go``), and systemd
before version 240 needs the links when it reloads (github.com/opencontainers/cgroups, ``devices/systemd.go``;
NVIDIA/nvidia-docker#1671). So a missing node or link is a warning, but a different file at a node's path is an error,
because a container would get it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.core.errors import DeviceLostError, DeviceNodeError, DraError
from dra_driver.hardware.device_nodes.folder import (
    DevFolder,
    Found,
    NodeParams,
    Stamp,
    ensure_link,
    ensure_node,
    params_path,
    read_params,
)
from dra_driver.hardware.device_nodes.numbers import (
    CONTROL_NODES,
    Majors,
    NodeKind,
    NodeNumbers,
    expected_numbers,
    kind_of,
    mig_minors,
)
from dra_driver.hardware.device_nodes.tools import DriverTools


class CapabilityFile(Struct, frozen=True, kw_only=True):
    """An access file. ``gone``: the module has such files, but not this one, so the instance does not exist."""

    path: str
    gone: bool


def capability_file(proc_driver: str, minor: int) -> CapabilityFile | None:
    """The file of ``nvidia-cap<minor>`` below ``/proc/driver``; None where the module lists none. Never raises."""
    instance = next((name for name, number in mig_minors(proc_driver).items() if number == minor), None)
    folder = f"{proc_driver}/nvidia/capabilities"
    if instance is None or not os.path.isdir(folder):  # noqa: PTH112
        return None
    gpu, _, rest = instance.partition("/")
    path = f"{folder}/{gpu}/mig/{rest}/access"
    return CapabilityFile(path=path, gone=not os.path.exists(path))  # noqa: PTH110


KEEP_S: Final = 600.0
"""Seconds after which a problem that a prepare found expires, unless it is found again."""


class ProblemKind(StrEnum):
    NODE = "node"
    LINK = "link"
    PERMISSION = "permission"


class Problem(Struct, frozen=True, kw_only=True):
    """``text`` is a sentence with a next step."""

    kind: ProblemKind
    path: str
    text: str


class Problems:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: dict[tuple[str, ProblemKind], tuple[str, float]] = {}

    def put(self, kind: ProblemKind, path: str, text: str | None) -> None:
        if text is None:
            self._found.pop((path, kind), None)
        else:
            self._found[path, kind] = (text, self._clock() + KEEP_S)

    def current(self) -> tuple[Problem, ...]:
        now = self._clock()
        self._found = {key: value for key, value in self._found.items() if value[1] > now}
        return tuple(
            Problem(kind=kind, path=path, text=text) for (path, kind), (text, _) in sorted(self._found.items())
        )


log = logging.getLogger(__name__)

TOOLS_PAUSE_S: Final = 60.0
"""Seconds without calls of tools that failed: nodes are made without them."""
_CAPABILITY_MODE: Final = 0o444
_READ_WRITE, _READ = 0o006, 0o004


class WantedNode(Protocol):
    """A node of a CDI document; the container and the host have it at the same ``path``."""

    @property
    def path(self) -> str: ...


class _Node(Struct, frozen=True, kw_only=True):
    path: str
    kind: NodeKind
    numbers: NodeNumbers


class DeviceNodeReconciler:
    """Keeps nodes in ``dev``, which this process sees at ``folder``. Thread-safe. ``majors`` are the kernel's as last
    read. ``tools`` run only while ``may_use_tools``: nvidia-modprobe loads a driver that was just unloaded."""

    def __init__(
        self,
        dev: DevFolder,
        majors: Callable[[], Majors | None],
        *,
        folder: str = "/dev",
        proc_driver: str = "/proc/driver",
        tools: DriverTools | None = None,
        may_use_tools: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dev = dev
        self._majors = majors
        self._folder = folder
        self._proc_driver = proc_driver
        self._tools = tools
        self._may_use_tools = may_use_tools
        self._clock = clock
        self._lock = threading.Lock()  # one change at a time; guards the next two
        self._problems = Problems(clock)
        self._tools_after = clock()
        # Written entry by entry and read without the lock: correct nodes, and the kernel's numbers at that time.
        self._kept: dict[str, tuple[Majors, Stamp]] = {}

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems by path, including problems that prepares found within `KEEP_S`."""
        with self._lock:
            return self._problems.current()

    def ensure(self, nodes: Iterable[WantedNode]) -> None:
        """Ensure these nodes, the nodes that every container needs, and their links. Nodes of other drivers and of
        unloaded modules are skipped. One ``lstat`` for each node that was right before.

        Raises `DeviceNodeError` for a different file at a node's path, `DeviceLostError` for a destroyed MIG instance.
        Failures that affect only some pods become `problems`."""
        self._keep(node.path for node in nodes)

    def check(self, gpu_minors: Iterable[int]) -> None:
        """Ensure the nodes of these GPUs and of every container before a claim needs them. Raises nothing."""
        try:
            self._keep(f"/dev/nvidia{minor}" for minor in gpu_minors)
        except DraError as error:
            log.debug("a device node is not as it should be", extra={"reason": error})

    def _keep(self, paths: Iterable[str]) -> None:
        majors = self._majors()
        if majors is None:
            return
        kept, stamp = self._kept, self._dev.stamp
        found = [path for path in (*CONTROL_NODES, *paths) if kept.get(path) != (majors, stamp(path))]
        nodes = list(_expected(found, majors))
        if not nodes:
            return
        with self._lock:
            capabilities = [node for node in nodes if node.kind is NodeKind.CAPABILITY]
            files = {node.path: capability_file(self._proc_driver, node.numbers.minor) for node in capabilities}
            self._use_tools([node for node in nodes if self._is_wrong(node)], files)
            errors = [error for node in nodes if (error := self._settle(node, files.get(node.path), majors))]
        if errors:
            raise errors[0]

    def _is_wrong(self, node: _Node) -> bool:
        try:
            seen = self._dev.look(node.path)
        except OSError:
            return False
        return seen.found in (Found.MISSING, Found.DEVICE) and seen.numbers != node.numbers

    def _use_tools(self, nodes: Sequence[_Node], files: dict[str, CapabilityFile | None]) -> None:
        """Ask the driver's tools for the nodes; `_settle` makes the rest."""
        tools = self._tools
        if not nodes or tools is None or self._clock() < self._tools_after or not self._may_use_tools():
            return
        if not tools.shares(self._folder):
            return  # they would make nodes in the /dev of a driver container
        kinds = {node.kind for node in nodes}
        minors = [node.numbers.minor for node in nodes if node.kind in (NodeKind.GPU, NodeKind.CONTROL)]
        access = [file.path for node in nodes if (file := files.get(node.path)) and not file.gone]
        outcomes = [tools.make_uvm()] if NodeKind.UVM in kinds else []
        if minors or access or NodeKind.MODESET in kinds:
            outcomes.append(tools.make(minors, access, modeset=NodeKind.MODESET in kinds))
        failed = [outcome.said for outcome in outcomes if outcome is not None and not outcome.worked]
        if failed:
            self._tools_after = self._clock() + TOOLS_PAUSE_S
            log.warning("device nodes are made without the driver's tool", extra={"reason": failed[0]})

    def _settle(self, node: _Node, file: CapabilityFile | None, majors: Majors) -> DraError | None:
        """Make node and link if need be; the error for which a claim must not have the node."""
        if file is not None and file.gone:
            return DeviceLostError(
                f"{node.path} cannot be injected into a container: {file.path} no longer exists, so another"
                " program destroyed the MIG instance; delete the pod, or wait until the driver creates the instance",
                reason="CapabilityVanished",
            )
        put, done = self._problems.put, ensure_node(self._dev, node.path, node.numbers, self._params(node, file))
        reason = done.refusal or done.missing
        put(ProblemKind.NODE, node.path, reason and _no_node(node, reason))
        if done.refusal is not None:
            return DeviceNodeError(_no_node(node, done.refusal))
        put(ProblemKind.PERMISSION, node.path, _not_open(node, done.mode))
        link = ensure_link(self._dev, node.path, node.numbers) if done.missing is None else None
        put(ProblemKind.LINK, node.path, link and _no_link(node, link))
        if done.missing is None and link is None:
            self._kept[node.path] = (majors, self._dev.stamp(node.path))
        return None

    def _params(self, node: _Node, file: CapabilityFile | None) -> NodeParams:
        match node.kind:
            case NodeKind.CAPABILITY:
                found = read_params(file.path, mode=_CAPABILITY_MODE) if file is not None else None
                return found or NodeParams(mode=_CAPABILITY_MODE)
            case NodeKind.UVM:  # the module has no parameters for them
                return NodeParams()
            case _:
                return read_params(params_path(self._proc_driver))


def _expected(paths: Iterable[str], majors: Majors) -> Iterator[_Node]:
    for path in paths:
        kind, numbers = kind_of(path), expected_numbers(path, majors)
        if kind is not None and numbers is not None:
            yield _Node(path=path, kind=kind, numbers=numbers)


def _no_node(node: _Node, reason: str) -> str:
    return (
        f"the host's {node.path} is not the character device {node.numbers.major}:{node.numbers.minor}: {reason}. Pods"
        ' with hostUsers: false cannot have it; make it on the node (see "Device nodes" in docs/driver-roots.md), and'
        " check that this pod has the host's /dev"
    )


def _not_open(node: _Node, mode: int | None) -> str | None:
    needed = _READ if node.kind is NodeKind.CAPABILITY else _READ_WRITE
    if mode is None or mode & needed == needed:
        return None
    return (
        f"the host's {node.path} has mode {mode:04o}, so pods with hostUsers: false cannot open it; other pods can. To"
        " serve them, load the NVIDIA module with NVreg_DeviceFileMode=0666"
    )


def _no_link(node: _Node, reason: str) -> str:
    return (
        f"{reason}. With systemd before version 240, running containers lose {node.path} at the next `systemctl"
        " daemon-reload`; run `nvidia-ctk system create-dev-char-symlinks --create-all` on the node"
    )
