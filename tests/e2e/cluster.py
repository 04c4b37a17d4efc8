"""The cluster in KUBECONFIG: creates objects, waits for states, and deletes everything again.

Everything goes through the API server's REST interface, logs included, so no kubectl is needed.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import yaml

from dra_driver.core.errors import DraError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.paths import GPU_API
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import (
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SERVICE_ACCOUNTS,
)
from dra_driver.sim.loop import deletion_order, kind_of, load
from dra_driver.sim.objects import claim_names, extended_claim_name
from tests.e2e.gates import gates_of, missing, read_gates
from tests.harness.servers import RestClusterClient

DRIVER = "gpu.nvidia.com"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROOT = Path(__file__).resolve().parents[2]
CLASSES = ROOT / "deploy" / "base" / "deviceclasses.yaml"
# A failed prepare makes the kubelet wait for its next look at the pod, which takes up to 90 s. And kube-scheduler 1.36
# counts what a share consumes twice for a moment (allocated, and still in flight): a share that is asked for in that
# moment is refused, and unless something else happens in the cluster it is looked at again after 5 minutes.
REACH_S = 330.0
GONE_S = 90.0
# How long something that must not change is watched.
SETTLE_S = 2.0
POLL_S = 0.1
KUBECTL_DRA = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl"]

Complaint = Callable[[], str | None]


def wait(complaint: Complaint, timeout_s: float) -> None:
    """Wait until ``complaint`` returns None or an empty string. An API error counts as a complaint."""
    deadline = time.monotonic() + timeout_s
    while said := _said(complaint):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {said}"
        time.sleep(POLL_S)


def _said(complaint: Complaint) -> str | None:
    try:
        return complaint()
    except DraError as error:
        return str(error)


def unread(rest: RestClient, path: str) -> str | None:
    """A complaint while the path answers with 404."""
    try:
        rest.get(path)
    except NotFoundError as error:
        return str(error)
    return None


def still_there(rest: RestClient, path: str) -> str | None:
    """A complaint until the path answers with 404."""
    return None if unread(rest, path) else f"{path} is there"


@contextmanager
def crd_served(rest: RestClient, plural: str) -> Iterator[None]:
    crd = yaml.safe_load((ROOT / "crds" / f"gpu.dra-driver.io_{plural}.yaml").read_text())
    path = f"{CRDS}/{crd['metadata']['name']}"
    is_new = unread(rest, path) is not None
    if is_new:
        rest.create(CRDS, crd)
    try:
        wait(lambda: unread(rest, f"{GPU_API}/{plural}"), 30.0)
        yield
    finally:
        if is_new:
            rest.delete(path)
            for gone in (path, f"{GPU_API}/{plural}"):  # it is served for a moment longer
                wait(partial(still_there, rest, gone), 60.0)


class RealCluster:
    """One cluster. Not thread-safe."""

    def __init__(self, rest: RestClient) -> None:
        self.rest = rest
        self.client = RestClusterClient(rest)
        self._namespaces: list[str] = []

    def version(self) -> str:
        return str(self.rest.get("/version")["gitVersion"])

    @cached_property
    def gates(self) -> dict[str, bool]:
        return read_gates(self.rest.get_text("/metrics"))

    def slices(self) -> list[Obj]:
        return [item for item in self.client.list(RESOURCE_SLICES, "") if item["spec"]["driver"] == DRIVER]

    def devices(self) -> list[Obj]:
        return [device for item in self.slices() for device in entries(item, "spec", "devices")]

    def nodes(self) -> list[Obj]:
        return self.client.list(NODES, "")

    def claim_uids(self) -> set[str]:
        return {item["metadata"]["uid"] for item in self.client.list(RESOURCE_CLAIMS, "")}

    @contextmanager
    def classes(self) -> Iterator[None]:
        missing = [obj for obj in load(CLASSES) if self.client.find(kind_of(obj), obj["metadata"]["name"], "") is None]
        for obj in missing:
            self.client.create(obj, "")
        yield
        for obj in missing:
            self.client.delete(kind_of(obj), obj["metadata"]["name"], "")

    def make_namespace(self, title: str) -> str:
        stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40]
        name = f"e2e-{stem}-{os.urandom(3).hex()}"
        self._create_namespace({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return name

    def _create_namespace(self, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        self.client.create(obj, "")
        self._namespaces.append(name)
        # Pods are refused until the controller has made it.
        wait(lambda: None if self.client.find(SERVICE_ACCOUNTS, "default", name) else "no service account", 30.0)

    @staticmethod
    def home(objects: Sequence[Obj], namespace: str) -> str:
        """The namespace of the objects: the Namespace among them, else ``namespace``."""
        brought = [str(obj["metadata"]["name"]) for obj in objects if obj["kind"] == NAMESPACES.kind]
        assert len(brought) <= 1, f"objects in several namespaces: {brought}"
        return brought[0] if brought else namespace

    def apply(self, objects: Sequence[Obj], namespace: str, *, needs: Iterable[str] | None = None) -> None:
        """``needs`` are the feature gates of the objects, where they are not those of `gates_of`."""
        home = self.home(objects, namespace)
        gates_off = missing(gates_of(objects) if needs is None else needs, self.gates)
        assert not gates_off, f"these pods would wait for ever: {gates_off} is off, and the test has no marker for it"
        for obj in sorted(objects, key=lambda obj: bool(obj["kind"] != NAMESPACES.kind)):
            if obj["kind"] == NAMESPACES.kind:
                self._create_namespace(obj)
            else:
                self.client.create(obj, home)

    def remove(self, objects: Sequence[Obj], namespace: str) -> None:
        """Delete the objects as `kubectl delete -f` does, and wait until no pod and no claim is left.

        A Namespace among the objects is deleted last, because its deletion would hide leftovers.
        """
        for obj in deletion_order(objects):
            if obj["kind"] != NAMESPACES.kind:
                self.client.delete(kind_of(obj), obj["metadata"]["name"], namespace)
        wait(lambda: self._remains(namespace), GONE_S)
        for obj in objects:
            if obj["kind"] == NAMESPACES.kind:
                self.drop_namespace(obj["metadata"]["name"])

    def _remains(self, namespace: str) -> str:
        kinds = (PODS, RESOURCE_CLAIMS)
        return ", ".join(f"{k.singular} {o['metadata']['name']}" for k in kinds for o in self.client.list(k, namespace))

    def drop_namespace(self, name: str) -> None:
        """Delete the namespace without waiting; ``dropped`` waits."""
        self.client.delete(NAMESPACES, name, "")

    def dropped(self) -> None:
        wait(lambda: ", ".join(n for n in self._namespaces if self.client.find(NAMESPACES, n, "")), GONE_S)

    def pod(self, name: str, namespace: str) -> Obj:
        found = self.client.find(PODS, name, namespace)
        assert found is not None, f"there is no pod {name} in {namespace}"
        return found

    def pods(self, namespace: str) -> list[Obj]:
        return self.client.list(PODS, namespace)

    def granted_devices(self, pod: Obj) -> set[str]:
        """Names of all devices allocated to the pod's claims."""
        names = filter(None, [name for _, name in claim_names(pod)] + [extended_claim_name(pod)])
        claims = [self.client.find(RESOURCE_CLAIMS, name, pod["metadata"]["namespace"]) for name in names]
        results = [item for claim in claims for item in entries(claim, "status", "allocation", "devices", "results")]
        return {item["device"] for item in results}

    def logs(self, namespace: str, phase: str | None = None) -> dict[str, str]:
        """The log of the first container of each pod (in that phase), by pod."""
        found = {}
        for pod in self.pods(namespace):
            if phase in (None, dig(pod, "status", "phase")):
                name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
                found[name] = self.client.log(namespace, name, container)
        return found

    def all_logs(self, pod: Obj) -> dict[str, str]:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        return {item["name"]: self.client.log(namespace, name, item["name"]) for item in pod["spec"]["containers"]}

    def warnings(self, namespace: str, reason: str | None = None) -> list[str]:
        return [
            f"{dig(event, 'involvedObject', 'name')}: {event.get('reason')}: {event.get('message')}"
            for event in self.client.list(EVENTS, namespace)
            if event.get("type") == "Warning" and reason in (None, event.get("reason"))
        ]


