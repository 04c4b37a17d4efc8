"""All that deploy/chart renders: fields that Kubernetes knows, whole image names, names and selectors that stay."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.kinds import ALL_KINDS
from dra_driver.sim.apiserver.server import ApiServer
from tests.contract.deploy.test_presets import NAMES, rendered
from tests.fakes import chart
from tests.fakes.chart import Obj

NOT_EMBEDDED = frozenset(("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"))
"""Kinds of the cluster that the embedded API server does not have."""
CLUSTER_SCOPED = NOT_EMBEDDED | {kind.kind for kind in ALL_KINDS if not kind.namespaced}
SWITCHES = (
    *("mpsHost", "exporter", "controller", "eviction", "claimStatus", "claimEvents", "drainer", "networkPolicy"),
    *("usageReader", "resourceQuota", "openshift", "podToleration", "ui"),
)
EVERYTHING: Obj = {
    **{name: {"enabled": True} for name in SWITCHES},
    "metrics": {
        "podMonitor": {"enabled": True, "labels": {"a": "b"}},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "namespace": {"create": True},
    "cleanup": {"node": "node-a"},
    "imagePullSecrets": [{"name": "registry"}],
    "policies": {"a.yaml": "kind: GpuPolicy\n"},
    "node": {"podAnnotations": {"a": "b"}, "runtimeClassName": "nvidia"},
    "deviceClasses": {
        "extra": [{"name": "a.example", "expression": "true"}],
        "shared": {"extendedResourceName": "nvidia.com/gpu.shared"},
    },
}
"""All switches at once, so that every template is rendered."""

UNSERVED = NOT_EMBEDDED | {"NetworkPolicy", "ResourceQuota", "PodMonitor", "PrometheusRule", "ConfigMap"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    server = ApiServer()
    server.start()
    yield RestClient(Connection.load(str(server.kubeconfig(tmp_path_factory.mktemp("api") / "admin.conf"))))
    server.stop()


def collection(obj: Obj) -> str | None:
    """Where the embedded API server takes such objects; None for kinds that it does not serve."""
    group, _, version = obj["apiVersion"].rpartition("/")
    served = [kind for kind in ALL_KINDS if (kind.group, kind.version, kind.kind) == (group, version, obj["kind"])]
    if not served:
        return None
    prefix = f"/apis/{group}/{version}" if group else f"/api/{version}"
    inside = f"/namespaces/{obj['metadata']['namespace']}" if served[0].namespaced else ""
    return f"{prefix}{inside}/{served[0].plural}"


@pytest.mark.parametrize("preset", [None, *NAMES])
def test_the_api_server_knows_every_field(api: RestClient, preset: str | None) -> None:
    objects = chart.objects(EVERYTHING) if preset is None else rendered(preset)
    unserved = set()
    for obj in sorted(objects, key=lambda obj: bool(obj["kind"] != "Namespace")):
        path = collection(obj)
        if path is None:
            unserved.add(obj["kind"])
            continue
        if namespace := obj["metadata"].get("namespace"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            if namespace not in {item["metadata"]["name"] for item in api.list("/api/v1/namespaces")["items"]}:
                api.create("/api/v1/namespaces", body)
        api.create(f"{path}?dryRun=All&fieldValidation=Strict", obj)
    assert unserved <= UNSERVED


def test_every_template_is_rendered_by_some_value() -> None:
    templates = {path.name for path in (chart.CHART / "templates").glob("*.yaml")}
    assert templates == chart.texts(EVERYTHING).keys()


def test_names_and_selectors_are_those_of_the_manifests_before_the_chart() -> None:
    """A selector cannot be changed, and an object under a new name would leave the old one running."""
    objects = chart.objects({"mpsHost": {"enabled": True}, "controller": {"enabled": True}})
    selectors = {
        obj["metadata"]["name"]: obj["spec"]["selector"]["matchLabels"]
        for obj in objects
        if obj["kind"] in {"DaemonSet", "Deployment"}
    }
    assert selectors == {
        "dra-driver-node": {"app.kubernetes.io/component": "node"},
        "dra-driver-mps-host": {"app.kubernetes.io/component": "mps-host"},
        "dra-driver-controller": {"app.kubernetes.io/component": "controller"},
    }
    names = {(obj["kind"], obj["metadata"]["name"]) for obj in objects}
    assert names >= {
        ("ServiceAccount", "dra-driver-node"),
        ("ClusterRole", "dra-driver-node"),
        ("ClusterRoleBinding", "dra-driver-node"),
        ("Role", "dra-driver-node-events"),
        ("RoleBinding", "dra-driver-node-events"),
        ("ValidatingAdmissionPolicy", "dra-driver-own-slices"),
        ("ValidatingAdmissionPolicyBinding", "dra-driver-own-slices"),
        ("DeviceClass", "gpu.nvidia.com"),
        ("DeviceClass", "mig.nvidia.com"),
        ("ConfigMap", "dra-driver-policies"),
    }


def images(objects: list[Obj]) -> set[str]:
    return {container["image"] for spec in pods(objects) for container in spec["containers"]}


def pods(objects: list[Obj]) -> list[Obj]:
    specs = [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"] in {"DaemonSet", "Deployment"}]
    return specs + [obj["spec"] for obj in objects if obj["kind"] == "Pod"]


def test_every_image_has_a_registry_and_a_version() -> None:
    """Container runtimes complete a short name in different ways, and one that exists elsewhere may be pulled."""
    assert images(chart.objects(EVERYTHING)) == {"localhost/dra-driver:0.1.0", "localhost/dra-driver-ui:0.1.0"}
    digest = "sha256:" + "a" * 64
    image = {"repository": "registry.example:5000/gpu/dra", "tag": "x", "digest": digest}
    ui = {"enabled": True, "image": image | {"repository": "registry.example/ui"}}
    values = EVERYTHING | {"image": image, "ui": ui}
    assert images(chart.objects(values)) == {
        f"registry.example:5000/gpu/dra:x@{digest}",
        f"registry.example/ui:x@{digest}",
    }
    assert "at '/image/repository'" in chart.refusal({"image": {"repository": "dra-driver"}})


def test_every_pod_gets_the_pull_secrets() -> None:
    specs = pods(chart.objects(EVERYTHING))
    assert len(specs) == 6
    assert all(spec["imagePullSecrets"] == [{"name": "registry"}] for spec in specs)


def test_another_namespace_moves_everything_but_the_role_for_events() -> None:
    """The API server accepts events about nodes only in ``default``; every binding names the moved account."""
    objects = chart.objects(EVERYTHING, namespace="gpu-driver")
    namespaces = {
        (obj["kind"], obj["metadata"]["name"]): obj["metadata"]["namespace"]
        for obj in objects
        if obj["kind"] not in CLUSTER_SCOPED
    }
    events = [key for key, namespace in namespaces.items() if namespace == "default"]
    assert sorted(events) == [
        ("Role", "dra-driver-drainer"),
        ("Role", "dra-driver-node-events"),
        ("RoleBinding", "dra-driver-node-events"),
    ]
    assert {namespace for key, namespace in namespaces.items() if key not in events} == {"gpu-driver"}
    subjects = [subject for obj in objects for subject in obj.get("subjects", ())]
    assert {subject["namespace"] for subject in subjects} == {"gpu-driver"}
    assert [obj["metadata"]["name"] for obj in objects if obj["kind"] == "Namespace"] == ["gpu-driver"]


def test_an_uninstall_keeps_the_crds_and_with_them_every_policy() -> None:
    """Helm never upgrades what is in a chart's own folder crds/, so they are templates."""
    crds = [obj for obj in chart.objects() if obj["kind"] == "CustomResourceDefinition"]
    source = [yaml.safe_load(path.read_text()) for path in (chart.ROOT / "crds").glob("*.yaml")]
    assert {crd["metadata"]["name"]: crd["spec"] for crd in crds} == {
        crd["metadata"]["name"]: crd["spec"] for crd in source
    }
    assert all(crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for crd in crds)
    assert not (chart.CHART / "crds").exists()


