"""How many claims for two linked GPUs are refused because of the order in which the GPUs are published.

Plays random sequences of claims for one GPU and for two linked GPUs on a node under first fit, once with GPUs in the
order that this driver publishes and once by minor number, as NVIDIA's driver lists them, with the same claims at the
same times. *Filling*: no claim ends. *Coming and going*: each ends after a random time, with 80 % of the GPUs requested
on average. *Mostly one*: three of four claims are for one GPU, else half.

- stranded: of the claims for two, those refused although two GPUs were free, but no pair. In per cent.
- refused: of all claims. In per cent.
- whole: pairs of which no GPU or both are taken, on average over time, of all pairs. In per cent.

A test compares the model with the real allocator.

usage: python -m tests.bench.linking [--sequences 1000] [--seed 1]
"""

import argparse
import random
from collections.abc import Mapping, Sequence
from functools import partial

from dra_driver.core.model.gpu import Gpu
from dra_driver.hardware.gpu.simulated.spec import parse_document
from dra_driver.kube.published import Islands, in_order, islands_of
from tests.bench.packing import Request, Tally, compare

LOAD, ARRIVALS = 0.8, 60
BOARDS = {
    "4 GPUs, pairs 0-2 1-3": "a b a b",
    "4 GPUs, pairs 0-1 2-3": "a a b b",
    "8 GPUs, pairs 0-4 1-5 2-6 3-7": "a b c d a b c d",
    "6 GPUs, pairs 0-1 2-3, two alone": "a a b b - -",
}
KINDS = {
    "filling": (False, 0.5),
    "filling, mostly one": (False, 0.75),
    "coming and going": (True, 0.5),
    "coming and going, mostly one": (True, 0.75),
}  # whether claims end, and how many of them are for one GPU


def board(words: str) -> tuple[Gpu, ...]:
    bridges = [f"bridge-{word}" if word != "-" else "none" for word in words.split()]
    entries = "".join(f"- {{model: a100-pcie-80gb, nvlink: {bridge}}}\n" for bridge in bridges)
    return tuple(item.gpu for item in parse_document(f"gpus:\n{entries}", "bench").gpus)


def orders(gpus: Sequence[Gpu]) -> Mapping[str, tuple[Gpu, ...]]:
    return {"by minor": tuple(gpus), "ours": tuple(in_order(gpus, islands_of(gpus)))}


class Node:
    def __init__(self, order: Sequence[Gpu], islands: Islands) -> None:
        self.free = dict.fromkeys(gpu.minor for gpu in order)
        self._order = tuple(self.free)
        name_of = {gpu.minor: islands[gpu.uuid].name for gpu in order if gpu.uuid in islands}
        self.pairs = [(a, b) for a in self._order for b in self._order if a < b and name_of.get(a, a) == name_of.get(b)]
        self._tries: dict[int, list[tuple[int, ...]]] = {1: [(one,) for one in self._order], 2: self._ordered_pairs()}
        self._taken: set[int] = set()

    def _ordered_pairs(self) -> list[tuple[int, ...]]:
        place = {minor: number for number, minor in enumerate(self._order)}
        return sorted((tuple(sorted(pair, key=place.__getitem__)) for pair in self.pairs), key=lambda p: place[p[0]])

    def units(self, count: int) -> int:
        return int(count == 2)

    def has_room(self, count: int) -> bool:
        return count <= len(self._order) - len(self._taken)

    def place(self, count: int) -> tuple[int, ...] | None:
        found = next((one for one in self._tries[count] if self._taken.isdisjoint(one)), None)
        self._taken.update(found or ())
        return found

    def remove(self, gpus: Sequence[int]) -> None:
        self._taken.difference_update(gpus)

    def intact(self) -> int:
        """Pairs of which no GPU or both are taken."""
        return sum((a in self._taken) == (b in self._taken) for a, b in self.pairs)


def sequence(kind: str, gpus: int, seed: str) -> list[Request]:
    """Claims for a number of GPUs; the same for the same seed."""
    ends, ones = KINDS[kind]
    rng = random.Random(seed)  # noqa: S311 - it has to come out the same every time
    drawn = rng.choices((1, 2), (ones, 1 - ones), k=ARRIVALS if ends else gpus)
    if ends:
        stay = LOAD * gpus / (2 - ones)
        return [Request(at, count, rng.expovariate(1 / stay)) for at, count in enumerate(drawn)]
    return [Request(at, count, float("inf")) for at, count in enumerate(drawn) if sum(drawn[: at + 1]) <= gpus]


def measure(words: str, kind: str, *, sequences: int, seed: int) -> Mapping[str, Tally]:
    """Both orders over the same sequences."""
    gpus = board(words)
    islands = islands_of(gpus)
    return compare(
        (sequence(kind, len(gpus), f"{seed}/{number}") for number in range(sequences)),
        {name: partial(Node, order, islands) for name, order in orders(gpus).items()},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"{args.sequences} sequences, seed {args.seed}; by minor -> ours\n")
    print(f"{'board':<36}{'claims':<32}{'stranded %':>18}{'refused %':>18}{'whole pairs %':>18}")
    for name, words in BOARDS.items():
        pairs = len(Node(board(words), islands_of(board(words))).pairs)
        for kind in KINDS:
            tallies = measure(words, kind, sequences=args.sequences, seed=args.seed)
            minor, ours = tallies["by minor"], tallies["ours"]
            whole = [100 * tally.intact / pairs for tally in (minor, ours)]
            cells = ((minor.stranded, ours.stranded), (minor.refusals, ours.refusals), whole)
            print(f"{name:<36}{kind:<32}" + "".join(f"{f'{a:.2f} -> {b:.2f}':>18}" for a, b in cells), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