def containers(pod: Obj) -> list[tuple[str, str, int]]:
    """Name, container id and restarts of each container: what must not change for an undisturbed pod."""
    return sorted(
        (item["name"], str(item.get("containerID")), int(item["restartCount"]))
        for item in entries(pod, "status", "containerStatuses")
    )


ASKED: Final = "gpu.dra-driver.io/detach"
NOTICED_S: Final = 30.0


def mark(cluster: RealCluster, node: str, kind: str, name: str, value: str | None) -> None:
    cluster.rest.merge_patch(paths.node(node), {"metadata": {kind: {name: value}}})


@contextmanager
def marked(cluster: RealCluster, node: str, kind: str, name: str, value: str) -> Iterator[None]:
    mark(cluster, node, kind, name, value)
    try:
        yield
    finally:
        mark(cluster, node, kind, name, None)


def versions(cluster: RealCluster) -> set[str]:
    return {str(dig(one, "attributes", "driverVersion", "version")) for one in cluster.devices()}


def tainted(cluster: RealCluster) -> dict[str, bool]:
    """Device name -> whether no new claim may have it."""
    return {
        one["name"]: any(taint["effect"] == "NoSchedule" for taint in entries(one, "taints"))
        for one in cluster.devices()
    }


def events(cluster: RealCluster, node: str, reason: str) -> int:
    found = [one for one in cluster.client.list(EVENTS, "default") if one.get("reason") == reason]
    return sum(int(one.get("count") or 1) for one in found if dig(one, "involvedObject", "name") == node)


def holds(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        assert condition()
        time.sleep(POLL_S)


def wait_given_up(cluster: RealCluster, node: str, before: int) -> None:
    wait(lambda: None if all(tainted(cluster).values()) else f"devices without a taint: {tainted(cluster)}", NOTICED_S)
    wait(lambda: None if events(cluster, node, "DriverDetached") > before else "no event DriverDetached", NOTICED_S)


def wait_taken(cluster: RealCluster, version: str) -> None:
    wait(lambda: None if versions(cluster) == {version} else f"published versions {versions(cluster)}", NOTICED_S)
    wait(lambda: None if not any(tainted(cluster).values()) else f"taints: {tainted(cluster)}", NOTICED_S)
