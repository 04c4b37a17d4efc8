"""Prepare, repeat and unprepare of one claim with the real journal and real CDI files, without gRPC and API server.

Measures dra_driver.node.claims alone, and that no cost grows with the number of prepared claims. Claims are read from
memory. Figures depend on the disk, because each prepare and unprepare waits for one sync: the last
lines say what a bare sync of one page costs in the same directories.

usage: python -m tests.bench.claims_bench [--rounds 500] [--state-dir DIR] [--cdi-dir DIR]
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dra_driver.core.errors import DraError
from dra_driver.core.model.ids import ClaimUid
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.node.claims.assembly import Claims, open_claims
from tests.fakes.claims import NAMES, POOL, FakeCdiProvider, FakeClaims, claim, machine, ref, result
from tests.fakes.memory import memory_folder

WARM_UP = 20
PREPARED = (0, 128, 2000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--state-dir", type=Path, help="directory on the disk to measure (default: a temporary one)")
    parser.add_argument("--cdi-dir", type=Path, help="CDI directory, a tmpfs on nodes (default: in /dev/shm)")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=args.state_dir) as state,
        tempfile.TemporaryDirectory(dir=args.cdi_dir or memory_folder()) as cdi,
    ):
        for prepared in PREPARED:
            measure(Path(state) / str(prepared), Path(cdi) / str(prepared), prepared, args.rounds)
        parallel(Path(state) / "parallel", Path(cdi) / "parallel", args.rounds)
        for label, folder in (("state", state), ("CDI", cdi)):
            report(f"sync of one page, {label} directory", sync_times(Path(folder), args.rounds))


def open_service(state: Path, cdi: Path, api: FakeClaims) -> Claims:
    writer = CdiWriter(str(cdi), NAMES)
    snapshot = machine(8)
    return open_claims(
        state,
        pool=POOL,
        names=NAMES,
        reader=api,
        writer=writer,
        provider=FakeCdiProvider(),
        snapshot=lambda: snapshot,
        boot_id="bench",
    )


def measure(state: Path, cdi: Path, prepared: int, rounds: int) -> None:
    api = FakeClaims()
    claims = open_service(state, cdi, api)
    claims.service.recover()
    for number in range(prepared):  # with admin access, so that they may overlap
        api.put(claim(number, result(f"gpu-{number % 8}", admin_access=True)))
        must(claims.service.prepare([ref(number)]))
    times: dict[str, list[float]] = {"prepare": [], "repeat": [], "unprepare": []}
    for number in range(100_000, 100_000 + rounds + WARM_UP):
        api.put(claim(number, result(f"gpu-{number % 8}")))
        refs = [ref(number)]
        for what, call in (
            ("prepare", claims.service.prepare),
            ("repeat", claims.service.prepare),
            ("unprepare", claims.service.unprepare),
        ):
            times[what].append(timed(lambda call=call, refs=refs: must(call(refs))))  # type: ignore[misc]
        api.remove(refs[0])
    for what, figures in times.items():
        report(f"{what}, {prepared} prepared before", figures[WARM_UP:])
    claims.close()
    begin = time.perf_counter()
    claims = open_service(state, cdi, api)
    claims.service.recover()
    print(f"{f'open and recover, {prepared} prepared':<44} {(time.perf_counter() - begin) * 1000:8.2f} ms")
    claims.close()


def parallel(state: Path, cdi: Path, rounds: int) -> None:
    """Four threads, as in the kubelet, with a device each."""
    api = FakeClaims()
    claims = open_service(state, cdi, api)
    figures: list[float] = []

    def work(lane: int) -> None:
        for number in range(rounds // 4):
            refs = [ref(lane * 1_000_000 + number)]
            api.put(claim(lane * 1_000_000 + number, result(f"gpu-{lane}")))
            figures.append(timed(lambda refs=refs: must(claims.service.prepare(refs))))  # type: ignore[misc]
            must(claims.service.unprepare(refs))

    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report("prepare, 4 threads at once", figures)
    claims.close()


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def must(answers: Mapping[ClaimUid, object]) -> None:
    for answer in answers.values():
        assert not isinstance(answer, DraError), answer


def sync_times(folder: Path, rounds: int) -> list[float]:
    fd = os.open(folder / "page", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        figures = []
        for _ in range(rounds):
            os.write(fd, b"x" * 4096)
            figures.append(timed(lambda: os.fdatasync(fd)))
        return figures
    finally:
        os.close(fd)


def report(what: str, figures: Sequence[float]) -> None:
    ordered = sorted(figures)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(f"{what:<44} p50 {p50:7.3f} ms  p99 {p99:7.3f} ms  max {ordered[-1]:7.3f} ms  n={len(ordered)}", flush=True)


if __name__ == "__main__":
    main()
