"""Rules for expressions with errors, failures, or a constant false result."""

import pytest

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.lint.scope import known_from_cluster
from dra_driver.scheduler.cel import selector_budget
from tests.fakes import dra_objects
from tests.unit.kubectl.explain.clusters import COSTLY
from tests.unit.kubectl.lint.helpers import (
    GUARD,
    C,
    D,
    device_class,
    findings,
    one,
    rules,
    selecting,
    template,
    wire_slice,
)

ALL = template("- {name: a, exactly: {deviceClassName: gpu.nvidia.com, allocationMode: All}}")


@pytest.mark.parametrize(
    ("expression", "rule"),
    [
        (f"{D}.type = 'gpu'", "DRA010"),
        (f"{C}.memory >= quantity('40Gi')", "DRA010"),
        (f"{C}.memory.compareTo('40Gi') >= 0", "DRA010"),
        ("device.memory > 3", "DRA010"),
        ("true && " * 1500 + "true", "DRA011"),
        ("lists.range(100000).all(x, lists.range(100000).all(y, x + y >= 0))", "DRA012"),
        ("lists.range(50000).all(x, x >= 0)", "DRA012"),
        (f"{D}.produtName == 'NVIDIA H200'", "DRA016"),
        (f"{D}.memory == 80", "DRA016"),
        (f"{C}.profile.compareTo(quantity('1')) == 0", "DRA016"),
        (f"{D}.?colour.orValue('') == 'red'", "DRA016"),
        (f"'9.0.0' == {D}.cudaComputeCapability", "DRA017"),
        (f"{D}.driverVersion in ['580.65.6']", "DRA017"),
        (f"{D}.type == 1", "DRA017"),
        ("device.attributes['resource.kubernetes.io'].numaNode == 0", "DRA015"),
        (f"{D}.profile == '1g.5gb'", "DRA015"),
        (f"{D}.productName == 'NVIDIA H900'", "DRA018"),
        (f"{D}.architecture == 'hopper'", "DRA018"),
        (f"{C}.memory.compareTo(quantity('999Gi')) > 0", "DRA018"),
        (f"{C}.memory.isGreaterThan(quantity('80Gi'))", "DRA019"),
        ("device.attributes['gpu.nvida.com'].type == 'gpu'", "DRA020"),
        (f"{D}.uuid == 'GPU-11111111-2222-3333-4444-555555555555'", "DRA023"),
        (f"{D}.uuid in ['GPU-11111111-2222-3333-4444-555555555555']", "DRA023"),
        (f"{C}.memory.compareTo(quantity('80GB')) >= 0", "DRA021"),
        (f"{D}.cudaComputeCapability.compareTo(semver('9.0')) >= 0", "DRA021"),
    ],
)
def test_each_wrong_expression_breaks_its_rule(expression: str, rule: str) -> None:
    assert rule in rules(selecting(expression))


@pytest.mark.parametrize(
    "expression",
    [
        f"{D}.architecture == 'Hopper'",
        f"{D}.productName.startsWith('NVIDIA A100') || {D}.productName == 'anything'",
        f"{C}.memory.compareTo(quantity('60Gi')) >= 0",
        f"{D}.driverVersion.compareTo(semver('999.0.0')) >= 0",
        f"cel.bind(a, {D}, a.architecture in ['Hopper', 'Blackwell'])",
        "has(device.attributes['resource.kubernetes.io'].numaNode) && "
        "device.attributes['resource.kubernetes.io'].numaNode == 1",
        f"{D}.?addressingMode.orValue('') == 'ATS'",
        "'resource.kubernetes.io' in device.attributes",
        f"{D}.uuid != 'GPU-11111111-2222-3333-4444-555555555555'",
        f"{D}.productName == 'NVIDIA A100-SXM4-40GB' && {C}.memory.compareTo(quantity('40Gi')) >= 0",  # it has 40Gi
    ],
)
def test_valid_expressions_have_no_findings(expression: str) -> None:
    """Values that differ between machines (driver versions, NUMA nodes) are never reported."""
    assert findings(selecting(expression)) == []


def test_label_gigabytes_finding_names_real_memory() -> None:
    expression = f"{D}.profile == '1g.5gb' && {C}.memory.compareTo(quantity('5Gi')) >= 0"
    found = one(selecting(expression, class_name="mig.nvidia.com"), "DRA019")
    assert found.severity == "error"
    assert "1g.5gb" in found.message
    assert "4864Mi" in found.message
    assert found.excerpt[found.caret :].startswith(C)


@pytest.mark.parametrize(
    ("text", "rule", "severity", "words"),
    [
        (selecting(f"{C}.memory.compareTo(quantity('80Gi')) >= 0"), "DRA019", "warning", "81559Mi"),
        (device_class("true"), "DRA013", "warning", "matches devices of every driver"),
        (device_class(f"{D}.type == 'gpu' && {GUARD}"), "DRA014", "info", "not the first condition"),
        (ALL.replace("gpu.", "mig."), "DRA031", "warning", ""),
    ],
)
def test_severity_follows_what_is_known(text: str, rule: str, severity: str, words: str) -> None:
    found = one(text, rule)
    assert found.severity == severity
    assert words in found.message