def test_no_manifest_is_patched_by_position() -> None:
    """A new volume moves all positions after it, and pods then start without a GPU and without an error."""
    texts = [path.read_text() for path in (chart.ROOT / "deploy").rglob("*") if path.is_file()]
    texts += [path.read_text() for path in (chart.ROOT / "docs").rglob("*.md")]
    positional = re.compile(r"(volumes|containers|env|volumeMounts|args)/\d")
    assert [match.group() for text in texts for match in positional.finditer(text)] == []


def test_helm_finds_nothing_to_complain_about() -> None:
    report = chart.renderer().helm_python.lint(str(chart.CHART), EVERYTHING, strict=True, namespace="dra-driver")
    assert report["errors"] == []
    assert [said for said in report["messages"] if "icon" not in said["error"]] == []


def test_deploy_base_is_the_chart_with_its_default_values_and_the_namespace() -> None:
    assert chart.base() == chart.objects({"namespace": {"create": True}})
    without = [obj for obj in chart.base() if obj["kind"] != "Namespace"]
    assert without == chart.objects()


def test_kubectl_renders_the_same_objects() -> None:
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH and $KUBECTL is not set")
    command = [kubectl, "kustomize", str(chart.ROOT / "deploy" / "base")]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    made = {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.safe_load_all(text)}
    assert made == {(obj["kind"], obj["metadata"]["name"]): obj for obj in chart.base()}


