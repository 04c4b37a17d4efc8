"""Runs one chapter of the demonstration in its own namespace, and checks that it leaves nothing on the nodes."""

from collections.abc import Callable
from typing import Any, Final

from dra_driver.core.errors import DraError
from dra_driver.sim.apiserver.kinds import NAMESPACES
from dra_driver.sim.cluster import Cluster

WAIT_S: Final = 30.0

Say = Callable[[str], None]


def run_chapter(cluster: Cluster, say: Say, namespace: str, story: Callable[[], None]) -> str:
    """Create ``namespace``, run ``story``, delete the namespace and wait until the nodes are clean.

    Returns the first problem, "" without one.
    """
    problem = ""
    try:
        cluster.store.create(NAMESPACES, {"metadata": {"name": namespace}})
        story()
    except DraError as error:
        problem = str(error)
    try:
        end_namespace(cluster, namespace)
    except DraError as error:
        problem = problem or str(error)
    if problem:
        say(f"    problem  {problem}")
    return problem


def end_namespace(cluster: Cluster, namespace: str) -> None:
    """Delete the namespace and wait until nothing of it is left. Raises RetryableError after `WAIT_S`."""
    cluster.store.delete(NAMESPACES, namespace)
    cluster.wait(lambda: _left(cluster, namespace), WAIT_S, "the nodes to be clean after the chapter")


def make_pod(cluster: Cluster, namespace: str, name: str, exactly: dict[str, Any], **spec: Any) -> None:
    """Create a pod with one container and a claim for ``exactly``, from a template named like the pod."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
    container = {"name": "main", "image": "ubuntu:24.04", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": name}]
    pod_spec = {"containers": [container], "resourceClaims": claims, **spec}
    cluster.client.create(template, namespace)
    cluster.client.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec}, namespace)


def _left(cluster: Cluster, namespace: str) -> str | None:
    left = cluster.leftovers()
    if cluster.store.find(NAMESPACES, namespace) is not None:
        left.append(f"namespace {namespace}")
    return ", ".join(left) or None
