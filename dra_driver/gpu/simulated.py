"""GPUs that do not exist, behind the same interface as real ones.

Owns the change over time: a spec file that is read again when it changes, and faults set by whoever holds the object.
Refuses to know the spec's grammar (``simulated_spec.py``). It stands in for hardware in the embedded cluster and in
tests; the contract tests hold its snapshots equal to those read through NVML from the same spec.
"""

import threading
from pathlib import Path

from dra_driver.errors import ConfigurationError, DriverUnavailableError
from dra_driver.gpu.simulated_spec import SimulatedNode, parse_document, parse_groups
from dra_driver.model.gpu import LeftOutGpu, Snapshot

MAX_FILE_BYTES = 1024 * 1024
_Stamp = tuple[int, int, int]


class SimulatedBackend:
    """A ``backend.Backend`` over a described node.

    Thread-safe. A GPU marked lost is left out under its UUID, with the reason given, until it is restored.
    """

    def __init__(self, node: SimulatedNode, *, file: Path | None = None, node_name: str = "") -> None:
        """``file`` is read again, for ``node_name``, whenever its inode, size or modification time changes."""
        self._lock = threading.Lock()  # guards everything below
        self._node = node
        self._file = file
        self._node_name = node_name
        self._stamp: _Stamp | None = None
        self._lost: dict[int, str] = {}

    @classmethod
    def from_spec(cls, spec: str, node_name: str) -> "SimulatedBackend":
        """``8xh100-sxm5-80gb``, ``4xa100-sxm4-40gb,2xl4-24gb``, or the path of a .yaml file (see ``simulated_spec``).

        UUIDs are stable per node name and minor and differ between nodes. Raises ConfigurationError.
        """
        if not _is_path(spec):
            return cls(parse_groups(spec, node_name), node_name=node_name)
        file = Path(spec)
        backend = cls(SimulatedNode(), file=file, node_name=node_name)
        backend._reload()
        return backend

    def open(self) -> None:
        """See ``Backend.open``."""
        with self._lock:
            self._current()

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. A spec file that became unreadable or wrong counts as a driver that went away."""
        with self._lock:
            node = self._current()
            lost = {item.gpu.minor: item.lost for item in node.gpus if item.lost is not None} | self._lost
        return Snapshot(
            driver_version=node.driver_version,
            cuda_driver_version=node.cuda_driver_version,
            gpus=tuple(item.gpu for item in node.gpus if item.gpu.minor not in lost),
            left_out=tuple(
                LeftOutGpu(label=item.gpu.uuid, reason=lost[item.gpu.minor])
                for item in node.gpus
                if item.gpu.minor in lost
            ),
        )

    def close(self) -> None:
        """See ``Backend.close``; there is nothing to let go of."""

    def mark_lost(self, minor: int, reason: str) -> None:
        """From the next snapshot on the GPU ``minor`` does not answer. Repeating it replaces the reason."""
        with self._lock:
            self._lost[minor] = reason

    def restore(self, minor: int) -> None:
        """Undo ``mark_lost``; a ``lost`` written in the spec file stays. Idempotent."""
        with self._lock:
            self._lost.pop(minor, None)

    def replace_node(self, node: SimulatedNode) -> None:
        """Give the node other hardware, as after a hot-plug. Refused (ConfigurationError) when a file describes it."""
        with self._lock:
            if self._file is not None:
                raise ConfigurationError(f"the node's GPUs are described by {self._file}: change that file")
            self._node = node

    def _current(self) -> SimulatedNode:
        """The node as described now; the caller holds the lock."""
        if self._file is not None:
            try:
                self._reload()
            except ConfigurationError as error:
                raise DriverUnavailableError(f"simulated driver: {error}") from error
        if self._node.unavailable is not None:
            raise DriverUnavailableError(f"simulated driver: {self._node.unavailable}")
        return self._node

    def _reload(self) -> None:
        if self._file is None:
            return
        try:
            stamp = _stamp(self._file)
            if stamp == self._stamp:
                return
            text = _read(self._file)
            self._node = parse_document(text, self._node_name)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the simulated GPUs from {self._file}: {error}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._file}: {error}") from error
        self._stamp = stamp


def _is_path(spec: str) -> bool:
    return "/" in spec or spec.endswith((".yaml", ".yml"))


def _stamp(file: Path) -> _Stamp:
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(file: Path) -> str:
    with file.open(encoding="utf-8") as stream:
        text = stream.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise ConfigurationError(f"more than {MAX_FILE_BYTES} characters")
    return text
