"""Rules for claims, classes, parameters, pods and whole files."""

import pytest

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.lint import lint
from dra_driver.kubectl.lint.manifest import ManifestSource
from dra_driver.kubectl.lint.scope import known_from_catalog, known_from_cluster
from tests.fakes.published import classes, h100
from tests.unit.kubectl.lint.helpers import device_class, findings, one, pod, report, rules, template

PLAIN = "- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}"
TEMPLATE = template(PLAIN)
USES = "[{name: gpu, resourceClaimTemplateName: t}]"
SUBREQUESTS = [f"{{name: s{index}, deviceClassName: gpu.nvidia.com}}" for index in range(9)]


def config(parameters: str, *, driver: str = "gpu.nvidia.com", requests: str = "") -> str:
    named = f"requests: [{requests}], " if requests else ""
    return template(PLAIN, rest=f"config:\n- {{{named}opaque: {{driver: {driver}, parameters: {parameters}}}}}")


POLICY = """apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: pool}
spec:
  sharing: {strategy: MPS}
"""
GPU_CONFIG = "apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (template("- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com, cuont: 1}}"), "DRA003"),
        (template("- {name: gpu, deviceClassName: gpu.nvidia.com}"), "DRA003"),
        (template("- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: two}}"), "DRA004"),
        (template("- {name: Gpu, exactly: {deviceClassName: gpu.nvidia.com}}"), "DRA004"),
        (template("- {name: gpu}"), "DRA004"),
        (template("- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: Everything}}"), "DRA004"),
        (template(PLAIN).replace("/v1\n", "/v1alpha3\n"), "DRA005"),
        (template(PLAIN).replace("/v1\n", "/v1beta2\n"), "DRA005"),
        (TEMPLATE + "---\n" + TEMPLATE, "DRA006"),
        (template(f"{PLAIN}\n{PLAIN}"), "DRA006"),
        (template(f"- {{name: gpu, firstAvailable: [{', '.join(SUBREQUESTS)}]}}"), "DRA007"),
        (template("- {name: gpu, exactly: {deviceClassName: other}}"), "DRA030"),
        (template("- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 33}}"), "DRA032"),
        (template(PLAIN, rest="constraints: [{requests: [gpus], matchAttribute: a.b/c}]"), "DRA033"),
        (template(PLAIN, rest="constraints: [{matchAttribute: numaNode}]"), "DRA034"),
        (template(PLAIN, rest="constraints: [{matchAttribute: gpu.nvidia.com/parntUUID}]"), "DRA016"),
        (config("{a: b}"), "DRA035"),
        (config(f"{{{GPU_CONFIG}, sharing: {{strategy: mps}}}}"), "DRA035"),
        (config("{a: b}", driver="nic.example.com"), "DRA036"),
        (config("{apiVersion: resource.nvidia.com/v1beta1, kind: MigDeviceConfig}", requests="gpu"), "DRA037"),
        (POLICY.replace("MPS", "mps"), "DRA060"),
        (POLICY + "  priority: 5000\n", "DRA060"),
        (template("- {name: gpu, exactly: {deviceClassName: monitor.gpu.nvidia.com, adminAccess: true}}"), "DRA038"),
        (pod(USES), "DRA050"),
        (TEMPLATE + "---\n" + pod(USES, uses="[{name: gpu}, {name: other}]"), "DRA051"),
        (TEMPLATE + "---\n" + pod(USES, uses="[{name: gpu, request: other}]"), "DRA052"),
        (TEMPLATE + "---\n" + pod(USES, uses="[]"), "DRA053"),
        (TEMPLATE + "---\n" + pod(USES, limits="{nvidia.com/gpu: 1}"), "DRA054"),
        (pod("[]", uses="[]", limits="{nvidia.com/gpu.shared: 2}"), "DRA055"),
        (pod("[]", uses="[]", limits="{nvidia.com/mig-1c.3g.20gb: 1}"), "DRA057"),
    ],
)
def test_each_mistake_is_one_finding(text: str, rule: str) -> None:
    found = one(text, rule)
    assert found.line > 0
    assert found.message


def test_a_selector_for_a_compute_instance_names_the_gpu_instance() -> None:
    profile = 'device.attributes["gpu.nvidia.com"].profile == "1c.3g.20gb"'
    selectors = f"selectors: [{{cel: {{expression: '{profile}'}}}}]"
    request = f"- {{name: gpu, exactly: {{deviceClassName: mig.nvidia.com, {selectors}}}}}"
    assert "request the GPU instance 3g.20gb" in one(template(request), "DRA018").hint


