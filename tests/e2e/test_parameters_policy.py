"""A real API server answers about opaque parameters as lint and the nodes do.

Needs no node and no GPU, only an administrator. Every request is a dry run.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.contract.deploy import opaque_manifests as opaque
from tests.e2e.cluster import ROOT

SUFFIX = os.urandom(3).hex()
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{ADMISSION}/validatingadmissionpolicies"
BINDINGS = f"{ADMISSION}/validatingadmissionpolicybindings"
ACTIVE_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def api(kubeconfig: str) -> Iterator[RestClient]:
    rest = RestClient(Connection.load(kubeconfig))
    text = (ROOT / "deploy" / "base" / "parameters-policy.yaml").read_text()
    policy, binding = yaml.safe_load_all(text)
    name = f"{policy['metadata']['name']}-{SUFFIX}"
    policy["metadata"]["name"] = binding["metadata"]["name"] = binding["spec"]["policyName"] = name
    rest.create(POLICIES, policy)
    try:
        rest.create(BINDINGS, binding)
        _wait_until_active(rest, name)
        yield rest
    finally:
        for path in (f"{BINDINGS}/{name}", f"{POLICIES}/{name}"):
            rest.delete(path)


def create(rest: RestClient, manifest: dict[str, Any]) -> str | None:
    """What the API server says against it; None if it would accept it."""
    version, kind = manifest["apiVersion"], manifest["kind"]
    plural = opaque.PLURALS.get(kind)
    path = f"/apis/{version}/namespaces/default/{plural}" if plural else f"/apis/{version}/deviceclasses"
    return _answer(lambda: rest.create(path, manifest, dry_run=True))


def _answer(request: Any) -> str | None:
    try:
        request()
    except KubernetesApiError as error:
        return str(error)
    return None


def _wait_until_active(rest: RestClient, name: str) -> None:
    wrong = next(item for item in opaque.manifests() if opaque.lints(item) and item["apiVersion"].endswith("/v1"))
    deadline = time.monotonic() + ACTIVE_WITHIN_S
    while name not in (create(rest, wrong) or ""):
        assert time.monotonic() < deadline, f"the policy was not active within {ACTIVE_WITHIN_S:g} s"
        time.sleep(0.2)


def test_a_hundred_manifests_get_the_answers_of_lint(api: RestClient) -> None:
    refused = 0
    for manifest in opaque.manifests():
        said = create(api, manifest)
        if said is not None and "no matches for kind" in said:
            continue  # this API server does not serve the beta version
        assert (said is None) == (not opaque.lints(manifest)), (manifest, said)
        sentence = opaque.node_says(manifest)
        if said is not None and sentence is not None:
            refused += 1
            _same_sentence(said, sentence)
    assert refused > opaque.COUNT // 5


def _same_sentence(said: str, expected: str) -> None:
    """Maps have no order in the API server, and the client cuts long messages."""
    sentence = said.partition("denied request: ")[2]
    assert sentence.partition(": ")[0] == expected.partition(": ")[0]
    if not sentence.endswith("…") and " more" not in expected:
        assert set(_problems(sentence)) == set(_problems(expected))


def _problems(sentence: str) -> list[str]:
    below = sentence.partition(": ")[2]
    return below.removeprefix("GpuConfig: ").removeprefix("MigDeviceConfig: ").split("; ")


def test_the_policy_has_no_type_problems(api: RestClient) -> None:
    """The API server checks expressions against the schema of each kind, and reports what it finds in the status."""
    policy = next(item for item in api.get(POLICIES)["items"] if SUFFIX in item["metadata"]["name"])
    checking = policy.get("status", {}).get("typeChecking", {})
    assert not checking.get("expressionWarnings"), checking


def test_a_wrong_class_keeps_its_labels_writable(api: RestClient) -> None:
    classes, name = "/apis/resource.k8s.io/v1/deviceclasses", f"e2e-opaque-{SUFFIX}"
    wrong = {"opaque": {"driver": "other.example", "parameters": {"any": "thing"}}}
    header = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    made = api.create(classes, {**header, "spec": {"config": [wrong]}})
    try:
        made["metadata"]["labels"] = {"team": "blue"}
        made = api.update(f"{classes}/{name}", made)
        made["spec"]["config"][0]["opaque"]["driver"] = opaque.DRIVER
        assert "apiVersion: expected" in (_answer(lambda: api.update(f"{classes}/{name}", made)) or "")
    finally:
        api.delete(f"{classes}/{name}")
