"""Paths of API resources. Names are quoted, so that none can address another path. Source: kubernetes/kubernetes
staging/src/k8s.io/api (core/v1, resource/v1) and the API's URL conventions."""

from urllib.parse import quote

RESOURCE_API = "/apis/resource.k8s.io/v1"
CORE_API = "/api/v1"
GPU_API = "/apis/gpu.dra-driver.io/v1alpha1"
KUEUE = "/apis/kueue.x-k8s.io"
"""The versions of Kueue's API group, which every authenticated user may read."""


def resource_slices(name: str | None = None) -> str:
    return _named(f"{RESOURCE_API}/resourceslices", name)


def resource_claim(namespace: str, name: str) -> str:
    return f"{resource_claims(namespace)}/{_segment(name)}"


def resource_claims(namespace: str | None = None) -> str:
    inside = f"/namespaces/{_segment(namespace)}" if namespace is not None else ""
    return f"{RESOURCE_API}{inside}/resourceclaims"


def device_classes() -> str:
    return f"{RESOURCE_API}/deviceclasses"


def namespaces() -> str:
    return f"{CORE_API}/namespaces"


def namespace(name: str) -> str:
    return f"{namespaces()}/{_segment(name)}"


def nodes() -> str:
    return f"{CORE_API}/nodes"


def node(name: str) -> str:
    return f"{nodes()}/{_segment(name)}"


def events(namespace: str, name: str | None = None) -> str:
    return _named(f"{CORE_API}/namespaces/{_segment(namespace)}/events", name)


def resource_quotas(namespace: str | None = None) -> str:
    inside = f"/namespaces/{_segment(namespace)}" if namespace is not None else ""
    return f"{CORE_API}{inside}/resourcequotas"


def pods(namespace: str | None = None) -> str:
    return f"{CORE_API}/namespaces/{_segment(namespace)}/pods" if namespace is not None else f"{CORE_API}/pods"


def pod(namespace: str, name: str) -> str:
    return f"{CORE_API}/namespaces/{_segment(namespace)}/pods/{_segment(name)}"


def pod_log(namespace: str, name: str) -> str:
    """The subresource with the log of the pod's only container."""
    return f"{pod(namespace, name)}/log"


def eviction(namespace: str, name: str) -> str:
    return f"{pod(namespace, name)}/eviction"


def jobs(namespace: str, name: str | None = None) -> str:
    return _named(f"/apis/batch/v1/namespaces/{_segment(namespace)}/jobs", name)


def daemon_set(namespace: str, name: str) -> str:
    return f"/apis/apps/v1/namespaces/{_segment(namespace)}/daemonsets/{_segment(name)}"


def leases(namespace: str, name: str | None = None) -> str:
    return _named(f"/apis/coordination.k8s.io/v1/namespaces/{_segment(namespace)}/leases", name)


def gpu_policies(name: str | None = None) -> str:
    return _named(f"{GPU_API}/gpupolicies", name)


def gpu_nodes(name: str | None = None) -> str:
    return _named(f"{GPU_API}/gpunodes", name)


def version() -> str:
    return "/version"


def workloads(namespace: str | None) -> str:
    """Return the path of Kueue's Workloads."""
    return f"{KUEUE}/v1beta2/{f'namespaces/{_segment(namespace)}/' if namespace else ''}workloads"


def cluster_queues() -> str:
    return f"{KUEUE}/v1beta2/clusterqueues"


def _named(collection: str, name: str | None) -> str:
    return collection if name is None else f"{collection}/{_segment(name)}"


def _segment(text: str) -> str:
    """One path segment. Empty, ``.`` and ``..`` would address another path, and no object has such a name."""
    if text in {"", ".", ".."}:
        raise ValueError(f"{text!r} is not the name of a Kubernetes object")
    return quote(text, safe="")