def test_sharing_for_admin_access_has_no_effect() -> None:
    parameters = f"{{{GPU_CONFIG}, sharing: {{strategy: MPS}}}}"
    text = config(parameters).replace("gpu.nvidia.com}", "gpu.nvidia.com, adminAccess: true}")
    assert "DRA040" in rules(text)
    mixed = text.replace("- {name: gpu,", f"{PLAIN.replace('name: gpu', 'name: other')}\n      - {{name: gpu,")
    assert "DRA040" not in rules(mixed)
    assert "DRA001" not in rules(mixed)


def test_a_policy_is_checked_like_on_a_node() -> None:
    assert rules(POLICY) == []
    found = one(POLICY.replace("strategy: MPS", "strategy: MPS, maxShares: 0"), "DRA060")
    assert (found.line, found.column) == (5, 39)
    assert found.message == "spec.sharing.maxShares: expected a whole number from 1 to 1024, got 0"


def test_similar_names_and_other_kinds_of_the_name_are_suggested() -> None:
    found = one(template("- {name: gpu, exactly: {deviceClassName: gpu.nvida.com}}"), "DRA030")
    assert found.hint.startswith("did you")
    missing = one(TEMPLATE + "---\n" + pod(USES.replace(": t}", ": tt}")), "DRA050")
    assert (missing.severity, missing.hint) == ("error", "did you mean 't'?")
    other = one(TEMPLATE + "---\n" + pod("[{name: gpu, resourceClaimName: t}]"), "DRA050")
    assert "use resourceClaimTemplateName" in other.hint


def test_requests_of_v1beta1_are_checked_with_their_own_shape() -> None:
    """In v1beta1 the fields of ``exactly`` are in the request itself."""
    old = template("- {name: gpu, deviceClassName: gpu.nvidia.com, count: 40}").replace("/v1\n", "/v1beta1\n")
    assert rules(old) == ["DRA005", "DRA032"]
    assert "`exactly:`" in findings(old)[0].hint


def test_findings_about_parameters_point_at_the_field() -> None:
    found = one(config(f"{{{GPU_CONFIG}, sharing: {{strategy: TimeSlicing, strategi: x}}}}"), "DRA035")
    assert found.path.endswith("parameters.sharing.strategi")


def test_admin_access_depends_on_the_namespace() -> None:
    claim = template("- {name: gpu, exactly: {deviceClassName: monitor.gpu.nvidia.com, adminAccess: true}}")
    namespace = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {%s}}\n"
    assert one(claim + namespace % "a: b", "DRA038").severity == "error"
    assert rules(claim + namespace % 'resource.kubernetes.io/admin-access: "true"') == []


def test_extended_resource_of_a_class_is_found_by_both_names() -> None:
    guard = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'
    mine = device_class(guard, rest="  extendedResourceName: example.com/gpu\n")
    claim = template("- {name: gpu, exactly: {deviceClassName: mine}}")
    for resource in ("example.com/gpu", "deviceclass.resource.kubernetes.io/mine"):
        assert rules("---\n".join([mine, claim, pod(USES, limits=f"{{{resource}: 1}}")])) == ["DRA054"]


def test_with_a_cluster_names_are_looked_up_there() -> None:
    stored = {"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": {"devices": {}}}}
    assert findings(pod(USES), known_from_cluster(ClusterState(templates=[stored]))) == []
    assert one(pod(USES), "DRA050", known_from_cluster(ClusterState())).severity == "error"
    forbidden = known_from_cluster(ClusterState(gaps=["resourceclaimtemplates: forbidden"]))
    assert one(pod(USES), "DRA050", forbidden).severity == "warning"
    known = one(template(PLAIN), "DRA030", known_from_cluster(ClusterState()))
    assert (known.severity, "nor in the cluster" in known.message) == ("error", True)


def test_pods_are_found_in_objects_of_any_kind() -> None:
    text = """
    apiVersion: example.com/v1
    kind: LeaderWorkerSet
    metadata: {name: w}
    spec:
      deep:
      - template:
          spec:
            containers: [{name: c, resources: {claims: [{name: gpu}]}}]
            resourceClaims: [{name: gpu, resourceClaimTemplateName: nothere}]
    """
    found = one(text, "DRA050")
    assert found.path == "spec.deep[0].template.spec.resourceClaims[0].resourceClaimTemplateName"


def test_items_of_lists_are_checked() -> None:
    """A typed list of the API server has kind and version only once."""
    text = """
    apiVersion: resource.k8s.io/v1
    kind: ResourceClaimList
    items:
    - metadata: {name: a}
      spec: {devices: {requests: [{name: x, exactly: {deviceClassName: gpu.nvidia.com, cont: 2}}]}}
    """
    assert one(text, "DRA003").hint == "did you mean count?"


def test_comments_suppress_findings_on_their_line() -> None:
    bad = "- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 33}}"
    assert rules(template(f"{bad}  # dra-lint: allow DRA032")) == []
    assert rules(template(f"# dra-lint: allow DRA032\n{bad}")) == []
    assert rules(template(bad, rest="# dra-lint: allow-file DRA032, DRA999")) == []
    assert rules(template(f"{bad}  # dra-lint: allow DRA033")) == ["DRA032"]


