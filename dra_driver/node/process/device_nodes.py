"""Wires the keeping of device nodes (`device_nodes.reconciler`, `device_nodes.tools`) and reports what it cannot do."""

import errno
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.device_nodes.folder import DevFolder
from dra_driver.hardware.device_nodes.numbers import Majors, NodeNumbers, registered_names
from dra_driver.hardware.device_nodes.reconciler import DeviceNodeReconciler, Problem, ProblemKind, WantedNode
from dra_driver.hardware.device_nodes.tools import DriverTools, UvmModule
from dra_driver.hardware.driver_root.search import RootSource
from dra_driver.node.process.hardware import Hardware

log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 10.0
_SHOWN: Final = 3
_ALL_DEVICES: Final = Path("/proc/devices")


class HostDeviceNodes:
    """The node's device nodes. Without ``keeper``, only device numbers are given. Thread-safe.

    ``may_touch`` says whether the driver may be touched: not while the GPUs are detached.
    """

    def __init__(
        self, uvm: UvmModule, keeper: DeviceNodeReconciler | None, *, may_touch: Callable[[], bool] = lambda: True
    ) -> None:
        self.uvm, self._keeper, self._may_touch = uvm, keeper, may_touch

    @classmethod
    def of(cls, found: Hardware, tools: Callable[[RootSource], DriverTools] = DriverTools) -> Self:
        """For real GPUs with the driver's tools; for simulated ones without, and only in a ``/dev`` that was named."""

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
        """Load nvidia-uvm and make the nodes of all GPUs, as far as possible; what remains. Raises nothing.

        None while the driver may not be touched: then nothing is known, or wrong.
        """
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

    ``check`` is a chore; ``remarks`` may be called from any thread. ``warn`` records an event, and says whether that
    was possible.
    """

    def __init__(
        self, nodes: HostDeviceNodes, gpu_minors: Callable[[], Iterable[int]], warn: Callable[[str, str], bool]
    ) -> None:
        self._nodes, self._gpu_minors, self._warn = nodes, gpu_minors, warn
        self._remarks: list[str] = []
        self._reported: dict[str, str | None] = {}

    def remarks(self) -> list[str]:
        """What works for most pods only, one sentence each."""
        return self._remarks

    def check(self) -> None:
        """Looks at all nodes, and reports each change once."""
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
            log.info("device nodes are as they should be again", extra={"before": before})
        else:
            log.warning("device nodes are not as they should be", extra={"problem": text})
        if text is None or self._warn(reason, text):
            self._reported[reason] = text