def test_an_overlay_of_deploy_base_can_add_policies(tmp_path: Path) -> None:
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH and $KUBECTL is not set")
    shutil.copytree(chart.ROOT / "deploy" / "base", tmp_path / "base")
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    generator: Obj = {"name": "dra-driver-policies", "namespace": "dra-driver", "behavior": "merge"}
    generator |= {"files": ["a.yaml"], "options": {"disableNameSuffixHash": True}}
    (overlay / "a.yaml").write_text("kind: GpuPolicy\n")
    kustomization = {"resources": ["../base"], "configMapGenerator": [generator]}
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    command = [kubectl, "kustomize", str(overlay)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    maps = [obj for obj in yaml.safe_load_all(text) if obj["kind"] == "ConfigMap"]
    assert [(each["metadata"]["name"], each["data"]) for each in maps] == [
        ("dra-driver-policies", {"a.yaml": "kind: GpuPolicy\n"})
    ]


OFF = {"enabled": False}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mpsHosts": {"enabled": True}}, "additional properties 'mpsHosts' not allowed"),
    ({"mpsHost": {"enable": True}}, "at '/mpsHost': additional properties 'enable' not allowed"),
    ({"mpsHost": {"enabled": "true"}}, "at '/mpsHost/enabled': got string, want boolean"),
    ({"kubelet": {"rootDir": "var/lib/kubelet"}}, "at '/kubelet/rootDir'"),
    ({"kubelet": {"rootDir": "/var/lib/kubelet/"}}, "at '/kubelet/rootDir'"),
    ({"driver": {"root": "/"}}, "at '/driver/root'"),
    ({"image": {"digest": "latest"}}, "at '/image/digest'"),
    ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy': value must be one of"),
    ({"imagePullSecrets": ["registry"]}, "at '/imagePullSecrets/0': got string, want object"),
    ({"nodes": {"tolerations": [{"effect": "None"}]}}, "at '/nodes/tolerations/0/effect'"),
    ({"nodes": {"expressions": [{"key": "a", "op": "In"}]}}, "at '/nodes/expressions/0'"),
    ({"node": {"settings": {"poll": "5"}}}, "at '/node/settings': additional properties 'poll' not allowed"),
    ({"node": {"settings": {"POLL_INTERVAL": 5}}}, "at '/node/settings/POLL_INTERVAL': got number, want string"),
    ({"policies": {"pool.txt": "kind: GpuPolicy"}}, "at '/policies': additional properties 'pool.txt' not allowed"),
    ({"controller": {"replicas": 0}}, "at '/controller/replicas': minimum: got 0, want 1"),
    ({"driverName": "GPU.nvidia.com"}, "at '/driverName'"),
    ({"ui": {"origins": ["http://gpus.example.com"]}}, "at '/ui/origins/0'"),
    ({"ui": {"origins": ["https://a --all"]}}, "at '/ui/origins/0'"),
    ({"ui": {"maxSessions": 0}}, "at '/ui/maxSessions': minimum: got 0, want 1"),
    ({"podToleration": {"key": 'x"] || true'}}, "at '/podToleration/key'"),  # it ends in an expression
    *(
        ({"node": {"settings": {name: "x"}}}, f"at '/node/settings': additional properties '{name}' not allowed")
        for name in ("SIMULATE", "CDI_DIR", "POLL_INTERVALL")  # other values set them, and a misspelt one
    ),
    # Parts that would do nothing:
    ({"eviction": {"enabled": True}, "controller": OFF}, "eviction.enabled: set controller.enabled to true"),
    (
        {"eviction": {"overGrant": True}, "gpuNodes": OFF, "policyStatus": OFF},
        "set controller.enabled and gpuNodes.enabled to true",
    ),
]
LIFETIME = "WEBHOOK_CERTIFICATE_LIFETIME"
REMOVED = {"webhook"}
"""Values of earlier versions, which the schema takes so that a template or the notes can name the next step."""