def test_the_nearest_device_and_the_false_clause_are_named() -> None:
    found = one(selecting(f"{D}.architecture == 'Hopper' && {D}.productName == 'NVIDIA H100 NVLL'"), "DRA018")
    assert "nearest is NVIDIA H100 NVL, for which" in found.message
    assert "productName is NVIDIA H100 NVL" in found.message


def test_request_for_an_unguarded_class_needs_its_own_guard() -> None:
    text = device_class("true", name="any") + "---\n" + selecting(f"{D}.type == 'gpu'", class_name="any")
    assert rules(text).count("DRA013") == 2
    guarded = device_class("true", name="any") + "---\n" + selecting(f"{GUARD} && {D}.type == 'gpu'", class_name="any")
    assert rules(guarded).count("DRA013") == 1


@pytest.mark.parametrize(
    "expression",
    [
        f"'gpu.nvidia.com' in device.attributes && {D}.type == 'gpu'",
        "device.driver == 'nic.example.com' && device.attributes['nic.example.com'].speed == 400",
    ],
    ids=["another form of guard", "an unknown driver"],
)
def test_valid_classes_have_no_findings(expression: str) -> None:
    assert findings(device_class(expression)) == []


@pytest.mark.parametrize(
    ("version", "severity", "said"),
    [
        ("", "warning", "includes() needs Kubernetes 1.36, with feature gate DRAListTypeAttributes of its API server"),
        ("v1.36.2", "warning", "needs Kubernetes 1.36"),
        ("v1.35.6", "error", "this cluster has 1.35 and refuses it"),
        ("v1.34.9+k3s1", "error", "this cluster has 1.34 and refuses it"),
    ],
)
def test_a_function_that_older_clusters_lack_is_named(version: str, severity: str, said: str) -> None:
    known = known_from_cluster(ClusterState(server_version=version))
    (found,) = (f for f in findings(selecting(f"{D}.architecture.includes('Hopper')"), known) if f.rule == "DRA022")
    assert found.severity == severity
    assert said in found.message


def test_with_a_cluster_its_devices_have_to_match() -> None:
    attributes = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA L4"}}
    device = {"name": "gpu-0", "attributes": attributes, "capacity": {"memory": {"value": "23034Mi"}}}
    known = known_from_cluster(ClusterState(slices=[wire_slice("n1", [device])], classes=[_gpu_class()]))
    found = one(selecting(f"{D}.productName == 'NVIDIA H200'"), "DRA018", known)
    assert "no device of the cluster matches (in the catalog: NVIDIA H200)" in found.message
    assert one(selecting(f"{D}.productName == 'NVIDIA H900'"), "DRA018", known).severity == "error"
    assert findings(selecting(f"{D}.productName == 'NVIDIA L4'"), known) == []


@pytest.mark.parametrize("counted", [False, True])
def test_class_without_devices_is_error_only_if_used(counted: bool) -> None:
    """A device that consumes counters shows a gate that is on; then it cannot be the reason."""
    device: dict[str, object] = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
    if counted:
        device["consumesCounters"] = [{"counterSet": "gpu-0", "counters": {"memory": {"value": "1"}}}]
    mine = device_class(f"{GUARD} && {D}.type == 'mig'")
    known = known_from_cluster(ClusterState(slices=[wire_slice("n1", [device])], classes=[_gpu_class()]))
    assert findings(mine, known) == []
    found = one(mine + "---\n" + template("- {name: a, exactly: {deviceClassName: mine}}"), "DRA018", known)
    assert found.message == "no device of the cluster matches DeviceClass mine"
    gate = "only while feature gate DRAPartitionableDevices is on" in found.hint
    assert (gate, found.hint == "") == (not counted, counted)


def test_selector_over_budget_is_reported_as_unchecked() -> None:
    text = selecting(f"{GUARD} && {COSTLY}")
    with selector_budget(0.0):
        found = one(text, "DRA004")
    assert (found.severity, "not evaluated, because costly selectors took" in found.message) == ("warning", True)
    assert "DRA004" not in rules(text)


def test_all_over_32_devices() -> None:
    assert findings(ALL) == []
    devices = [{"name": f"gpu-{index}", "attributes": {"type": {"string": "gpu"}}} for index in range(33)]
    known = known_from_cluster(ClusterState(slices=[wire_slice("n1", devices)], classes=[_gpu_class()]))
    found = one(ALL, "DRA031", known)
    assert (found.severity, "33 devices of node n1" in found.message) == ("error", True)


def _gpu_class() -> dict[str, object]:
    selector = {"cel": {"expression": f"{GUARD} && {D}.type == 'gpu'"}}
    return {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [selector]}}


def test_lists_that_a_cluster_publishes_are_read() -> None:
    """They do not fail every expression; comparing one by order does."""
    device = dra_objects.gpu("gpu-0")
    device["attributes"]["resource.kubernetes.io/numaNode"] = {"ints": [0]}
    known = known_from_cluster(ClusterState(classes=[dra_objects.device_class()], slices=[wire_slice("a", [device])]))
    numa = f"{GUARD} && device.attributes['resource.kubernetes.io'].?numaNode.orValue(-1)"
    failing = [f.message for f in findings(selecting(f"{numa} < 1"), known) if f.rule == "DRA015"]
    assert [message.partition(":")[0] for message in failing] == ["the expression fails on gpu-0 on node a"]
    assert [f.rule for f in findings(selecting(f"{numa}.includes(0)"), known)] == ["DRA022"]
