"""What a stolen token of each process is tried for.

Objects that a ``World`` names exist, so that nothing is refused because it is not there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.kube import paths
from tests.fakes.dra_objects import DRIVER, gpu, resource_slice
from tests.rights.request import Obj, Request

RESOURCE = "/apis/resource.k8s.io"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
OWN_API = "/apis/gpu.dra-driver.io/v1alpha1"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """``own`` and ``other`` are Nodes, ``namespace`` is the driver's, ``tenant`` has the claim and the pod ``x``."""

    own: str
    other: str
    namespace: str
    tenant: str


def slice_of(node: str, pool: str, *, driver: str = DRIVER, name: str = "", **spec: object) -> Obj:
    """A slice that would replace all others of its pool."""
    obj = resource_slice(node, gpu("gpu-0"), generation=1_000_000)
    obj["metadata"] = {"name": name} if name else {"generateName": "rights-"}
    obj["spec"] |= {"driver": driver, "pool": obj["spec"]["pool"] | {"name": pool}} | spec
    return {**obj, "spec": {key: value for key, value in obj["spec"].items() if value is not None}}


def old_version(obj: Obj, version: str) -> Obj:
    """The slice in v1beta1 (``basic``) or v1beta2."""
    devices = [{"name": device["name"], "basic": {}} for device in obj["spec"]["devices"]]
    spec = obj["spec"] | ({"devices": devices} if version == "v1beta1" else {})
    return {**obj, "apiVersion": f"resource.k8s.io/{version}", "spec": spec}


def slices(world: World) -> Iterator[Request]:
    """Refused by the admission policy, except for the verbs that no role gives."""
    path, own, other = paths.resource_slices(), world.own, world.other
    own_pool, other_pool = f"{own}/{DRIVER}", f"{other}/{DRIVER}"
    selector = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [other]}]}]}
    for what, body in (
        ("a slice of another node", slice_of(other, other_pool)),
        ("a slice of the own node in another node's pool", slice_of(own, other_pool)),
        ("a slice of another node in the own pool", slice_of(other, own_pool)),
        ("a slice of another driver", slice_of(own, f"{own}/x.example", driver="x.example")),
        ("a slice of another driver in the own pool", slice_of(own, own_pool, driver="x.example")),
        ("a slice for all nodes", slice_of(own, own_pool, nodeName=None, allNodes=True)),
        ("a slice for the nodes of a selector", slice_of(own, own_pool, nodeName=None, nodeSelector=selector)),
        ("a slice in a second own pool", slice_of(own, f"{own_pool}/2")),
        ("a canary that stays", slice_of(own, f"{own_pool}/canary")),
    ):
        yield Request(what, "POST", path, body)
    for version in ("v1beta1", "v1beta2"):
        body = old_version(slice_of(own, other_pool), version)
        collection = f"{RESOURCE}/{version}/resourceslices"
        yield Request(f"a slice in another node's pool, by {version}", "POST", collection, body)
    others, foreign = f"{path}/rights-{other}", f"{path}/rights-x-{own}"
    changed = slice_of(other, other_pool, name=f"rights-{other}")
    yield Request("change another node's slice", "PUT", others, changed)
    yield Request("patch another node's slice", "PATCH", others, {"spec": {"devices": []}})
    yield Request("delete another node's slice", "DELETE", others)
    yield Request("delete another driver's slice", "DELETE", foreign)
    yield Request("delete all slices", "DELETE", path)


def claims(world: World) -> Iterator[Request]:
    one, tenant = paths.resource_claim(world.tenant, "x"), world.tenant
    result = {"request": "r", "driver": DRIVER, "pool": f"{world.own}/{DRIVER}", "device": "gpu-0"}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [world.own]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    status = {"status": {"allocation": allocation}}
    named = {"metadata": {"name": "x", "namespace": tenant}, "spec": {}}
    body: Obj = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **named}
    watch = {"watch": "true", "timeoutSeconds": "1"}
    here, everywhere = paths.resource_claims(tenant), paths.resource_claims()
    classes = f"{RESOURCE}/v1/deviceclasses"
    yield Request("list all claims", "GET", everywhere, query={"limit": "1"})
    yield Request("watch all claims", "GET", everywhere, query=watch)
    yield Request("list the claims of a namespace", "GET", here, query={"limit": "1"})
    yield Request("create a claim", "POST", here, {**body, "metadata": {"name": "y"}})
    yield Request("patch a claim", "PATCH", one, {"metadata": {"finalizers": []}})
    yield Request("delete a claim", "DELETE", one)
    yield Request("allocate a claim to the own node", "PATCH", f"{one}/status", status)
    yield Request("replace a claim's status", "PUT", f"{one}/status", {**body, **status})
    yield Request("patch a claim's binding", "PATCH", f"{one}/binding", status)
    yield Request("list claim templates", "GET", f"{RESOURCE}/v1/namespaces/{tenant}/resourceclaimtemplates")
    yield Request("create a device class", "POST", classes, {"metadata": {"name": "rights"}, "spec": {}})
    yield Request("patch a device class", "PATCH", f"{classes}/{DRIVER}", {"spec": {}})


