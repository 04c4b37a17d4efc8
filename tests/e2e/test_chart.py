"""The Helm chart on a real API server, by Helm's own code (helm-python-sdk): install, taking over, upgrade, uninstall.

Only the objects count here, so a control plane is enough; ``test_chart_pods.py`` looks at running pods. Environment:
KUBECTL (for ``kubectl apply -k``), E2E_OLD_BASE (deploy/base of an earlier commit, for the way over from it; else the
rendering of now is taken over)."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.contract.deploy.test_manifests import EVERYTHING
from tests.contract.deploy.test_presets import NAMES, rendered
from tests.e2e.cluster import CRDS, still_there, unread, wait
from tests.e2e.gates import SHARES, missing
from tests.fakes import chart

NAME = NAMESPACE = "dra-driver"
TIMEOUT_S = 240


class Release:
    """The release ``dra-driver``. Not thread-safe; errors are Helm's own (HelmError)."""

    def __init__(self, kubeconfig: str) -> None:
        self._helm = chart.renderer().helm_python
        self._config = self._helm.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE)

    def close(self) -> None:
        self._config.close()

    def install(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        path: Path = chart.CHART,
        take_ownership: bool = False,
        wait: bool = False,
    ) -> str:
        """As ``helm install --create-namespace``; returns the notes."""
        options: dict[str, Any] = {"namespace": NAMESPACE, "create_namespace": True, "timeout_seconds": TIMEOUT_S}
        if take_ownership:
            options |= {"take_ownership": True, "force_conflicts": True}
        return self._run("helm_install", path, values, options, wait)

    def upgrade(self, values: Mapping[str, Any] | None = None, *, path: Path = chart.CHART, wait: bool = False) -> str:
        options: dict[str, Any] = {"namespace": NAMESPACE, "timeout_seconds": TIMEOUT_S}
        return self._run("helm_upgrade", path, values, options, wait)

    def _run(
        self, function: str, path: Path, values: Mapping[str, Any] | None, options: dict[str, Any], wait: bool
    ) -> str:
        """With options that the package's own methods do not have: --take-ownership."""
        native = self._helm._native
        given = options | ({"wait": "watcher"} if wait else {})
        answer = native.call_string(
            function,
            self._config._raw(),
            native.HANDLE(0),
            native.HANDLE(0),
            str(path),
            NAME,
            json.dumps(values or {}),
            json.dumps(given),
        )
        return str(json.loads(answer).get("notes", ""))

    def rollback(self, revision: int, *, wait: bool = False) -> None:
        self._config.rollback(NAME, version=revision, timeout=TIMEOUT_S, wait="watcher" if wait else None)

    def uninstall(self) -> None:
        self._config.uninstall(NAME, timeout=TIMEOUT_S, ignore_not_found=True, wait="watcher")

    def history(self) -> list[tuple[int, str, str]]:
        rows = self._config.history(NAME)
        return [(row.get("revision", row.get("version")), row.get("chart", ""), row.get("status", "")) for row in rows]


@contextmanager
def release(kubeconfig: str) -> Iterator[Release]:
    made = Release(kubeconfig)
    try:
        yield made
    finally:
        made.uninstall()
        made.close()


LISTS = {
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "Deployment": "/apis/apps/v1/deployments",
    "ConfigMap": "/api/v1/configmaps",
    "ServiceAccount": "/api/v1/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
    "CustomResourceDefinition": CRDS,
}
LABEL = "app.kubernetes.io/name"
Identity = tuple[str, str]


@pytest.fixture
def rest(kubeconfig: str) -> RestClient:
    return RestClient(Connection.load(kubeconfig))


@pytest.fixture
def installed(kubeconfig: str, rest: RestClient) -> Iterator[Release]:
    """No release yet; afterwards nothing of it is left, and neither are the CustomResourceDefinitions."""
    if [name for name in of_driver(rest) if name[0] != "CustomResourceDefinition"]:
        pytest.skip("the driver is installed in this cluster: uninstall it to run this test")
    with release(kubeconfig) as made:
        yield made
    for obj in rest.list(CRDS)["items"]:
        if obj["metadata"].get("labels", {}).get(LABEL) == NAME:
            rest.delete(f"{CRDS}/{obj['metadata']['name']}")
    wait(lambda: str(sorted(of_driver(rest))) if of_driver(rest) else None, 60.0)
    if unread(rest, f"/api/v1/namespaces/{NAMESPACE}") is None:
        rest.delete(f"/api/v1/namespaces/{NAMESPACE}")
        wait(lambda: still_there(rest, f"/api/v1/namespaces/{NAMESPACE}"), 60.0)


def of_driver(rest: RestClient) -> dict[Identity, dict[str, Any]]:
    """The driver's objects of all kinds that the chart knows, by kind and name."""
    return {
        (kind, obj["metadata"]["name"]): obj
        for kind, path in LISTS.items()
        for obj in rest.list(path)["items"]
        if obj["metadata"].get("labels", {}).get(LABEL) == NAME
    }


def identities(objects: list[chart.Obj]) -> set[Identity]:
    return {(obj["kind"], obj["metadata"]["name"]) for obj in objects}


