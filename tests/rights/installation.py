"""The chart's rights and admission policies on a real API server, under names of a test run's own."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from dra_driver.core.errors import AlreadyExistsError, DraError
from dra_driver.kube.rest import RestClient

Obj = dict[str, Any]
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
ACTIVE_WITHIN_S = 30.0


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


def until(complaint: Callable[[], str], timeout_s: float = ACTIVE_WITHIN_S) -> None:
    deadline = time.monotonic() + timeout_s
    while said := _said(complaint):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {said}"
        time.sleep(0.2)


def _said(complaint: Callable[[], str]) -> str:
    try:
        return complaint()
    except DraError as error:
        return str(error)
