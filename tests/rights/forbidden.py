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
    yield from (
        Request(what=what, verb="POST", path=path, body=body)
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
        )
    )
    for version in ("v1beta1", "v1beta2"):
        body = old_version(slice_of(own, other_pool), version)
        what = f"a slice in another node's pool, by {version}"
        yield Request(what=what, verb="POST", path=f"{RESOURCE}/{version}/resourceslices", body=body)
    others, foreign = f"{path}/rights-{other}", f"{path}/rights-x-{own}"
    yield Request(
        what="change another node's slice",
        verb="PUT",
        path=others,
        body=slice_of(other, other_pool, name=f"rights-{other}"),
    )
    yield Request(what="patch another node's slice", verb="PATCH", path=others, body={"spec": {"devices": []}})
    yield Request(what="delete another node's slice", verb="DELETE", path=others)
    yield Request(what="delete another driver's slice", verb="DELETE", path=foreign)
    yield Request(what="delete all slices", verb="DELETE", path=path)


def claims(world: World) -> Iterator[Request]:
    one, tenant = paths.resource_claim(world.tenant, "x"), world.tenant
    result = {"request": "r", "driver": DRIVER, "pool": f"{world.own}/{DRIVER}", "device": "gpu-0"}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [world.own]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    status = {"status": {"allocation": allocation}}
    body: Obj = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "x", "namespace": tenant},
        "spec": {},
    }
    yield Request(what="list all claims", verb="GET", path=paths.resource_claims(), query={"limit": "1"})
    yield Request(
        what="watch all claims",
        verb="GET",
        path=paths.resource_claims(),
        query={"watch": "true", "timeoutSeconds": "1"},
    )
    yield Request(
        what="list the claims of a namespace", verb="GET", path=paths.resource_claims(tenant), query={"limit": "1"}
    )
    yield Request(
        what="create a claim", verb="POST", path=paths.resource_claims(tenant), body={**body, "metadata": {"name": "y"}}
    )
    yield Request(what="patch a claim", verb="PATCH", path=one, body={"metadata": {"finalizers": []}})
    yield Request(what="delete a claim", verb="DELETE", path=one)
    yield Request(what="allocate a claim to the own node", verb="PATCH", path=f"{one}/status", body=status)
    yield Request(what="replace a claim's status", verb="PUT", path=f"{one}/status", body={**body, **status})
    yield Request(what="patch a claim's binding", verb="PATCH", path=f"{one}/binding", body=status)
    templates = f"{RESOURCE}/v1/namespaces/{tenant}/resourceclaimtemplates"
    yield Request(what="list claim templates", verb="GET", path=templates)
    classes = f"{RESOURCE}/v1/deviceclasses"
    yield Request(
        what="create a device class", verb="POST", path=classes, body={"metadata": {"name": "rights"}, "spec": {}}
    )
    yield Request(what="patch a device class", verb="PATCH", path=f"{classes}/{DRIVER}", body={"spec": {}})


