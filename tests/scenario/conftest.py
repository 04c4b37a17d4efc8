"""One embedded cluster per test file: two nodes with different GPUs, the project's classes, real node processes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import EVENTS, NAMESPACES, PODS
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo import demo
from dra_driver.sim.node.node_process import ControllerSubprocess
from dra_driver.sim.objects import is_ready

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30.0
NODES = {"gpu-a": "2xa100-sxm4-40gb", "gpu-b": "2xh100-sxm5-80gb"}


@contextmanager
def cluster_of(nodes: Mapping[str, str], **settings: Any) -> Iterator[Cluster]:
    with Cluster(nodes, **settings) as running:
        running.apply(ROOT / demo.CLASSES)
        yield running


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes, or as CLUSTER of the test's file says. A test that leaves something behind fails (see `namespace`)."""
    with cluster_of(**getattr(request.module, "CLUSTER", {"nodes": NODES})) as running:
        yield running


@pytest.fixture
def controller(cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ControllerSubprocess]:
    """A controller with the CONTROLLER_FLAGS of the test's file."""
    flags = getattr(request.module, "CONTROLLER_FLAGS", ())
    process = ControllerSubprocess(cluster.kubeconfig, tmp_path / "log", flags)
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own. After the test it is deleted, and nothing may be left on the nodes."""
    name = request.node.name.split("[")[0].replace("_", "-")[:60].strip("-")
    cluster.store.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    cluster.store.delete(NAMESPACES, name)
    cluster.wait(lambda: _left(cluster, name), TIMEOUT_S, "the nodes to be clean after the test")


def _left(cluster: Cluster, namespace: str) -> str | None:
    left = cluster.leftovers()
    if cluster.store.find(NAMESPACES, namespace) is not None:
        left.append(f"namespace {namespace}")
    return ", ".join(left) or None


def devices(cluster: Cluster, node: str = "") -> list[Obj]:
    return [device for item in cluster.slices(node) for device in item["spec"].get("devices") or ()]


def untold(cluster: Cluster, name: str, *reasons: str) -> str | None:
    found = {item["reason"] for item in cluster.store.list(EVENTS).items if item["involvedObject"]["name"] == name}
    return None if found.issuperset(reasons) else f"only {sorted(found)}"


def container_statuses(pod: Obj) -> list[Obj]:
    found = pod["status"]["containerStatuses"]
    return [{key: value for key, value in item.items() if key != "allocatedResourcesStatus"} for item in found]


class Pods:
    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    def create(
        self, name: str, *, claim: str = "", template: str = "", node: str = "", on: str = "", **spec: object
    ) -> Obj:
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
        container = {"name": "main", "image": "example.com/app:1", "resources": {"claims": [{"name": "gpu"}]}}
        body: Obj = {"containers": [container], "resourceClaims": [{"name": "gpu", **source}], **spec}
        if node:
            body["nodeName"] = node
        if on:
            body["nodeSelector"] = {"kubernetes.io/hostname": on}
        return self._cluster.store.create(PODS, {"metadata": {"name": name}, "spec": body}, namespace=self._namespace)

    def run(self, name: str, *, template: str, on: str = "") -> None:
        self.create(name, template=template, on=on)
        self.wait_ready(name)

    def end(self, name: str) -> None:
        self.delete(name)
        self.wait_gone(name)

    def get(self, name: str) -> Obj:
        return self._cluster.store.get(PODS, name, self._namespace)

    def delete(self, name: str) -> None:
        self._cluster.store.delete(PODS, name, self._namespace)

    def log(self, name: str) -> str:
        return self._cluster.client.log(self._namespace, name, "main")

    def wait_ready(self, *names: str, timeout_s: float = TIMEOUT_S) -> None:
        self._cluster.wait(lambda: self._unready(names), timeout_s, f"pods {names}")

    def wait_gone(self, name: str, timeout_s: float = TIMEOUT_S) -> None:
        def present() -> str | None:
            return "it is still there" if self._cluster.store.find(PODS, name, self._namespace) else None

        self._cluster.wait(present, timeout_s, f"pod {name} to go")

    def wait_event(self, name: str, reason: str, text: str, timeout_s: float = TIMEOUT_S) -> str:
        found: list[str] = []

        def search() -> str | None:
            messages = self.events(name, reason)
            found.extend(message for message in messages if text in message)
            return None if found else f"events {reason} of {name}: {messages}"

        self._cluster.wait(search, timeout_s, f"an event with {text!r}")
        return found[0]

    def events(self, name: str, reason: str) -> list[str]:
        events = self._cluster.store.list(EVENTS, self._namespace).items
        return [
            event["message"]
            for event in events
            if event["involvedObject"]["name"] == name and event["reason"] == reason
        ]

    def _unready(self, names: tuple[str, ...]) -> str | None:
        for name in names:
            pod = self._cluster.store.find(PODS, name, self._namespace)
            if pod is None or not is_ready(pod):
                return f"{name} is {dig(pod, 'status', 'phase', default='not there')}: {self.events(name, 'Failed')}"
        return None


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Pods:
    return Pods(cluster, namespace)


@pytest.fixture
def template(cluster: Cluster, namespace: str) -> str:
    return make_template(cluster, namespace)


def make_template(
    cluster: Cluster, namespace: str, *, parameters: Mapping[str, object] | None = None, **request: object
) -> str:
    from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIM_TEMPLATES

    body = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", **request}}
    config = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}] if parameters else []
    spec = {"spec": {"devices": {"requests": [body], "config": config}}}
    made = cluster.store.create(
        RESOURCE_CLAIM_TEMPLATES, {"metadata": {"generateName": "t-"}, "spec": spec}, namespace=namespace
    )
    return str(made["metadata"]["name"])
