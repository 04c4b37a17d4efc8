"""Two runs of the node process, as in a rolling update, at the same GPUs at the same time."""

import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from dra_driver.errors import DraError
from tests.contract.claims.mixed import Node
from tests.fakes.claims import claim, part, ref, result
from tests.fakes.memory import memory_folder

ROUNDS = 6


def test_two_runs_cut_and_join_the_same_gpus_without_harm() -> None:
    """Each partition is made once, MIG mode is switched by one at a time, and at the end the GPUs are whole."""
    with TemporaryDirectory(dir=memory_folder()) as folder:
        nodes = [Node(Path(folder), seed) for seed in (1, 2)]
        failures: list[str] = []

        def lane(node: Node, number: int) -> Callable[[], None]:
            """Claims for one partition of each of two GPUs, in an order that differs between lanes."""
            profile = next(p for p in node.books[0].gpu.mig_profiles if p.name == "1g.10gb")
            minors = (0, 1) if number % 2 else (1, 0)
            wanted = claim(number, *(result(part(m, profile, number % 7), request=f"r{m}") for m in minors))
            node.api.put(wanted)

            def work() -> None:
                for _ in range(ROUNDS):
                    for call in (node.claims.service.prepare, node.claims.service.unprepare):
                        answer = call([ref(number)])[ref(number).uid]
                        if isinstance(answer, DraError):
                            failures.append(str(answer))

            return work

        threads = [
            threading.Thread(target=lane(nodes[number % 2], number), name=f"lane-{number}") for number in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        for node in nodes:
            node.finish()