def core(world: World) -> Iterator[Request]:
    space, tenant = f"/api/v1/namespaces/{world.namespace}", f"/api/v1/namespaces/{world.tenant}"
    system, pod = "/api/v1/namespaces/kube-system", paths.pod(world.tenant, "x")
    container = {"name": "c", "image": "none.example/none"}
    new_pod = {"metadata": {"name": "rights"}, "spec": {"containers": [container]}}
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "x", "namespace": world.tenant}}
    ask_token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    yield Request("read a secret of the own namespace", "GET", f"{space}/secrets/x")
    yield Request("list all secrets", "GET", "/api/v1/secrets")
    yield Request("list the secrets of kube-system", "GET", f"{system}/secrets")
    yield Request("read ConfigMaps of the own namespace", "GET", f"{space}/configmaps")
    yield Request("read ConfigMaps of kube-system", "GET", f"{system}/configmaps")
    yield Request("list all pods", "GET", "/api/v1/pods")
    yield Request("create a pod", "POST", f"{space}/pods", new_pod)
    yield Request("delete a pod", "DELETE", pod)
    yield Request("change a pod's status", "PATCH", f"{pod}/status", {"status": {"phase": "Failed"}})
    yield Request("change a pod", "PATCH", pod, {"metadata": {"labels": {"a": "b"}}})
    yield Request("run a command in a pod", "POST", f"{pod}/exec", {})
    yield Request("read a pod's log", "GET", f"{pod}/log")
    yield Request("evict a pod", "POST", paths.eviction(world.tenant, "x"), evict)
    yield Request("label the own Node", "PATCH", paths.node(world.own), {"metadata": {"labels": {"a": "b"}}})
    yield Request("change the own Node's status", "PATCH", f"{paths.node(world.own)}/status", {"status": {}})
    yield Request("delete another Node", "DELETE", paths.node(world.other))
    yield Request("reach another kubelet", "GET", f"{paths.node(world.other)}/proxy/pods")
    yield Request("a token of its own account", "POST", f"{space}/serviceaccounts/dra-driver-node/token", ask_token)
    yield Request("a token of kube-system", "POST", f"{system}/serviceaccounts/default/token", ask_token)
    yield Request("delete its own account", "DELETE", f"{space}/serviceaccounts/dra-driver-node")
    yield Request("list events of default", "GET", paths.events("default"))
    yield Request("delete the events of default", "DELETE", paths.events("default"))
    yield Request("an event in a tenant's namespace", "POST", paths.events(world.tenant), event(world.tenant))
    yield Request("an event in kube-system", "POST", paths.events("kube-system"), event("kube-system"))
    yield Request("list all namespaces", "GET", "/api/v1/namespaces")
    yield Request("label a namespace", "PATCH", tenant, {"metadata": {"labels": {"a": "b"}}})


def event(namespace: str) -> Obj:
    about = {"kind": "Pod", "name": "x", "namespace": namespace}
    body: Obj = {"metadata": {"generateName": "rights-"}, "involvedObject": about, "reason": "Forged", "type": "Normal"}
    return {"apiVersion": "v1", "kind": "Event", **body}


