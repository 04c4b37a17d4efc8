"""How much of a node is stranded by the order in which its MIG placements are published.

Plays random sequences of requests on a node under first fit, once with placements in the order that this driver
publishes and once by name, as NVIDIA's driver lists them, with the same requests at the same times. Two kinds of
sequences: *filling* (no partition is freed; as many slices are requested as exist) and *coming and going* (each
partition is freed after a random time, with 80 % of the slices requested on average). Sizes are either equally
frequent, or the rarer the more compute slices they have (*mostly small*). Boards of one geometry have equal figures:
their engines never run out.

- stranded: of the requested compute slices, those refused although the node had as many compute and memory slices
  free, but in the wrong place. In per cent.
- refused: of the requests, those that did not fit. In per cent.
- largest: compute slices of the largest profile that still fits on any GPU, on average over time.

The hardware model is in this file (one integer per GPU); a test compares it with the real allocator.

usage: python -m tests.bench.packing [--sequences 1000] [--gpus 4] [--seed 1] [MODEL ...]
"""

import argparse
import heapq
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dra_driver.core.model.mig import MigProfile, partition_name
from dra_driver.hardware.mig.order import Placement, placement_order
from tests.fakes.simulated_gpus import SimulatedBackend

MODELS = (
    "a30-24gb",
    "a100-sxm4-40gb",
    "a100-sxm4-80gb",
    "h100-sxm5-80gb",
    "h200-sxm-141gb",
    "b200-180gb",
    "rtx-pro-6000-blackwell-se-96gb",
)
LOAD = 0.8
ARRIVALS = 100
FIELD = 20  # bits for one counter in a packed integer; the highest one stays set while the counter is not overdrawn
ENGINES = ("copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines")


def profiles_of(model: str) -> tuple[MigProfile, ...]:
    return SimulatedBackend.from_spec(f"1x{model}", "bench").snapshot().gpus[0].mig_profiles


def name_order(profiles: Sequence[MigProfile]) -> tuple[Placement, ...]:
    placements = [(profile, start) for profile in profiles for start in profile.starts]
    return tuple(sorted(placements, key=lambda one: partition_name(0, one[0].name, one[0].profile_id, one[1])))


class Board:
    """Counters of a GPU and of each placement in one integer: memory slices, compute slices, instances, common
    engines."""

    def __init__(self, profiles: Sequence[MigProfile]) -> None:
        self.profiles = tuple(profiles)
        self.memory_slices = max(start + p.memory_slices for p in profiles for start in p.starts)
        self.compute_slices = max(p.compute_slices for p in profiles)
        engines = [name for name in ENGINES if all(getattr(p, name) is not None for p in profiles)]
        limits = [1] * self.memory_slices + [self.compute_slices] + [p.max_instances for p in profiles]
        limits += [max(getattr(p, name) for p in profiles) for name in engines]
        self.guards = sum(1 << (FIELD * place + FIELD - 1) for place in range(len(limits)))
        self.full = self.guards + _packed(limits)
        self.takes = {
            (profile.profile_id, start): _packed(
                [int(start <= place < start + profile.memory_slices) for place in range(self.memory_slices)]
                + [profile.compute_slices]
                + [int(other is profile) for other in profiles]
                + [getattr(profile, name) for name in engines]
            )
            for profile in profiles
            for start in profile.starts
        }

    def asked_for(self) -> tuple[MigProfile, ...]:
        """One profile of each size except the whole GPU; of equal sizes the one with the highest maximum."""
        sizes: dict[tuple[int, int], MigProfile] = {}
        for profile in sorted(self.profiles, key=lambda p: (-p.max_instances, p.profile_id)):
            if profile.memory_slices < self.memory_slices:
                sizes.setdefault((profile.memory_slices, profile.compute_slices), profile)
        return tuple(sizes.values())


def _packed(values: Sequence[int]) -> int:
    return sum(value << (FIELD * place) for place, value in enumerate(values))


class Node:
    def __init__(self, board: Board, order: Sequence[Placement], gpus: int) -> None:
        self.board = board
        self.left = [board.full] * gpus
        self._compute, self._memory = board.compute_slices * gpus, board.memory_slices * gpus
        self._tries: dict[int, list[tuple[int, int]]] = {}
        for profile, start in order:
            take = board.takes[profile.profile_id, start]
            self._tries.setdefault(profile.profile_id, []).append((take, start))
        self._by_size = sorted(board.profiles, key=lambda profile: -profile.compute_slices)

    def units(self, profile: MigProfile) -> int:
        return profile.compute_slices

    def has_room(self, profile: MigProfile) -> bool:
        return self._compute >= profile.compute_slices and self._memory >= profile.memory_slices

    def place(self, profile: MigProfile) -> tuple[MigProfile, int, int] | None:
        guards = self.board.guards
        tries = self._tries[profile.profile_id]
        for gpu, left in enumerate(self.left):
            for take, start in tries:
                if (left - take) & guards == guards:
                    self.left[gpu] = left - take
                    self._compute -= profile.compute_slices
                    self._memory -= profile.memory_slices
                    return profile, gpu, start
        return None

    def remove(self, placed: tuple[MigProfile, int, int]) -> None:
        profile, gpu, start = placed
        self.left[gpu] += self.board.takes[profile.profile_id, start]
        self._compute += profile.compute_slices
        self._memory += profile.memory_slices

    def intact(self) -> int:
        """Compute slices of the largest profile that still fits."""
        guards = self.board.guards
        for profile in self._by_size:
            for take, _ in self._tries[profile.profile_id]:
                for left in self.left:
                    if (left - take) & guards == guards:
                        return profile.compute_slices
        return 0


