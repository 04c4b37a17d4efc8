"""Measure the pages of ``kubectl dra ui`` in a large cluster: ``python -m tests.bench.page_bench``. Prints the slowest
of twenty requests without a network, then memory and garbage while the state changes. Exit status 1 if a page exceeds
its budget, or a full collection frees more than `MAX_GARBAGE` objects."""

import argparse
import gc
import os
import sys
import time
from typing import Any

from msgspec.structs import replace

from dra_driver.kubectl.web.access_control import Keys
from dra_driver.kubectl.web.app import PageSources, application
from dra_driver.kubectl.web.reading import (
    BackgroundResults,
    Periodic,
    SeenCluster,
    read_state,
    same_cluster,
)
from dra_driver.kubectl.web.rows import EXAMPLE
from dra_driver.kubectl.web.use_history import UseHistory
from tests.bench import allocation_cluster as cluster
from tests.harness.figures import rss_mib
from tests.ui.large import LargeFleet

BUDGET_MS = 500.0
WHAT_IF_BUDGET_MS = 2000.0
MAX_GARBAGE = 1000  # objects for each reading that only a full collection frees
_RUNS = 20
_HOST = "127.0.0.1:8090"
_PAGES = (
    *("/", "/?q=node-77", "/?sort=busy", "/nodes/node-7", "/nodes/node-7/gpu-3", "/claims", "/claims?q=train-8-"),
    *("/claims/team-8/train-8-0", "/pending", "/pending/team-0/wait-0", "/capacity", "/events", "/what-if"),
    *("/?show=unhealthy", "/?group=pool&color=memory", "/faults", "/namespaces", "/topology", "/policies", "/doctor"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the pages of kubectl dra ui")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--readings", type=int, default=3, help="how often the state changes afterwards (default: 3)")
    args = parser.parse_args()
    site = _Site(LargeFleet(args.nodes, mig=True))
    print(f"{args.nodes} nodes, {args.nodes * cluster.GPUS} GPUs; the fleet from the objects: {site.read():.2f} s")
    site.read()
    for path in _PAGES:
        site.get(path)
    print("{} answers beside the pages (capacity, explanations): {:.2f} s".format(*site.compute()))
    late = [path for path in _PAGES if _slowest(site, path) > BUDGET_MS]
    begun = time.monotonic()
    good = site.tried()
    took = 1000 * (time.monotonic() - begun)
    print(f"{took:9.1f} ms  what if: {good}")
    garbage = _read_again(site, args.readings)
    return 1 if late or took > WHAT_IF_BUDGET_MS or garbage > MAX_GARBAGE * args.readings else 0


class _Site:
    def __init__(self, source: LargeFleet) -> None:
        from starlette.testclient import TestClient

        self._source, self._state = source, source.state()
        self._reader = Periodic("cluster", self._read, 1.0, same=same_cluster)
        self._use = Periodic("use", UseHistory(source.use).read, 1.0)
        self._background_results, keys = BackgroundResults(), Keys()
        sources = PageSources(
            cluster=self._reader, background_results=self._background_results, about="bench", use=self._use
        )
        self._base = f"/{keys.folder}"
        self._browser = TestClient(application(sources, keys, (_HOST,)), base_url=f"http://{_HOST}")
        self._browser.get(f"/{keys.folder}/open?code={keys.code}")

    def _read(self) -> SeenCluster:
        return read_state(self._source.with_state(self._state))

    def read(self) -> float:
        begun = time.monotonic()
        self._reader.once()
        took = time.monotonic() - begun
        self._use.once()
        return took

    def change(self, number: int) -> None:
        self._state = replace(self._state, pods=(_waiting(number), *self._state.pods[1:]))

    def compute(self) -> tuple[int, float]:
        begun, answers = time.monotonic(), 0
        while self._background_results.compute_one():
            answers += 1
        return answers, time.monotonic() - begun

    def get(self, path: str) -> Any:
        return self._browser.get(f"{self._base}{path}")

    def tried(self) -> bool:
        fields = {"manifest": EXAMPLE, "namespace": "default"}
        answer = self._browser.post(f"{self._base}/what-if", data=fields, headers={"origin": f"http://{_HOST}"})
        return "verdict good" in answer.text


def _read_again(site: _Site, readings: int) -> int:
    """Prints memory as the state changes; returns how many objects a full collection frees in the end."""
    for number in range(readings):
        site.change(1000 + number)
        site.read()
        for path in _PAGES:
            site.get(path)
        site.compute()
        if number % max(1, readings // 10) == 0 or number == readings - 1:
            print(f"{rss_mib(os.getpid()):9.0f} MiB after {number + 1} more readings")
    begun = time.monotonic()
    gc.unfreeze()
    garbage = gc.collect()
    print(f"{1000 * (time.monotonic() - begun):9.1f} ms  a collection of everything, which freed {garbage} objects")
    return garbage


def _slowest(site: _Site, path: str) -> float:
    times = []
    for _ in range(_RUNS):
        begun = time.monotonic()
        answer = site.get(path)
        times.append(1000 * (time.monotonic() - begun))
        assert answer.status_code == 200, (path, answer.status_code)
    size = len(answer.content) / 1024
    print(f"{max(times):9.1f} ms  median {sorted(times)[_RUNS // 2]:6.1f} ms  {size:6.1f} KiB  {path}")
    return max(times)


def _waiting(number: int) -> dict[str, object]:
    claims = [{"name": "gpu", "resourceClaimName": f"missing-{number}"}]
    spec = {"containers": [{"name": "main"}], "resourceClaims": claims}
    return {"metadata": {"name": f"wait-{number}", "namespace": "default"}, "spec": spec}


if __name__ == "__main__":
    sys.exit(main())