@pytest.mark.parametrize(("values", "said"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_value_is_refused_with_its_field(values: dict[str, Any], said: str) -> None:
    assert said in chart.refusal(values)


def test_what_a_parent_chart_passes_to_every_chart_is_taken() -> None:
    """Helm adds `global` to the values of each subchart, whether it uses it or not."""
    assert chart.refusal({"global": {"imageRegistry": "x"}}) == ""


def leaves(schema: dict[str, Any], definitions: dict[str, Any], path: str = "") -> list[str]:
    """Dotted names of all values that the schema knows, without the items of lists and maps."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = definitions[name] if not name.endswith("Settings") else {}
    found = []
    for name, inner in schema.get("properties", {}).items():
        below = leaves(inner, definitions, f"{path}.{name}" if path else name)
        found += below or [f"{path}.{name}" if path else name]
    return found


def test_every_value_of_the_schema_has_a_default_and_a_comment() -> None:
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    text = (chart.CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    not_leaves = {"requests", "limits", "claims", "rollingUpdate", "type", "maxSurge", "maxUnavailable"}
    for name in sorted(set(leaves(schema, schema["definitions"])) - REMOVED):
        parts = [part for part in name.split(".") if part not in not_leaves]
        at: Any = values
        for part in parts:
            assert part in at, f"values.yaml has no {name}"
            at = at[part]
    lines = text.splitlines()
    sections = [index for index, line in enumerate(lines) if re.match(r"[a-z]\w*:", line)]
    explained = {index for index in sections for near in (index - 1, index + 1) if lines[near].lstrip()[:1] == "#"}
    assert [lines[index] for index in sections if index not in explained] == []


def test_every_map_of_the_schema_refuses_unknown_names() -> None:
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    open_maps: list[str] = []

    def walk(part: Any, path: str) -> None:
        if isinstance(part, dict):
            if part.get("type") == "object" and "properties" in part and part.get("additionalProperties") is not False:
                open_maps.append(path)
            for name, inner in part.items():
                walk(inner, f"{path}/{name}")

    walk(schema, "")
    assert open_maps == []


def test_settings_that_no_other_value_sets_are_taken() -> None:
    assert chart.refusal({"node": {"settings": {"POLL_INTERVAL": "5", "HEALTH": "false"}}}) == ""


def test_status_of_policies_without_gpu_nodes_is_refused() -> None:
    said = chart.refusal({"gpuNodes": OFF})
    assert "gpuNodes.enabled:" in said
    assert "set policyStatus.enabled to false" in said
    assert chart.refusal({"gpuNodes": OFF, "policyStatus": OFF}) == ""
    assert chart.refusal({"gpuNodes": OFF, "controller": OFF}) == ""


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"webhook": {"enabled": True}}, "webhook"),
        ({"controller": {"settings": {LIFETIME: "300"}}}, f"controller.settings.{LIFETIME}"),
    ],
)
def test_values_of_the_former_webhook_are_refused_with_the_next_step(values: dict[str, Any], field: str) -> None:
    said = chart.refusal(values)
    assert f"{field}: this version has no admission webhook" in said
    assert f"--set {field}=null" in said
    (page, heading) = re.findall(r'See (\S+), "(.+)"', said)[0]
    assert f"### {heading}\n" in (chart.ROOT / page).read_text()
    *parents, last = field.split(".")
    removed: dict[str, Any] = {last: None}
    for parent in reversed(parents):
        removed = {parent: removed}
    assert chart.refusal(removed) == ""


def test_a_former_webhook_that_was_off_is_named_in_the_notes() -> None:
    """`helm upgrade --reuse-values` passes the defaults of the earlier chart."""
    off = {"webhook": {"enabled": False, "settings": {"LOG_FORMAT": "json"}, "resources": {}}}
    assert chart.refusal(off) == ""
    assert "The value `webhook` has no effect" in chart.notes(off)
    assert "webhook" not in chart.notes()


FORMER_WEBHOOK = {
    *((kind, "dra-driver-webhook") for kind in ("Secret", "Service", "Role", "RoleBinding", "NetworkPolicy")),
    *((kind, "dra-driver-webhook") for kind in ("ClusterRole", "ClusterRoleBinding", "ValidatingWebhookConfiguration")),
}
"""All objects that the template webhook.yaml of b792d4a7 made. The controller of that version created none itself: it
updated the Secret and the ValidatingWebhookConfiguration, and had no permission to create any."""


def test_the_documented_command_deletes_all_objects_of_the_former_webhook_and_no_others() -> None:
    page = (chart.ROOT / "docs" / "operations.md").read_text().replace("\\\n", " ")
    (command,) = [line.split() for line in page.splitlines() if "delete validatingwebhookconfiguration" in line]
    program, flag, namespace, verb, kinds, name, tolerant = command
    assert (program, flag, namespace, verb) == ("kubectl", "-n", "dra-driver", "delete")
    assert {(kind, name) for kind in kinds.split(",")} == {(kind.lower(), name) for kind, name in FORMER_WEBHOOK}
    assert tolerant == "--ignore-not-found"  # a NetworkPolicy was made only with networkPolicy.enabled
    made = {(obj["kind"], obj["metadata"]["name"]) for obj in chart.objects({"networkPolicy": {"enabled": True}})}
    assert not made & FORMER_WEBHOOK