def test_an_uninstall_leaves_the_crds_alone(installed: Release, rest: RestClient) -> None:
    notes = installed.install()
    assert "rollout status daemonset/dra-driver-node" in notes
    assert "pod-security.kubernetes.io/enforce=privileged" in notes
    assert of_driver(rest).keys() == identities(chart.objects())
    installed.uninstall()
    left = of_driver(rest)
    assert {kind for kind, _ in left} == {"CustomResourceDefinition"}
    assert len(left) == 2
    installed.install()


def test_the_objects_of_kubectl_apply_are_taken_over(
    installed: Release, rest: RestClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No object is made anew: a DaemonSet that was deleted would end the MPS host's clients."""
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH and $KUBECTL is not set")
    base = os.environ.get("E2E_OLD_BASE", str(chart.ROOT / "deploy" / "base"))
    command = [kubectl, "--kubeconfig", os.environ["KUBECONFIG"], "apply", "-k", base]
    subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    before = of_driver(rest)
    with pytest.raises(Exception, match="cannot be imported into the current release: invalid ownership metadata"):
        installed.install()
    installed.install({"mpsHost": {"enabled": True}}, take_ownership=True)
    after = of_driver(rest)
    for identity, obj in before.items():
        now = after[identity]
        assert now["metadata"]["uid"] == obj["metadata"]["uid"], identity
        assert now["metadata"]["annotations"]["meta.helm.sh/release-name"] == NAME, identity
    wanted = chart.objects({"mpsHost": {"enabled": True}})
    assert after.keys() == identities(wanted)
    for name in ("dra-driver-node", "dra-driver-mps-host"):
        now, made = after["DaemonSet", name]["spec"]["template"]["spec"], chart.pod_spec(wanted, "DaemonSet", name)
        assert names(now["containers"][0]["env"]) == names(made["containers"][0]["env"])
        assert names(now["volumes"]) == names(made["volumes"])
        assert now["containers"][0]["image"] == made["containers"][0]["image"]
    with capsys.disabled():
        sys.stdout.write(f"\n{len(before)} objects of {base} taken over, {len(after) - len(before)} made\n")
    installed.uninstall()
    assert {kind for kind, _ in of_driver(rest)} == {"CustomResourceDefinition"}


def names(items: list[dict[str, Any]]) -> set[str]:
    return {item["name"] for item in items}


def next_chart(folder: Path) -> Path:
    path = folder / "chart"
    shutil.copytree(chart.CHART, path)
    about = yaml.safe_load((path / "Chart.yaml").read_text())
    about["version"] = "0.1.1"
    (path / "Chart.yaml").write_text(yaml.safe_dump(about))
    return path


def test_an_upgrade_and_its_rollback_change_what_the_values_say_and_nothing_else(
    installed: Release, rest: RestClient, tmp_path: Path
) -> None:
    installed.install()
    first = of_driver(rest)
    installed.upgrade(
        {"node": {"podAnnotations": {"example.com/a": "b"}}, "drainer": {"enabled": True}}, path=next_chart(tmp_path)
    )
    second = of_driver(rest)
    assert second.keys() - first.keys() == {("ClusterRole", "dra-driver-drainer"), ("Role", "dra-driver-drainer")}
    generations = {
        key: (first[key]["metadata"].get("generation"), obj["metadata"].get("generation"))
        for key, obj in second.items()
        if key in first
    }
    assert [key for key, (old, new) in generations.items() if old != new] == [("DaemonSet", "dra-driver-node")]
    installed.rollback(1)
    third = of_driver(rest)
    assert third.keys() == first.keys()
    template = ("DaemonSet", "dra-driver-node")
    assert third[template]["spec"]["template"] == first[template]["spec"]["template"]
    assert all(third[key]["metadata"]["uid"] == first[key]["metadata"]["uid"] for key in first)
    assert [status for _, _, status in installed.history()] == ["superseded", "superseded", "deployed"]


def test_wrong_values_are_refused_before_anything_changes(installed: Release, rest: RestClient) -> None:
    with pytest.raises(Exception, match="at '/mpsHost': additional properties 'enable' not allowed"):
        installed.install({"mpsHost": {"enable": True}})
    assert of_driver(rest) == {}


def collection(obj: dict[str, Any]) -> str:
    plural = f"{obj['kind'].lower()[:-1]}ies" if obj["kind"].endswith("y") else f"{obj['kind'].lower()}s"
    plural = f"{obj['kind'].lower()}es" if obj["kind"].endswith("ss") else plural
    root = "/apis/" if "/" in obj["apiVersion"] else "/api/"
    namespace = obj["metadata"].get("namespace")
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{obj['apiVersion']}{inside}/{plural}"


def test_every_preset_is_taken_by_the_api_server(installed: Release, rest: RestClient, gates: dict[str, bool]) -> None:
    """With all fields and rules of the real one; the embedded one knows the fields alone. Before 1.36 it does not serve
    one kind, and refuses the class of shared GPUs."""
    left_out = {"Namespace", "PodMonitor", "PrometheusRule"}
    if unread(rest, "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"):
        left_out |= {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
    rest.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for objects in [chart.objects(EVERYTHING), *(rendered(name) for name in NAMES)]:
        for obj in objects:
            is_refused = "allowMultipleAllocations" in str(obj) and missing((SHARES,), gates)
            if obj["kind"] not in left_out and not is_refused:
                rest.create(f"{collection(obj)}?dryRun=All&fieldValidation=Strict", obj)
