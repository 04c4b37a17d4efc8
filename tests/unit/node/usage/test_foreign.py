"""Processes of no claim are told after a while, with what they have."""

from datetime import timedelta

from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.usage_findings import MAX_COMMAND, MAX_COMMANDS, Unattributed
from dra_driver.node.usage.values import GpuUse, SeenProcess
from dra_driver.node.usage.watchdog import ForeignState, watch_foreign
from tests.unit.node.usage.claims import GIB, NOW

PYTHON = SeenProcess(pid=10, command="python3", memory_bytes=2 * GIB)
GPU = GpuUse(gpu_uuid=GpuUuid("GPU-0"), device="gpu-0", unattributed=(PYTHON,))


def looks(*uses: GpuUse, every_s: float = 15.0) -> tuple[Unattributed, ...]:
    state: ForeignState = {}
    found: tuple[Unattributed, ...] = ()
    for number, use in enumerate(uses):
        state, found = watch_foreign(state, [use], every_s, NOW + timedelta(seconds=number * every_s))
    return found


def test_a_process_is_told_when_it_stays() -> None:
    """The first looks may come before it is known whose it is."""
    assert looks(GPU, GPU) == ()
    assert looks(GPU, GPU, GPU) == (
        Unattributed(
            gpu_uuid="GPU-0", device="gpu-0", processes=1, bytes_used=2 * GIB, since=NOW, commands=("python3",)
        ),
    )


def test_processes_that_only_pass_are_nothing() -> None:
    passing = [replace(GPU, unattributed=(replace(PYTHON, pid=pid),)) for pid in range(5)]
    assert looks(*passing) == ()


def test_programs_of_the_driver_are_nothing() -> None:
    """The MPS server has memory on each shared GPU; /proc cuts its name to 15 characters."""
    server = replace(GPU, unattributed=(replace(PYTHON, command="nvidia-cuda-mps"),))
    assert looks(server, server, server) == ()


def test_unknown_memory_of_one_makes_the_sum_unknown() -> None:
    two = replace(GPU, unattributed=(PYTHON, SeenProcess(pid=11)))
    (found,) = looks(two, two, two)
    assert (found.processes, found.bytes_used) == (2, None)


def test_names_are_bounded_and_the_largest_come_first() -> None:
    """A process chooses its own name."""
    many = tuple(SeenProcess(pid=number, command=f"{number}{'x' * 200}", memory_bytes=number) for number in range(9))
    use = replace(GPU, unattributed=many)
    (found,) = looks(use, use, use)
    assert len(found.commands) == MAX_COMMANDS
    assert found.commands[0] == f"8{'x' * 200}"[:MAX_COMMAND]


def test_it_ends_with_the_processes() -> None:
    assert looks(GPU, GPU, GPU, replace(GPU, unattributed=())) == ()


def test_memory_that_changes_little_is_told_as_before() -> None:
    grown = [replace(GPU, unattributed=(replace(PYTHON, memory_bytes=size),)) for size in (2 * GIB + 1, 4 * GIB)]
    assert looks(GPU, GPU, GPU, grown[0])[0].bytes_used == 2 * GIB
    assert looks(GPU, GPU, GPU, grown[1])[0].bytes_used == 4 * GIB
