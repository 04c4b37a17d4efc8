"""A chapter of the demonstration: a story in a namespace of its own, after which the nodes must be clean.

Owns the frame and what stories are told with: pods that claim one thing each. Refuses to know the stories.
"""

from collections.abc import Callable
from typing import Any, Final

from dra_driver.errors import DraError
from dra_driver.sim.apiserver.kinds import NAMESPACES
from dra_driver.sim.cluster import Cluster

WAIT_S: Final = 30.0

Say = Callable[[str], None]


def run_chapter(cluster: Cluster, say: Say, namespace: str, story: Callable[[], None]) -> str:
    """Have ``story`` told in ``namespace``, which is made for it; what went wrong, "" when nothing did and nothing is
    left on any node."""
    problem = ""
    try:
        cluster.store.create(NAMESPACES, {"metadata": {"name": namespace}})
        story()
    except DraError as error:
        problem = str(error)
    try:
        cluster.store.delete(NAMESPACES, namespace)
        cluster.wait(lambda: _left(cluster, namespace), WAIT_S, "the nodes to be clean after the chapter")
    except DraError as error:
        problem = problem or str(error)
    if problem:
        say(f"    problem  {problem}")
    return problem


def make_pod(cluster: Cluster, namespace: str, name: str, exactly: dict[str, Any], **spec: Any) -> None:
    """A pod whose one container has a claim for ``exactly`` this, from a template of the pod's name."""
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
