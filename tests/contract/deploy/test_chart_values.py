"""What values deploy/chart takes: wrong ones are refused with the field's name."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.fakes import chart

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
    ({"podToleration": {"key": 'x"] || true'}}, "at '/podToleration/key'"),  # it ends in an expression
    *(
        ({"node": {"settings": {name: "x"}}}, f"at '/node/settings': additional properties '{name}' not allowed")
        for name in ("SIMULATE", "CDI_DIR", "POLL_INTERVALL")  # other values set them, and a misspelt one
    ),
    # Parts that would do nothing:
    ({"eviction": {"enabled": True}, "controller": OFF}, "eviction.enabled: pods are evicted by the controller"),
    (
        {"eviction": {"overGrant": True}, "gpuNodes": OFF, "policyStatus": OFF},
        "controller.enabled and gpuNodes.enabled have to be true",
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
    assert "gpuNodes.enabled: without GpuNodes the status of policies" in said
    assert "policyStatus.enabled has to be false" in said
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
