"""The chart's rights on a real API server, its ServiceAccounts, and tokens as the kubelet asks for them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dra_driver.core.errors import AlreadyExistsError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A ServiceAccount as a pod on a node has it. ``node`` is empty for a token that is bound to no pod."""

    name: str
    namespace: str
    token: str
    node: str = ""

    def kubeconfig(self, admin: Path, target: Path) -> Path:
        """The administrator's kubeconfig with this account's token in it, as JSON."""
        document = yaml.safe_load(admin.read_text())
        cluster = document["clusters"][0]
        context = {"name": "c", "context": {"cluster": cluster["name"], "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [context]}
        target.touch(0o600)
        users = [{"name": "u", "user": {"token": self.token}}]
        target.write_text(json.dumps({**config, "clusters": [cluster], "users": users}))
        return target

    def client(self, admin: Path, target: Path) -> RestClient:
        return RestClient(Connection.load(str(self.kubeconfig(admin, target))))


def pod_on(node: str, account: str, namespace: str, name: str) -> Obj:
    """A pod of the account on a node: what a token is bound to. No kubelet has to run it."""
    metadata = {"name": name, "namespace": namespace}
    container = {"name": "c", "image": "none.example/none", "imagePullPolicy": "Never"}
    spec = {
        "serviceAccountName": account,
        "nodeName": node,
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def account_on(admin: RestClient, name: str, namespace: str, node: str) -> Account:
    """Make a pod of the account on the node, and ask for its token as the kubelet does (TokenRequest)."""
    pod = admin.create(f"/api/v1/namespaces/{namespace}/pods", pod_on(node, name, namespace, f"{name}-{node}"))
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return Account(name=name, namespace=namespace, token=token(admin, name, namespace, bound), node=node)


def token(admin: RestClient, account: str, namespace: str, bound: Mapping[str, str] | None = None) -> str:
    spec: Obj = {"expirationSeconds": 3600, **({"boundObjectRef": dict(bound)} if bound else {})}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(admin.create(path, body)["status"]["token"])


class Impersonation(Connection):
    headers: Mapping[str, str] = {}

    def auth_headers(self) -> dict[str, str]:
        return {**super().auth_headers(), **self.headers}


def acting_as(kubeconfig: str, user: str, *, group: str = "", token_node: str = "") -> RestClient:
    """``token_node`` is the node to which the token is bound; none where it is empty."""
    connection = Impersonation.load(kubeconfig)
    assert isinstance(connection, Impersonation)
    node_name = "Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"
    headers = {"Impersonate-User": user, "Impersonate-Group": group, node_name: token_node}
    connection.headers = {name: value for name, value in headers.items() if value}
    return RestClient(connection)


KINDS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}
NAMED = ("ServiceAccount", "CustomResourceDefinition")


def collection(obj: Obj) -> str:
    return KINDS[obj["kind"]].format(namespace=obj["metadata"].get("namespace", ""))


def renamed(manifest: Obj, suffix: str) -> Obj:
    """A copy whose name ends with ``suffix``, except for what processes and roles call by name."""
    copy: Obj = yaml.safe_load(yaml.safe_dump(manifest))
    if copy["kind"] in NAMED:
        return copy
    copy["metadata"]["name"] += f"-{suffix}"
    if "roleRef" in copy:
        copy["roleRef"]["name"] += f"-{suffix}"
    if "policyName" in copy.get("spec", {}):
        copy["spec"]["policyName"] += f"-{suffix}"
    return copy


def bound(account: str, namespace: str, *roles: Obj) -> list[Obj]:
    """A ServiceAccount, and a binding of each role to it: the chart binds roles of people to no account."""
    group = "rbac.authorization.k8s.io"
    head = {"name": account, "namespace": namespace}
    made: list[Obj] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head}]
    for role in roles:
        binding = {"apiVersion": f"{group}/v1", "kind": f"{role['kind']}Binding", "metadata": role["metadata"]}
        role_ref = {"apiGroup": group, "kind": role["kind"], "name": role["metadata"]["name"]}
        made.append({**binding, "roleRef": role_ref, "subjects": [{"kind": "ServiceAccount", **head}]})
    return made


@contextmanager
def installed(admin: RestClient, objects: Iterable[Obj], namespace: str, suffix: str) -> Iterator[None]:
    """The objects that give and take rights, while the block runs. CRDs that the cluster has stay as they are."""
    made: list[str] = []
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    try:
        admin.create("/api/v1/namespaces", body)
        made.append(f"/api/v1/namespaces/{namespace}")
        for obj in objects:
            if obj["kind"] in KINDS:
                copy = renamed(obj, suffix)
                try:
                    admin.create(collection(copy), copy)
                except AlreadyExistsError:
                    assert copy["kind"] == "CustomResourceDefinition", copy["metadata"]["name"]
                else:
                    made.append(f"{collection(copy)}/{copy['metadata']['name']}")
        yield
    finally:
        for path in reversed(made):
            admin.delete(path)