@dataclass(frozen=True, slots=True)
class Request:
    at: float
    wanted: Any
    stays: float


class Model(Protocol):
    """A node under first fit."""

    def units(self, wanted: Any, /) -> int: ...
    def has_room(self, wanted: Any, /) -> bool: ...
    def place(self, wanted: Any, /) -> Any: ...
    def remove(self, placed: Any, /) -> None: ...
    def intact(self) -> int: ...


@dataclass(slots=True)
class Tally:
    requests: int = 0
    refused: int = 0
    units: int = 0
    stranded_units: int = 0
    intact_sum: int = 0

    @property
    def stranded(self) -> float:
        return 100 * self.stranded_units / self.units

    @property
    def refusals(self) -> float:
        return 100 * self.refused / self.requests

    @property
    def intact(self) -> float:
        return self.intact_sum / self.requests


def filling(board: Board, gpus: int, rng: random.Random, weights: Sequence[float]) -> list[Request]:
    """Requests until as many compute slices are requested as exist; no partition is freed."""
    choice = board.asked_for()
    left = board.compute_slices * gpus
    found: list[Request] = []
    while True:
        (profile,) = rng.choices(choice, weights)
        left -= profile.compute_slices
        if left < 0:
            return found
        found.append(Request(len(found), profile, float("inf")))


def coming_and_going(board: Board, gpus: int, rng: random.Random, weights: Sequence[float]) -> list[Request]:
    """`ARRIVALS` requests, each with an exponential duration such that `LOAD` of the slices is requested."""
    choice = board.asked_for()
    mean = sum(p.compute_slices * weight for p, weight in zip(choice, weights, strict=True)) / sum(weights)
    stay = LOAD * board.compute_slices * gpus / mean
    drawn = rng.choices(choice, weights, k=ARRIVALS)
    return [Request(at, profile, rng.expovariate(1 / stay)) for at, profile in enumerate(drawn)]


def evenly(_: MigProfile) -> float:
    return 1.0


def mostly_small(profile: MigProfile) -> float:
    return 1 / profile.compute_slices


KINDS = {
    "filling": (filling, evenly),
    "filling, mostly small": (filling, mostly_small),
    "coming and going": (coming_and_going, evenly),
    "coming and going, mostly small": (coming_and_going, mostly_small),
}


def sequence(board: Board, kind: str, gpus: int, seed: str) -> list[Request]:
    """One random sequence of that kind; the same for the same seed."""
    make, weight = KINDS[kind]
    rng = random.Random(seed)  # noqa: S311 - it has to come out the same every time
    return make(board, gpus, rng, [weight(profile) for profile in board.asked_for()])


def play(node: Model, requests: Sequence[Request], tally: Tally) -> list[Any]:
    """Where each request was placed; None if it was refused."""
    leaving: list[tuple[float, int, Any]] = []
    granted = []
    for number, request in enumerate(requests):
        while leaving and leaving[0][0] <= request.at:
            node.remove(heapq.heappop(leaving)[2])
        units = node.units(request.wanted)
        placed = node.place(request.wanted)
        granted.append(placed)
        tally.requests += 1
        tally.units += units
        if placed is not None:
            heapq.heappush(leaving, (request.at + request.stays, number, placed))
        else:
            tally.refused += 1
            tally.stranded_units += units if node.has_room(request.wanted) else 0
        tally.intact_sum += node.intact()
    return granted


def compare(sequences: Iterable[Sequence[Request]], nodes: Mapping[str, Callable[[], Model]]) -> Mapping[str, Tally]:
    """The same sequences on each node."""
    tallies = {name: Tally() for name in nodes}
    for requests in sequences:
        for name, node in nodes.items():
            play(node(), requests, tallies[name])
    return tallies


def measure(model: str, kind: str, *, gpus: int, sequences: int, seed: int) -> Mapping[str, Tally]:
    """Both orders over the same sequences: ``ours`` and ``by name``."""
    board = Board(profiles_of(model))
    names, ours = name_order(board.profiles), placement_order(board.profiles)
    return compare(
        (sequence(board, kind, gpus, f"{seed}/{number}") for number in range(sequences)),
        {"by name": lambda: Node(board, names, gpus), "ours": lambda: Node(board, ours, gpus)},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=4, help="GPUs of the node")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"{args.sequences} sequences on {args.gpus} GPUs, seed {args.seed}; by name -> ours\n")
    print(f"{'board':<32}{'requests':<32}{'stranded %':>16}{'refused %':>16}{'largest (slices)':>19}")
    begin = time.monotonic()
    for model in args.models:
        for kind in KINDS:
            tallies = measure(model, kind, gpus=args.gpus, sequences=args.sequences, seed=args.seed)
            name, ours = tallies["by name"], tallies["ours"]
            print(
                f"{model:<32}{kind:<32}{f'{name.stranded:.2f} -> {ours.stranded:.2f}':>16}"
                f"{f'{name.refusals:.2f} -> {ours.refusals:.2f}':>16}{f'{name.intact:.2f} -> {ours.intact:.2f}':>19}",
                flush=True,
            )
    print(f"\n{time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
