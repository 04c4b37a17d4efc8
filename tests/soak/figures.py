"""Memory and latency over a long run, and whether they stay flat. Pure but for reading /proc."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PER = 1000
GROWTH_MIB = 4.0
"""How much the memory of one process may grow between the first and the last fifth of its run: fragments and caches."""
SLOWDOWN = 2.0
"""How much slower the last third may be than the first: other work on the machine."""
EARLY_CLAIMS = 1500
"""A process loads code, fills caches, and its heap gets its holes until about then. Without kills, live blocks
(``sys.getallocatedblocks``) were 211,460 after 500 claims, 211,704 after 2,000 and 212,435 after 3,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Resident memory of process ``pid`` after ``claims`` claims."""

    claims: int
    pid: int
    mib: float


def latency_lines(what: str, figures_ms: Sequence[float]) -> Iterator[str]:
    """p50 and p99 of each thousand."""
    for at in range(0, len(figures_ms), PER):
        part = sorted(figures_ms[at : at + PER])
        if len(part) < PER // 4:
            return
        p99 = part[min(len(part) - 1, int(len(part) * 0.99))]
        yield f"  {what} {at + 1:>6} to {at + len(part):>6}: p50 {part[len(part) // 2]:7.1f} ms  p99 {p99:8.1f} ms"


def slower(what: str, figures_ms: Sequence[float]) -> list[str]:
    """A sentence when the last third is slower than the first; nothing for short runs."""
    third = len(figures_ms) // 3
    if third < PER // 4:
        return []
    first, last = statistics.median(figures_ms[:third]), statistics.median(figures_ms[-third:])
    if last <= SLOWDOWN * first:
        return []
    return [f"latency: {what} took {first:.1f} ms (median of the first third) and {last:.1f} ms at the end"]


def memory_lines(found: Sequence[Memory]) -> Iterator[str]:
    """One line for each process, with its memory over claims."""
    for pid in dict.fromkeys(each.pid for each in found):
        run = [each for each in found if each.pid == pid]
        chosen = run[:: max(1, len(run) // 10)]
        series = "  ".join(f"{each.claims}: {each.mib:.1f}" for each in chosen)
        yield f"  RSS in MiB of process {pid} after claims  {series}"


def grown(found: Sequence[Memory]) -> list[str]:
    """A sentence when the last process grew after its first claims; nothing when it served too few to say."""
    if not found:
        return []
    run = [each for each in found if each.pid == found[-1].pid]
    run = [each for each in run if each.claims - run[0].claims >= EARLY_CLAIMS]
    fifth = len(run) // 5
    if not fifth:
        return []
    first = statistics.median(each.mib for each in run[:fifth])
    last = statistics.median(each.mib for each in run[-fifth:])
    if last - first <= GROWTH_MIB:
        return []
    return [f"memory: process {run[0].pid} grew from {first:.1f} to {last:.1f} MiB over {run[-1].claims} claims"]
