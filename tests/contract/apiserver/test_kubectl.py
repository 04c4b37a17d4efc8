"""The real kubectl against the embedded API server: the commands that users try.

Runs the kubectl in $KUBECTL, else the one on PATH. Skipped, with the reason, without a kubectl of at least 1.34.
"""

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.sim.apiserver.kinds import NODES, PODS, RESOURCE_SLICES
from dra_driver.sim.apiserver.server import ApiServer
from dra_driver.sim.loop import StoreEventRecorder

OLDEST_MINOR = 34  # resource.k8s.io/v1 is in client-go's scheme since then

MANIFEST = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec:
  selectors: [{cel: {expression: "device.driver == 'gpu.example.com'"}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec:
  devices:
    requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]
---
apiVersion: v1
kind: Pod
metadata: {name: trainer, labels: {app: trainer}}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: "ubuntu:24.04", env: [{name: A, value: "1"}, {name: B, value: "2"}], resources: {claims:
  [{name: gpu}]}}
  - {name: side, image: "busybox:1"}
  resourceClaims: [{name: gpu, resourceClaimName: shared}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: 2
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec: {containers: [{name: main, image: "ubuntu:24.04"}]}
"""

Kubectl = Callable[..., str]


def _find_kubectl() -> str:
    path = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not path:
        pytest.skip("no kubectl on PATH and $KUBECTL is not set")
    shown = subprocess.run(
        [path, "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    minor = re.search(r'"minor":\s*"(\d+)', shown)
    if minor is None or int(minor[1]) < OLDEST_MINOR:
        pytest.skip(f"{path} is older than 1.{OLDEST_MINOR}, which does not know resource.k8s.io/v1")
    return path


@pytest.fixture(scope="module")
def kubectl_path() -> str:
    return _find_kubectl()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kubectl(api: ApiServer, kubectl_path: str, tmp_path: Path) -> Kubectl:
    """Run kubectl and return its output; ``code`` is the expected exit status."""
    config = api.kubeconfig(tmp_path / "kubeconfig")

    def run(*arguments: str, stdin: str = "", code: int = 0) -> str:
        command = [kubectl_path, "--kubeconfig", str(config), "--cache-dir", str(tmp_path / "cache"), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return run


def test_discovery_names_what_is_served(kubectl: Kubectl) -> None:
    resources = kubectl("api-resources")
    assert re.search(r"^resourceclaims +resource.k8s.io/v1 +true +ResourceClaim$", resources, re.MULTILINE)
    assert re.search(r"^pods +po +v1 +true +Pod$", resources, re.MULTILINE)
    assert "Server Version: v1.36" in kubectl("version")
    assert "is running at" in kubectl("cluster-info")
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"


def test_apply_creates_changes_and_leaves_alone(kubectl: Kubectl) -> None:
    first = kubectl("apply", "-f", "-", stdin=MANIFEST)
    assert first.count(" created") == 4
    again = kubectl("apply", "-f", "-", stdin=MANIFEST)
    assert "pod/trainer unchanged" in again
    assert "deployment.apps/server unchanged" in again
    kubectl("apply", "-f", "-", stdin=MANIFEST.replace("replicas: 2", "replicas: 3").replace("busybox:1", "busybox:2"))
    assert kubectl("get", "deploy", "server", "-o", "jsonpath={.spec.replicas}") == "3"
    images = kubectl("get", "pod", "trainer", "-o", "jsonpath={.spec.containers[*].image}")
    assert images == "ubuntu:24.04 busybox:2"


def test_apply_removes_fields_that_the_manifest_dropped(kubectl: Kubectl) -> None:
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, labels: {a: b}}\ndata: {x: '1', y: '2'}\n"
    kubectl("apply", "-f", "-", stdin=manifest)
    kubectl("patch", "configmap", "c", "--type=merge", "-p", '{"data":{"z":"3"}}')
    kubectl("apply", "-f", "-", stdin=manifest.replace(", y: '2'", ""))
    assert json.loads(kubectl("get", "cm", "c", "-o", "jsonpath={.data}")) == {"x": "1", "z": "3"}


def test_dry_runs_store_nothing_and_diff_shows_the_change(kubectl: Kubectl) -> None:
    kubectl("apply", "--dry-run=server", "-f", "-", stdin=MANIFEST)
    assert "NotFound" in kubectl("get", "pod", "trainer", code=1)
    kubectl("apply", "-f", "-", stdin=MANIFEST)
    changed = kubectl("diff", "-f", "-", stdin=MANIFEST.replace("replicas: 2", "replicas: 5"), code=1)
    assert "+  replicas: 5" in changed


def test_get_shows_tables_and_every_output_format(api: ApiServer, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=MANIFEST)
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": {"name": "n1", "resourceSliceCount": 1}}
    api.store.create(RESOURCE_SLICES, {"metadata": {"name": "s1"}, "spec": spec})
    assert re.match(r"NAME +READY +STATUS +RESTARTS +AGE +IP +NODE", kubectl("get", "pods", "-o", "wide"))
    assert re.search(r"^s1 +n1 +gpu.example.com +n1 +\d+s$", kubectl("get", "resourceslices"), re.MULTILINE)
    assert re.search(r"^shared +pending +\d+s$", kubectl("get", "resourceclaims"), re.MULTILINE)
    assert kubectl("get", "pods", "-o", "name") == "pod/trainer\n"
    assert kubectl("get", "pod", "trainer", "-o", "jsonpath={.status.phase}") == "Pending"
    assert kubectl("get", "pods", "-o", "custom-columns=P:.metadata.name", "--no-headers") == "trainer\n"
    assert "kind: Pod" in kubectl("get", "pod", "trainer", "-o", "yaml")
    assert json.loads(kubectl("get", "pods", "-A", "-o", "json"))["items"][0]["kind"] == "Pod"
    assert kubectl("get", "pods", "-l", "app=trainer", "-o", "name") == "pod/trainer\n"
    assert kubectl("get", "pods", "-l", "app notin (trainer)", "-o", "name") == ""
    assert kubectl("get", "pods", "--field-selector", "status.phase=Pending", "-o", "name") == "pod/trainer\n"
    assert "default" in kubectl("get", "pods", "-A")
    assert "pod/trainer" in kubectl("get", "all")


def test_get_watch_prints_changes_as_they_come(
    api: ApiServer, kubectl_path: str, kubectl: Kubectl, tmp_path: Path
) -> None:
    kubectl("apply", "-f", "-", stdin=MANIFEST)
    command = [kubectl_path, "--kubeconfig", str(tmp_path / "kubeconfig"), "get", "pods", "-w"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        pod = api.store.get(PODS, "trainer", "default")
        api.store.update_status(PODS, pod | {"status": {"phase": "Running"}})
        lines.append(process.stdout.readline())
        api.store.bind("default", "trainer", "n1")
        lines.append(process.stdout.readline())
        process.terminate()
    assert lines[0].split()[:3] == ["NAME", "READY", "STATUS"]
    assert [line.split()[2] for line in lines[1:]] == ["Pending", "Running", "Running"]


def test_describe_shows_objects_with_their_events(api: ApiServer, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=MANIFEST)
    api.store.create(NODES, {"metadata": {"name": "n1"}})
    pod = api.store.get(PODS, "trainer", "default")
    StoreEventRecorder(api.store, "test").warning(pod, "FailedScheduling", "no GPU is free")
    assert re.search(r"Warning +FailedScheduling .* no GPU is free", kubectl("describe", "pod", "trainer"))
    assert "Device Class Name:  gpu.example.com" in kubectl("describe", "resourceclaim", "shared")
    assert "device.driver == 'gpu.example.com'" in kubectl("describe", "deviceclass", "gpu.example.com")
    assert "Non-terminated Pods" in kubectl("describe", "node", "n1")
    assert "FailedScheduling" in kubectl("get", "events")
    assert "FailedScheduling" in kubectl("events")


def test_create_run_label_annotate_patch_and_scale(kubectl: Kubectl) -> None:
    """The verbs that write: typed clients send protobuf, the others JSON."""
    kubectl("create", "namespace", "team")
    kubectl("create", "configmap", "c", "--from-literal=a=b", "-n", "team")
    kubectl("create", "deployment", "web", "--image=nginx:1", "--replicas=2", "-n", "team")
    kubectl("run", "once", "--image=busybox:1", "--restart=Never", "-n", "team")
    kubectl("label", "pod", "once", "tier=web", "-n", "team")
    kubectl("annotate", "pod", "once", "note=hello", "-n", "team")
    image = '{"spec":{"template":{"spec":{"containers":[{"name":"nginx","image":"nginx:2"}]}}}}'
    kubectl("patch", "deploy", "web", "-n", "team", "-p", image)
    replicas = '[{"op":"replace","path":"/spec/replicas","value":3}]'
    kubectl("patch", "deploy", "web", "-n", "team", "--type=json", "-p", replicas)
    kubectl("scale", "deploy", "web", "--replicas=4", "-n", "team")
    shown = "jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image} {.metadata.generation}"
    assert kubectl("get", "deploy", "web", "-n", "team", "-o", shown) == "4 nginx:2 4"
    assert kubectl("get", "pod", "once", "-n", "team", "-o", "jsonpath={.metadata.labels.tier}") == "web"
    assert kubectl("get", "cm", "c", "-n", "team", "-o", "jsonpath={.data}") == '{"a":"b"}'
    kubectl("delete", "namespace", "team")
    assert "NotFound" in kubectl("get", "cm", "c", "-n", "team", code=1)


def test_logs_come_from_the_kubelet(api: ApiServer, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=MANIFEST)
    api.store.logs.append("default", "trainer", "main", "GPU 0: one\nGPU 1: two\n")
    assert kubectl("logs", "trainer", "-c", "main") == "GPU 0: one\nGPU 1: two\n"
    assert kubectl("logs", "trainer", "-c", "main", "--tail=1") == "GPU 1: two\n"
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z GPU 0", kubectl("logs", "trainer", "-c", "main", "--timestamps"))
    assert "container nope is not valid for pod trainer" in kubectl("logs", "trainer", "-c", "nope", code=1)
    assert kubectl("logs", "trainer", "-c", "side") == ""

    def finish() -> None:
        api.store.logs.append("default", "trainer", "main", "done\n")
        pod = api.store.get(PODS, "trainer", "default")
        api.store.update_status(PODS, pod | {"status": {"phase": "Succeeded"}})

    timer = threading.Timer(0.5, finish)
    timer.start()
    assert kubectl("logs", "-f", "trainer", "-c", "main") == "GPU 0: one\nGPU 1: two\ndone\n"
    timer.join()


def test_wait_sees_conditions_fields_and_deletions(api: ApiServer, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=MANIFEST)
    pod = api.store.get(PODS, "trainer", "default")
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    ready = threading.Timer(0.4, lambda: api.store.update_status(PODS, pod | {"status": status}))
    ready.start()
    assert "condition met" in kubectl("wait", "--for=condition=Ready", "pod/trainer", "--timeout=10s")
    assert "condition met" in kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/trainer", "--timeout=10s")
    gone = threading.Timer(0.4, lambda: api.store.delete(PODS, "trainer", "default"))
    gone.start()
    assert "condition met" in kubectl("wait", "--for=delete", "pod/trainer", "--timeout=10s")
    ready.join()
    gone.join()


BASE = Path(__file__).parents[3] / "deploy" / "base"


@pytest.mark.skipif(not (BASE / "kustomization.yaml").exists(), reason="deploy/base has no kustomization")
def test_the_kustomize_base_is_applied_twice_and_deleted(kubectl: Kubectl) -> None:
    kubectl("apply", "-k", str(BASE))
    assert "created" not in kubectl("apply", "-k", str(BASE))
    kubectl("delete", "-k", str(BASE))
    assert "dra-driver" not in kubectl("get", "clusterroles,validatingadmissionpolicies,namespaces", "-o", "name")
