"""Controller processes as they are deployed, against an API server: who acts, who takes over, what is evicted."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.sim.apiserver.jsonvalue import dig
from dra_driver.sim.apiserver.kinds import EVENTS, LEASES, NAMESPACES, POD_DISRUPTION_BUDGETS
from dra_driver.sim.apiserver.server import ApiServer
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.controllers.disruption import DisruptionController
from tests.contract.node.process.test_threads import documented, started, undocumented
from tests.fakes.extended_pods import is_leaving, make_slice, run_pod, taint_device
from tests.fakes.node_process import DriverProcess

LEASE_S = 3
FAST = {"grace": "0", "max_evictions_per_minute": "600", "evict_extended_resource_pods": "true"}


class Replica(DriverProcess):
    """One ``dra-driver controller``."""

    def __init__(self, folder: Path, kubeconfig: Path, name: str, **flags: str) -> None:
        folder.mkdir(exist_ok=True)
        own: dict[str, str | None] = {
            "kubeconfig": str(kubeconfig),
            "pod_name": name,
            "lease_duration": str(LEASE_S),
            "http_addr": "127.0.0.1:0",
            "log_format": "json",
        }
        super().__init__("controller", folder, own | flags)

    def port(self) -> int:
        lines = [json.loads(line) for line in self.text.splitlines() if line.startswith("{")]
        return next(int(line["port"]) for line in lines if "port" in line)

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port()}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    server.store.create(NAMESPACES, {"metadata": {"name": "dra-driver"}})
    yield server
    server.stop()


@pytest.fixture
def replica(api: ApiServer, tmp_path: Path) -> Iterator[Callable[..., Replica]]:
    made: list[Replica] = []

    def make(name: str, **flags: str) -> Replica:
        folder = tmp_path / name
        folder.mkdir()
        made.append(Replica(folder, api.kubeconfig(folder / "kubeconfig"), name, **flags))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def holder(store: Store) -> str:
    """The pod name in the Lease, "" for none."""
    lease = store.find(LEASES, "dra-driver-controller", "dra-driver")
    return str(dig(lease, "spec", "holderIdentity", default="")).partition("_")[0]


def test_one_acts_and_the_other_takes_over_at_once_when_it_ends(
    api: ApiServer, replica: Callable[..., Replica]
) -> None:
    """Without waiting for the Lease to run out: it is released."""
    make_slice(api.store, 20)
    run_pod(api.store, "pod-3", 3)
    run_pod(api.store, "pod-4", 4)
    first, second = replica("first", **FAST), replica("second", **FAST)
    first.start()
    first.wait_for(lambda: holder(api.store) == "first")
    second.start()
    second.wait_for(lambda: '"started"' in second.text)
    second.wait_for(lambda: second.ask("/readyz")[0] == 200)
    assert "this replica waits; evictions are on" in second.ask("/readyz")[1]
    taint_device(api.store, 3)
    first.wait_for(lambda: is_leaving(api.store, "pod-3"))
    assert not is_leaving(api.store, "pod-4")
    first.wait_for(lambda: 'dra_driver_evictions_total{result="evicted"} 1.0' in first.ask("/metrics")[1])
    assert 'dra_driver_evictions_total{result="evicted"} 0.0' in second.ask("/metrics")[1]
    status, seconds = first.end()
    assert (status, seconds < 10) == (0, True)
    second.wait_for(lambda: holder(api.store) == "second")
    taint_device(api.store, 4)
    second.wait_for(lambda: is_leaving(api.store, "pod-4"))
    reasons = {(item["involvedObject"]["name"], item["reason"]) for item in api.store.list(EVENTS, "default").items}
    assert reasons >= {("pod-3", "GpuEviction")}


@pytest.mark.slow
def test_a_leader_that_was_stopped_and_continues_does_not_act(api: ApiServer, replica: Callable[..., Replica]) -> None:
    """SIGSTOP: the other one leads when the Lease has run out, and the first one notices before it acts."""
    make_slice(api.store, 20)
    run_pod(api.store, "pod-3", 3)
    first, second = replica("first", **FAST), replica("second")  # the second one evicts nothing: it only leads
    first.start()
    first.wait_for(lambda: holder(api.store) == "first")
    second.start()
    second.wait_for(lambda: '"started"' in second.text)
    assert first.process is not None
    first.process.send_signal(signal.SIGSTOP)
    taint_device(api.store, 3)
    second.wait_for(lambda: holder(api.store) == "second")
    first.process.send_signal(signal.SIGCONT)
    first.wait_for(lambda: "no longer leads" in first.text)
    assert "this replica waits" in first.ask("/readyz")[1]
    second.wait_for(lambda: int(dig(lease(api.store), "spec", "leaseTransitions")) == 1)
    assert not is_leaving(api.store, "pod-3")
    assert holder(api.store) == "second"


def lease(store: Store) -> object:
    return store.get(LEASES, "dra-driver-controller", "dra-driver")


@pytest.mark.slow
def test_a_budget_is_asked_and_its_answer_told(api: ApiServer, replica: Callable[..., Replica]) -> None:
    """429 of the eviction API; the pod goes when the budget allows it."""
    store = api.store
    make_slice(store, 20)
    run_pod(store, "pod-3", 3, labels={"app": "a"})
    selector = {"matchLabels": {"app": "a"}}
    budget = {"metadata": {"name": "b"}, "spec": {"selector": selector, "minAvailable": 1}}
    store.create(POD_DISRUPTION_BUDGETS, budget, namespace="default")
    controller = DisruptionController(store)
    controller.step()
    process = replica("only", **FAST).start()
    taint_device(store, 3)
    process.wait_for(lambda: reason_on(store, "pod-3") == "GpuEvictionRefused")
    assert not is_leaving(store, "pod-3")
    relaxed = store.get(POD_DISRUPTION_BUDGETS, "b", "default")
    relaxed["spec"]["minAvailable"] = 0
    store.update(POD_DISRUPTION_BUDGETS, relaxed)
    controller.step()
    process.wait_for(lambda: is_leaving(store, "pod-3"))


def reason_on(store: Store, pod: str) -> str:
    found = [item["reason"] for item in store.list(EVENTS, "default").items if item["involvedObject"]["name"] == pod]
    return found[-1] if found else ""


def test_nothing_is_read_or_evicted_unless_it_is_switched_on(api: ApiServer, replica: Callable[..., Replica]) -> None:
    make_slice(api.store, 20)
    run_pod(api.store, "pod-3", 3)
    taint_device(api.store, 3)
    process = replica("only").start()
    process.wait_for(lambda: holder(api.store) == "only")
    process.wait_for(lambda: process.ask("/readyz")[0] == 200)
    assert "evictions are off" in process.ask("/readyz")[1]
    assert not is_leaving(api.store, "pod-3")


def test_it_starts_without_an_api_server_and_says_so(api: ApiServer, replica: Callable[..., Replica]) -> None:
    process = replica("only", **FAST)
    api.stop()
    process.start()
    process.wait_for(lambda: '"started"' in process.text)
    process.wait_for(lambda: "cannot watch ResourceSlices" in process.ask("/readyz")[1])
    assert process.ask("/readyz")[0] == 503
    assert process.ask("/healthz")[0] == 200
    assert process.end()[0] == 0


def test_a_wrong_kubeconfig_ends_it_with_a_sentence(tmp_path: Path) -> None:
    status, text = Replica(tmp_path, tmp_path / "missing", "x").refused()
    assert (status, "kubeconfig" in text) == (2, True)


ABSENT = (
    "dra_driver.hardware.gpu",
    "dra_driver.node.process",
    "dra_driver.node.claims",
    "dra_driver.sim",
    "dra_driver.scheduler.cel",
)
ABSENT_TOO = (
    "dra_driver.scheduler.allocation",
    "dra_driver.kubectl.lint",
    "dra_driver.node.slices",
    "grpc",
    "pynvml",
    "pydantic",
    "kubernetes",
    "rich",
)


def test_the_controller_loads_neither_hardware_nor_kubelet() -> None:
    """It runs anywhere without rights, and small."""
    code = "import sys, dra_driver.controller.main, dra_driver.controller.process; print('\\n'.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(answer.stdout.split())
    assert "dra_driver.controller.evictions" in loaded
    assert sorted(name for name in loaded if name.startswith((*ABSENT, *ABSENT_TOO))) == []


def test_every_thread_of_a_controller_is_documented(tmp_path: Path) -> None:
    api = ApiServer()
    api.start()
    api.store.create(NAMESPACES, {"metadata": {"name": "dra-driver"}})
    flags: dict[str, str | None] = {
        "kubeconfig": str(api.kubeconfig(tmp_path / "kubeconfig")),
        "http_addr": "127.0.0.1:0",
        "evict_extended_resource_pods": "true",
        "evict_over_grant": "true",
        "capacity_interval": "3600",
    }
    process = DriverProcess("controller", tmp_path, flags)
    rows = documented("Controller")
    with started(process.command(), process.environ) as child:
        names = child.names()
    api.stop()
    assert undocumented(names, rows) == []
    assert rows.keys() - {name.replace("-", r"\-") for name in names} == {r"http\-request"}