def rest_of_the_cluster(world: World) -> Iterator[Request]:
    role = {"metadata": {"name": "rights"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
    bind = {
        "metadata": {"name": "rights"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    }
    policy = f"{ADMISSION}/validatingadmissionpolicies/dra-driver-own-slices"
    binding = f"{ADMISSION}/validatingadmissionpolicybindings/dra-driver-own-slices"
    webhook = f"{ADMISSION}/mutatingwebhookconfigurations"
    apps = f"/apis/apps/v1/namespaces/{world.namespace}/daemonsets/dra-driver-node"
    signing = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    yield Request("a ClusterRole", "POST", f"{RBAC}/clusterroles", role)
    yield Request("become cluster-admin", "POST", f"{RBAC}/clusterrolebindings", bind)
    yield Request("read roles", "GET", f"{RBAC}/clusterroles")
    yield Request("delete the admission policy", "DELETE", policy)
    yield Request("unbind the admission policy", "DELETE", binding)
    yield Request("a webhook", "POST", webhook, {"metadata": {"name": "rights"}, "webhooks": []})
    yield Request("change its own DaemonSet", "PATCH", apps, {"spec": {}})
    yield Request("ask for a certificate", "POST", signing, {"metadata": {"name": "rights"}, "spec": {}})
    yield Request("the API server's metrics", "GET", "/metrics")
    yield Request("create a GpuPolicy", "POST", f"{OWN_API}/gpupolicies", {"metadata": {"name": "rights"}, "spec": {}})
    yield Request("change a GpuPolicy", "PATCH", f"{OWN_API}/gpupolicies/x", {"spec": {}})
    yield Request("change a GpuPolicy's status", "PATCH", f"{OWN_API}/gpupolicies/x/status", {"status": {}})
    yield Request("delete all GpuPolicies", "DELETE", f"{OWN_API}/gpupolicies")


def gpu_nodes(world: World) -> Iterator[Request]:
    """Refused by an admission policy, except for the verbs that no role gives."""
    path, other = paths.gpu_nodes(), paths.gpu_nodes(world.other)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}
    lists: Obj = {"gpus": [], "policies": [], "problems": []}
    summary = {"summary": {"gpus": 0, "problems": 0}}
    forged: Obj = {"status": {"observedAt": "2026-01-01T00:00:00Z", "driverName": DRIVER, **summary, **lists}}
    owned = {**gpu_node(world.own), "metadata": {"name": world.own, "ownerReferences": [owner]}}
    yield Request("another node's GpuNode", "POST", path, gpu_node(world.other))
    yield Request("a GpuNode that goes with a pod", "POST", path, owned)
    yield Request("another GpuNode's status", "PATCH", f"{other}/status", forged)
    yield Request("change another GpuNode", "PUT", other, gpu_node(world.other))
    yield Request("delete another GpuNode", "DELETE", other)
    yield Request("delete all GpuNodes", "DELETE", path)


def gpu_node(name: str) -> Obj:
    return {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}}


def leases(world: World) -> Iterator[Request]:
    own = paths.leases(world.namespace, "dra-driver-controller")
    yield Request("take the controller's Lease", "PATCH", own, {"spec": {"holderIdentity": "x"}})
    kube = paths.leases("kube-system", "kube-scheduler")
    yield Request("take the scheduler's Lease", "PATCH", kube, {"spec": {"holderIdentity": "x"}})
    heartbeat = paths.leases("kube-node-lease", world.other)
    yield Request("another Node's heartbeat", "PATCH", heartbeat, {"spec": {"holderIdentity": "x"}})


def of_a_node(world: World) -> list[Request]:
    parts = (slices, claims, core, rest_of_the_cluster, gpu_nodes, leases)
    return [request for part in parts for request in part(world)]


def of_a_controller(world: World) -> list[Request]:
    """What the controller's token must not do; it may list claims, read and evict pods, write events and its Lease."""
    may = {
        "change a GpuPolicy's status",
        *("list all claims", "watch all claims", "list the claims of a namespace", "evict a pod"),
        *("an event in a tenant's namespace", "an event in kube-system"),
    }
    new = [request for request in of_a_node(world) if request.what not in may]
    node = Request("read a Node", "GET", paths.node(world.own))
    return [*new, node]


def of_a_kubelet(world: World) -> list[Request]:
    wanted = {
        *("a slice of another node", "a slice of the own node in another node's pool"),
        *("a slice of another node in the own pool", "a slice for all nodes", "a slice in a second own pool"),
        *("change another node's slice", "delete another node's slice"),
    }
    return [*(request for request in slices(world) if request.what in wanted), *gpu_nodes(world)]
