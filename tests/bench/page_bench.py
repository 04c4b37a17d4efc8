"""How long a page of ``kubectl dra ui`` takes in a large cluster: ``python -m tests.bench.page_bench``.

Nodes with eight H100 GPUs in every MIG form, and a claim with all GPUs of every second node; read from a file as
``kubectl dra snapshot`` writes it. Milliseconds of the slowest of twenty requests in this process, without a network,
from a warm state. Exits with status 1 if a page takes more than its budget.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import dump, load
from dra_driver.web.app import PageSources, application
from dra_driver.web.derived import Derived
from dra_driver.web.gate import Keys
from dra_driver.web.reading import Periodic, read_without_collection, same_cluster
from dra_driver.web.sources import FileSource
from dra_driver.web.what_if import EXAMPLE
from tests.bench import allocation_cluster as cluster

BUDGET_MS = 200.0
WHAT_IF_BUDGET_MS = 2000.0
_RUNS = 20
_HOST = "127.0.0.1:8090"
_PAGES = (
    *("/", "/?q=node-77", "/?page=50", "/nodes/node-7", "/nodes/node-7/gpu-3", "/claims", "/claims?q=held-8"),
    *("/claims/default/held-8", "/pending", "/pending/default/wait-0", "/capacity", "/events", "/what-if"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the pages of kubectl dra ui")
    parser.add_argument("--nodes", type=int, default=1000)
    nodes = parser.parse_args().nodes
    from starlette.testclient import TestClient

    state = _state(nodes)
    reader = Periodic("cluster", lambda: read_without_collection(FileSource(lambda: state)), 1.0, same=same_cluster)
    derived, keys = Derived(), Keys()
    begun = time.monotonic()
    reader.once()
    print(f"{nodes} nodes, {nodes * cluster.GPUS} GPUs; the fleet from the objects: {time.monotonic() - begun:.2f} s")
    reader.once()
    sources = PageSources(cluster=reader, derived=derived, about="bench")
    base = f"/{keys.folder}"
    browser = TestClient(application(sources, keys, (_HOST,)), base_url=f"http://{_HOST}")
    browser.get(f"/open?code={keys.code}")
    for path in _PAGES:
        browser.get(f"{base}{path}")
    begun, answers = time.monotonic(), 0
    while derived.compute_one():
        answers += 1
    print(f"{answers} answers beside the pages (capacity, explanations): {time.monotonic() - begun:.2f} s")
    late = [path for path in _PAGES if _slowest(browser, base, path) > BUDGET_MS]
    begun = time.monotonic()
    answer = browser.post(
        f"{base}/what-if", data={"manifest": EXAMPLE, "namespace": "default"}, headers={"origin": f"http://{_HOST}"}
    )
    took = 1000 * (time.monotonic() - begun)
    print(f"{took:9.1f} ms  what if: {'verdict good' in answer.text}")
    return 1 if late or took > WHAT_IF_BUDGET_MS else 0


def _slowest(browser: object, base: str, path: str) -> float:
    times = []
    for _ in range(_RUNS):
        begun = time.monotonic()
        answer = browser.get(f"{base}{path}")  # type: ignore[attr-defined]
        times.append(1000 * (time.monotonic() - begun))
        assert answer.status_code == 200, (path, answer.status_code)
    size = len(answer.content) / 1024
    print(f"{max(times):9.1f} ms  median {sorted(times)[_RUNS // 2]:6.1f} ms  {size:6.1f} KiB  {path}")
    return max(times)


def _state(nodes: int) -> ClusterState:
    whole = ClusterState(
        nodes=tuple(cluster.node(index) for index in range(nodes)),
        slices=tuple(json.loads(text) for index in range(nodes) for text in cluster.slices(index, mig=True)),
        classes=tuple(cluster.classes()),
        server_version="v1.36.2",
    )
    every = [f"gpu-{minor}" for minor in range(cluster.GPUS)]
    held = [cluster.holding(index, *every) | {"spec": {"devices": {}}} for index in range(0, nodes, 2)]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "state.json"
        dump(whole, file)
        shared = load(file)  # equal contents of slices are one object, as when a cluster is read
    pods = tuple(_waiting(number) for number in range(30))
    return replace(shared, claims=tuple(held), pods=pods)


def _waiting(number: int) -> dict[str, object]:
    claims = [{"name": "gpu", "resourceClaimName": f"missing-{number}"}]
    spec = {"containers": [{"name": "main"}], "resourceClaims": claims}
    return {"metadata": {"name": f"wait-{number}", "namespace": "default"}, "spec": spec}


if __name__ == "__main__":
    sys.exit(main())
