"""Two node processes on one node, as in a rolling update, prepare and unprepare partitions of the same GPUs at once."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dra_driver.core.errors import DraError
from dra_driver.core.model.ids import GpuUuid
from tests.contract.node.claims.mixed import Node
from tests.fakes.claims import claim, part, ref, result
from tests.fakes.memory import memory_folder
from tests.fakes.simulated_gpus import SimulatedBackend

ROUNDS, THREADS = 6, 6
SWITCH_S = 0.002  # a switch of MIG mode takes long enough for the other process to come in between


class WatchedHardware:
    """Simulated hardware of one process; ``log`` is shared by both and counts what they do to each GPU."""

    def __init__(self, backend: SimulatedBackend, log: "HardwareLog") -> None:
        self._backend = backend
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        with self._log.switching(gpu):
            time.sleep(SWITCH_S)
            found = self._backend.snapshot().gpu_by_uuid(gpu)
            assert found is not None
            assert found.mig_enabled is not enabled, f"MIG mode of {gpu} is already {enabled}"
            self._backend.set_mig_mode(gpu, enabled)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        created = self._backend.create_gpu_instance(gpu, profile_id, start)
        self._log.created[gpu, start] += 1
        return created


class HardwareLog:
    """Instances created by GPU and start, and GPUs whose MIG mode two processes switched at the same time."""

    def __init__(self) -> None:
        self.created: Counter[tuple[str, int]] = Counter()
        self.overlaps: list[str] = []
        self._lock = threading.Lock()  # guards the set
        self._switching: set[str] = set()

    @contextmanager
    def switching(self, gpu: str) -> Iterator[None]:
        with self._lock:
            if gpu in self._switching:
                self.overlaps.append(gpu)
            self._switching.add(gpu)
        try:
            yield
        finally:
            with self._lock:
                self._switching.discard(gpu)


def test_two_processes_create_each_partition_once_and_leave_whole_gpus() -> None:
    """No MIG mode is switched by two at a time, each prepare creates one instance, and no instance is left."""
    log = HardwareLog()

    def watch(tool: Any) -> Any:
        return WatchedHardware(tool, log) if isinstance(tool, SimulatedBackend) else tool

    with TemporaryDirectory(dir=memory_folder()) as folder:
        nodes = [Node(Path(folder), seed, wrap=watch) for seed in (1, 2)]
        gpus = [view.gpu for view in nodes[0].gpu_views[:2]]
        failures: list[str] = []

        def work_of(node: Node, number: int) -> Callable[[], None]:
            """Claims for one partition of each of the two GPUs, in an order that differs between threads."""
            profile = next(p for p in gpus[0].mig_profiles if p.name == "1g.10gb")
            minors = (0, 1) if number % 2 else (1, 0)
            wanted = claim(number, *(result(part(m, profile, number), request=f"r{m}") for m in minors))
            node.api.put(wanted)

            def work() -> None:
                for _ in range(ROUNDS):
                    for call in (node.claims.service.prepare, node.claims.service.unprepare):
                        answer = call([ref(number)])[ref(number).uid]
                        if isinstance(answer, DraError):
                            failures.append(str(answer))

            return work

        threads = [
            threading.Thread(target=work_of(nodes[number % 2], number), name=f"kubelet-{number}", daemon=True)
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [thread.name for thread in threads if thread.is_alive()] == []
        assert failures == []
        assert log.overlaps == []
        assert log.created == {(gpu.uuid, start): ROUNDS for gpu in gpus for start in range(THREADS)}
        for node in nodes:
            node.finish()
