"""A real API server gives pods with claims the toleration of GPU nodes, by the chart's opt-in policy.

Needs no node and no GPU, only an administrator, and Kubernetes 1.36. Every pod is a dry run.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.core.errors import KubernetesApiError, NotFoundError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.fakes import chart

SUFFIX = os.urandom(3).hex()
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
COLLECTIONS = {
    "MutatingAdmissionPolicy": f"{ADMISSION}/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": f"{ADMISSION}/mutatingadmissionpolicybindings",
}
PODS = "/api/v1/namespaces/default/pods"
ACTIVE_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def api(kubeconfig: str) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    values = {"podToleration": {"enabled": True, "podSelector": {"matchLabels": {"e2e": SUFFIX}}}}
    made = []
    for item in chart.objects(values):
        if item["kind"] in COLLECTIONS:
            item["metadata"]["name"] += f"-{SUFFIX}"
            if "policyName" in item["spec"]:
                item["spec"]["policyName"] += f"-{SUFFIX}"
            made.append(item)
    try:
        for item in made:
            try:
                rest.create(COLLECTIONS[item["kind"]], item)
            except NotFoundError:
                pytest.skip("the API server has no MutatingAdmissionPolicy of version v1")
        deadline = time.monotonic() + ACTIVE_WITHIN_S
        while not added(rest):
            assert time.monotonic() < deadline, f"the policy was not active within {ACTIVE_WITHIN_S:g} s"
            time.sleep(0.2)
        yield rest
    finally:
        for item in reversed(made):
            try:
                rest.delete(f"{COLLECTIONS[item['kind']]}/{item['metadata']['name']}")
            except KubernetesApiError:
                continue


def added(rest: RestClient, **spec: Any) -> list[dict[str, Any]]:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"e2e-{SUFFIX}", "labels": {"e2e": SUFFIX}},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}],
            **spec,
        },
    }
    found = rest.create(PODS, body, dry_run=True)["spec"].get("tolerations", [])
    return [item for item in found if item.get("key") == "nvidia.com/gpu"]


def test_a_pod_with_a_claim_gets_the_toleration(api: RestClient) -> None:
    assert added(api) == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


def test_a_pod_without_a_claim_does_not(api: RestClient) -> None:
    assert added(api, resourceClaims=[]) == []


def test_own_tolerations_stay(api: RestClient) -> None:
    own = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "x", "effect": "NoSchedule"}
    assert added(api, tolerations=[own])[0] == own
    assert len(added(api, tolerations=[own])) == 2
    assert added(api, tolerations=[{"operator": "Exists"}]) == []