def core(world: World) -> Iterator[Request]:
    space, tenant = f"/api/v1/namespaces/{world.namespace}", f"/api/v1/namespaces/{world.tenant}"
    system, pod = "/api/v1/namespaces/kube-system", paths.pod(world.tenant, "x")
    container = {"name": "c", "image": "none.example/none"}
    new_pod = {"metadata": {"name": "rights"}, "spec": {"containers": [container]}}
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "x", "namespace": world.tenant}}
    ask_token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    yield from (
        Request(what=what, verb=verb, path=path, body=body)
        for what, verb, path, body in (
            ("read a secret of the own namespace", "GET", f"{space}/secrets/x", None),
            ("list all secrets", "GET", "/api/v1/secrets", None),
            ("list the secrets of kube-system", "GET", f"{system}/secrets", None),
            ("read ConfigMaps of the own namespace", "GET", f"{space}/configmaps", None),
            ("read ConfigMaps of kube-system", "GET", f"{system}/configmaps", None),
            ("list all pods", "GET", "/api/v1/pods", None),
            ("create a pod", "POST", f"{space}/pods", new_pod),
            ("delete a pod", "DELETE", pod, None),
            ("change a pod's status", "PATCH", f"{pod}/status", {"status": {"phase": "Failed"}}),
            ("change a pod", "PATCH", pod, {"metadata": {"labels": {"a": "b"}}}),
            ("run a command in a pod", "POST", f"{pod}/exec", {}),
            ("read a pod's log", "GET", f"{pod}/log", None),
            ("evict a pod", "POST", paths.eviction(world.tenant, "x"), evict),
            ("label the own Node", "PATCH", paths.node(world.own), {"metadata": {"labels": {"a": "b"}}}),
            ("change the own Node's status", "PATCH", f"{paths.node(world.own)}/status", {"status": {}}),
            ("delete another Node", "DELETE", paths.node(world.other), None),
            ("reach another kubelet", "GET", f"{paths.node(world.other)}/proxy/pods", None),
            ("a token of its own account", "POST", f"{space}/serviceaccounts/dra-driver-node/token", ask_token),
            ("a token of kube-system", "POST", f"{system}/serviceaccounts/default/token", ask_token),
            ("delete its own account", "DELETE", f"{space}/serviceaccounts/dra-driver-node", None),
            ("list events of default", "GET", paths.events("default"), None),
            ("delete the events of default", "DELETE", paths.events("default"), None),
            ("an event in a tenant's namespace", "POST", paths.events(world.tenant), event(world.tenant)),
            ("an event in kube-system", "POST", paths.events("kube-system"), event("kube-system")),
            ("list all namespaces", "GET", "/api/v1/namespaces", None),
            ("label a namespace", "PATCH", tenant, {"metadata": {"labels": {"a": "b"}}}),
        )
    )


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
    webhook = f"{ADMISSION}/mutatingwebhookconfigurations"
    apps = f"/apis/apps/v1/namespaces/{world.namespace}/daemonsets/dra-driver-node"
    signing = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    yield from (
        Request(what=what, verb=verb, path=path, body=body)
        for what, verb, path, body in (
            ("a ClusterRole", "POST", f"{RBAC}/clusterroles", role),
            ("become cluster-admin", "POST", f"{RBAC}/clusterrolebindings", bind),
            ("read roles", "GET", f"{RBAC}/clusterroles", None),
            ("delete the admission policy", "DELETE", policy, None),
            (
                "unbind the admission policy",
                "DELETE",
                f"{ADMISSION}/validatingadmissionpolicybindings/dra-driver-own-slices",
                None,
            ),
            ("a webhook", "POST", webhook, {"metadata": {"name": "rights"}, "webhooks": []}),
            ("change its own DaemonSet", "PATCH", apps, {"spec": {}}),
            ("ask for a certificate", "POST", signing, {"metadata": {"name": "rights"}, "spec": {}}),
            ("the API server's metrics", "GET", "/metrics", None),
            ("create a GpuPolicy", "POST", f"{OWN_API}/gpupolicies", {"metadata": {"name": "rights"}, "spec": {}}),
            ("change a GpuPolicy", "PATCH", f"{OWN_API}/gpupolicies/x", {"spec": {}}),
            ("change a GpuPolicy's status", "PATCH", f"{OWN_API}/gpupolicies/x/status", {"status": {}}),
            ("delete all GpuPolicies", "DELETE", f"{OWN_API}/gpupolicies", None),
        )
    )


def gpu_nodes(world: World) -> Iterator[Request]:
    """Refused by an admission policy, except for the verbs that no role gives."""
    path, other = paths.gpu_nodes(), paths.gpu_nodes(world.other)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}
    lists: Obj = {"gpus": [], "policies": [], "problems": []}
    summary = {"summary": {"gpus": 0, "problems": 0}}
    forged: Obj = {"status": {"observedAt": "2026-01-01T00:00:00Z", "driverName": DRIVER, **summary, **lists}}
    owned = {**gpu_node(world.own), "metadata": {"name": world.own, "ownerReferences": [owner]}}
    yield Request(what="another node's GpuNode", verb="POST", path=path, body=gpu_node(world.other))
    yield Request(what="a GpuNode that goes with a pod", verb="POST", path=path, body=owned)
    yield Request(what="another GpuNode's status", verb="PATCH", path=f"{other}/status", body=forged)
    yield Request(what="change another GpuNode", verb="PUT", path=other, body=gpu_node(world.other))
    yield Request(what="delete another GpuNode", verb="DELETE", path=other)
    yield Request(what="delete all GpuNodes", verb="DELETE", path=path)


def gpu_node(name: str) -> Obj:
    return {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}}


def leases(world: World) -> Iterator[Request]:
    own = paths.leases(world.namespace, "dra-driver-controller")
    yield Request(what="take the controller's Lease", verb="PATCH", path=own, body={"spec": {"holderIdentity": "x"}})
    kube = paths.leases("kube-system", "kube-scheduler")
    yield Request(what="take the scheduler's Lease", verb="PATCH", path=kube, body={"spec": {"holderIdentity": "x"}})
    heartbeat = paths.leases("kube-node-lease", world.other)
    yield Request(what="another Node's heartbeat", verb="PATCH", path=heartbeat, body={"spec": {"holderIdentity": "x"}})


def of_a_node(world: World) -> list[Request]:
    """What the token of the node process on ``own`` must not do."""
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
    node = Request(what="read a Node", verb="GET", path=paths.node(world.own))
    return [*new, node]


def of_a_kubelet(world: World) -> list[Request]:
    """What the credentials of the kubelet on ``own`` must not do to this driver's objects."""
    wanted = {
        *(
            "a slice of another node",
            "a slice of the own node in another node's pool",
            "a slice of another node in the own pool",
        ),
        *(
            "a slice for all nodes",
            "a slice in a second own pool",
            "change another node's slice",
            "delete another node's slice",
        ),
    }
    return [*(request for request in slices(world) if request.what in wanted), *gpu_nodes(world)]