def test_findings_per_file_are_limited() -> None:
    text = "---\n".join(template("- {name: gpu}", name=f"t{index}") for index in range(250))
    checked = report(text)
    assert (len(checked.findings), checked.left_out) == (200, 50)


def test_names_are_resolved_across_files() -> None:
    sources = [ManifestSource(name="a.yaml", text=pod(USES)), ManifestSource(name="b.yaml", text=TEMPLATE)]
    assert lint(sources, known_from_catalog()).findings == ()


MONITORED = template("- {name: gpu, exactly: {deviceClassName: monitor.gpu.nvidia.com, adminAccess: true}}")


def test_admin_access_to_a_counted_device_is_reported_and_to_a_monitor_not() -> None:
    """Only a cluster shows that the devices have counters now: a policy may have removed the partitions."""
    claim, namespace = MONITORED.replace("monitor.", ""), {"DRA038"}
    cluster = known_from_cluster(h100(classes=[*classes()]))
    assert {(each.rule, each.severity) for each in findings(claim, cluster) if each.rule not in namespace} == {
        ("DRA045", "warning")
    }
    assert {(each.rule, each.severity) for each in findings(claim) if each.rule not in namespace} == {
        ("DRA045", "info")
    }
    assert set(rules(MONITORED)) == namespace
    assert rules(MONITORED.replace(", adminAccess: true", "")) == ["DRA046"]


NEAR = "- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com%s}}\n- {name: nic, exactly: {deviceClassName: nics}}"
ROOT = "constraints: [{requests: [gpu, nic], matchAttribute: resource.kubernetes.io/pcieRoot}]"
NICS = device_class('device.driver == "dra.net"', name="nics")


def of_rail(driver: str, name: str, value: str) -> str:
    return f", selectors: [{{cel: {{expression: 'device.attributes[\"{driver}\"].?{name}.orValue(-1) == {value}'}}}}]"


def pair(name: str, selectors: str = "", *, rest: str = ROOT) -> str:
    return template(NEAR % selectors, rest=rest, name=name)


def together(*parts: str, namespaces: tuple[str, str] = ("default", "default"), field: str = "Template") -> list[str]:
    """Messages about two pods with the templates a and b."""
    uses = [
        pod(f"[{{name: gpu, resourceClaim{field}Name: {name}}}]").replace(
            "name: p", f"name: {name}, namespace: {place}"
        )
        for name, place in zip("ab", namespaces, strict=True)
    ]
    return [each.message for each in findings("---\n".join([NICS, *parts, *uses])) if each.rule == "DRA058"]


def test_templates_of_one_file_without_a_rail_are_reported_once_each() -> None:
    a, b = together(pair("a"), pair("b"))
    assert "template 'a' can get other rails" in a
    assert "template 'b' can get other rails" in b
    (b,) = together(pair("a", of_rail("gpu.nvidia.com", "rail", "0")), pair("b"))
    assert "template 'b'" in b
    shared = (
        pair("a")
        + "---\n"
        + "---\n".join(pod(USES.replace(": t}", ": a}")).replace("name: p", f"name: {n}") for n in "pq")
    )
    assert rules(f"{NICS}---\n{shared}") == ["DRA058"]


@pytest.mark.parametrize(
    "parts",
    [
        (pair("a", of_rail("gpu.nvidia.com", "rail", "0")), pair("b", of_rail("gpu.nvidia.com", "rail", "1"))),
        (pair("a", of_rail("dra.net", "ifName", "1")), pair("b", of_rail("gpu.nvidia.com", "rail", "1"))),
        (pair("a", rest=""), pair("b", rest="")),
        (pair("a"), template(PLAIN, name="b", rest="constraints: [{matchAttribute: resource.kubernetes.io/pcieRoot}]")),
    ],
)
def test_pinned_templates_and_single_pairs_may_have_any_rails(parts: tuple[str, str]) -> None:
    assert together(*parts) == []


def test_pods_of_other_namespaces_and_shared_claims_are_not_compared() -> None:
    apart = pair("b").replace("name: b", "name: b, namespace: other")
    assert together(pair("a"), apart, namespaces=("default", "other")) == []
    claims = [
        each.replace("ClaimTemplate", "Claim").replace("spec:\n  spec:\n", "spec:\n", 1) for each in map(pair, "ab")
    ]
    assert together(*claims, field="") == []


def test_class_of_a_rail_pins_a_template() -> None:
    rail = device_class(
        'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].?rail.orValue(-1) == 0', name="r0"
    )
    parts = [each.replace("gpu.nvidia.com}", "r0}") for each in map(pair, "ab")]
    assert together(rail, *parts) == []
    assert len(together(*parts)) == 2
