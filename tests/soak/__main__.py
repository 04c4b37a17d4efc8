"""`make soak`: thousands of mixed claims against one node process, a thousand on the embedded cluster.

Prints latency for each thousand claims, memory over claims, and what happened; exit status 1 with every leak, double
grant, breach of an invariant, growth or slowdown, and the command that runs the same again. Because of threads and
kills, two runs with one seed take the same decisions and not the same course.

usage: python -m tests.soak [--claims 10000] [--cluster-claims 1000] [--seed N] [--crashes 30] [--illnesses 60]
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Iterable, Mapping

from tests.soak import cluster_soak, node_soak
from tests.soak.invariants import Trend, grown, latency_lines, memory_lines, slower, verdict

REFUSED_SHARE, BROKEN_SHARE = 0.01, 0.04
Part = tuple[list[str], list[Trend]]
"""Failures, and what changed over the run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=10_000, help="against one node process; 0 leaves this part out")
    parser.add_argument("--cluster-claims", type=int, default=1000, help="on the embedded cluster; 0 leaves it out")
    parser.add_argument("--seed", default=str(random.randrange(10**6)), help="of all decisions")  # noqa: S311
    parser.add_argument("--crashes", type=int, default=30, help="kills of the node process, all in the first half")
    parser.add_argument("--illnesses", type=int, default=60, help="health events of GPUs")
    args = parser.parse_args()
    print(f"seed {args.seed}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start", flush=True)
    began = time.monotonic()
    failures: list[str] = []
    trends: list[Trend] = []
    for wanted, part in ((args.claims, node_part), (args.cluster_claims, cluster_part)):
        if wanted:
            found, changes = part(args)
            failures += [*found, *verdict(each for each in changes if each.is_worse)]
            trends += changes
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes in all, load {os.getloadavg()[0]:.1f} at the end")
    for failure in failures:
        print(f"FAILED: {failure}")
    if failures:
        print(
            f"again: python -m tests.soak --seed {args.seed} --claims {args.claims}"
            f" --cluster-claims {args.cluster_claims} --crashes {args.crashes} --illnesses {args.illnesses}"
        )
    else:
        print("\n".join(["No leak, no double grant, no breach.", *verdict(trends)]))
    return 1 if failures else 0


def node_part(args: argparse.Namespace) -> Part:
    """Claims against one node process, as from a kubelet that starts several pods at a time."""
    found = node_soak.run(args.claims, args.crashes, args.seed, refused_share=REFUSED_SHARE, illnesses=args.illnesses)
    soak = found.soak
    print(f"\none node, {args.claims} claims in {found.seconds:.0f} s; invariants checked {found.checks} times")
    _print_seen(soak.seen)
    _print_lines(latency_lines("prepare", soak.prepares_ms), latency_lines("unprepare", soak.unprepares_ms))
    _print_lines(memory_lines(found.memory), soak.failures)
    return soak.failures, [
        grown(found.memory),
        slower("prepare", soak.prepares_ms),
        slower("unprepare", soak.unprepares_ms),
    ]


def cluster_part(args: argparse.Namespace) -> Part:
    found = cluster_soak.run(args.cluster_claims, args.seed)
    print(f"\ncluster, {args.cluster_claims} claims in {found.seconds:.0f} s; grants compared {found.checks} times")
    _print_seen(found.seen)
    _print_lines(latency_lines("pod ready", found.ready_ms), memory_lines(found.memory))
    return found.failures, [slower("a pod's start", found.ready_ms)]


def _print_seen(seen: Mapping[str, int]) -> None:
    print("  " + ", ".join(f"{what} {count}" for what, count in sorted(seen.items())))


def _print_lines(*parts: Iterable[str]) -> None:
    for part in parts:
        for line in part:
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
