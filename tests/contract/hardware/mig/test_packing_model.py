"""The bench's model of first fit and the real allocator, on the same requests: every grant at the same place."""

import pytest
from msgspec.structs import replace

from dra_driver.hardware.mig.order import placement_order
from dra_driver.node.slices import Built
from tests.bench.packing import Board, Node, Request, name_order, sequence
from tests.fakes.published import Scheduler, built, partition, published
from tests.fakes.simulated_gpus import SimulatedBackend

GPUS = 2


def by_name(listed: Built) -> Built:
    groups = (replace(group, devices=tuple(sorted(group.devices, key=lambda one: one.name))) for group in listed.groups)
    return replace(listed, groups=tuple(groups))


def events(requests: list[Request]) -> list[tuple[float, int, Request, bool]]:
    found = [(request.at, number, request, True) for number, request in enumerate(requests)]
    found += [(request.at + request.stays, number, request, False) for number, request in enumerate(requests)]
    return sorted(found, key=lambda event: (event[0], event[3]))


@pytest.mark.parametrize(
    ("model", "order"),
    [
        ("a100-sxm4-40gb", "ours"),
        ("a100-sxm4-40gb", "by name"),
        ("b200-180gb", "ours"),
        ("a30-24gb", "by name"),
        ("rtx-pro-6000-blackwell-se-96gb", "ours"),
    ],
)
def test_model_and_allocator_agree(model: str, order: str) -> None:
    """What the table of stranded capacity is computed with places every partition where the scheduler does."""
    snapshot = SimulatedBackend.from_spec(f"{GPUS}x{model}+mig", "n").snapshot()
    board = Board(snapshot.gpus[0].mig_profiles)
    listed = built(snapshot) if order == "ours" else by_name(built(snapshot))
    scheduler = Scheduler(published(listed))
    node = Node(board, placement_order(board.profiles) if order == "ours" else name_order(board.profiles), GPUS)
    placed: dict[int, tuple[str, tuple[int, int]]] = {}
    refused = 0
    for _, number, request, arrives in events(sequence(board, "coming and going", GPUS, "contract")):
        profile = request.profile
        if not arrives:
            if number in placed:
                claim, (gpu, start) = placed.pop(number)
                scheduler.release(claim)
                node.remove(gpu, profile.profile_id, start)
            continue
        expected = node.place(profile.profile_id)
        granted = scheduler.allocate(partition("one", profile.name))
        if expected is None or granted is None:
            assert expected is None
            assert granted is None
            refused += 1
            continue
        gpu, start = expected
        label, (device,) = granted
        assert device.startswith(f"gpu-{gpu}-mig-")
        assert device.endswith(f"-{profile.profile_id}-{start}")
        placed[number] = (label, expected)
    assert refused > 5
