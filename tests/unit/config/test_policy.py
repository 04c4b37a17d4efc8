"""GpuPolicy objects: decoded values, mistakes named by path, and the schema checker."""

import re
import subprocess
import sys
from typing import Any

import pytest

from dra_driver.config.policy import Availability, GpuPolicy, GpuSelection, policy_of, policy_problems
from dra_driver.config.rules import OWN_ATTRIBUTES
from dra_driver.config.schema import FieldProblem, path_text, problems, schemas
from dra_driver.core.model.health import HealthCause
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction, PodProtection, UsageRules
from tests.fakes.scripts import script
from tests.fakes.stand_in import present

export = script("schema_export")


def policy(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"}, "spec": spec}


def decoded(written: Any) -> GpuPolicy:
    assert policy_problems(written) == []
    return policy_of(written)


def refusal(written: Any) -> str:
    problems = policy_problems(written)
    assert problems
    return "; ".join(str(problem) for problem in problems)


def test_a_policy_that_says_nothing_is_the_default_for_every_gpu() -> None:
    expected = GpuPolicy(name="p")
    assert decoded(policy()) == expected
    assert decoded(policy(select=None, priority=None, forms={"whole": None}, taints=[], sharing=None)) == expected
    assert expected.availability is Availability.OPEN


@pytest.mark.parametrize("spec", [{"forms": {"migProfiles": ["1c.3g.20gb"]}}, {"forms": {"migProfiles": ["1c.*"]}}])
def test_compute_instances_are_refused(spec: dict[str, Any]) -> None:
    assert "compute instances such as 1c.3g.20gb are not supported" in refusal(policy(**spec))


def test_a_compute_instance_in_a_layout_is_refused() -> None:
    layout = [{"profile": "1c.3g.20gb", "count": 1}]
    assert "not a compute instance" in refusal(policy(mig={"layout": layout}))


def test_an_object_as_kubectl_prints_it_is_taken() -> None:
    written = policy(priority=3) | {"status": {"conditions": []}}
    written["metadata"] |= {"uid": "x", "managedFields": [{}], "labels": {"a": "b"}}
    assert decoded(written).priority == 3


def test_selections_are_brought_into_the_forms_of_the_inventory() -> None:
    """UUIDs and PCI addresses in any case, the latter also as nvidia-smi prints them."""
    select = {
        "uuids": ["GPU-7277883E-ce1e-3b6e-6cc1-6d52e80cdb86"],
        "pciBusIDs": ["00000000:0A:00.0"],
        "minMemory": "1Gi",
        "maxMemory": 2**40,
    }
    assert decoded(policy(select=select)).select == GpuSelection(
        uuids=frozenset({"gpu-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86"}),
        pci_bus_ids=frozenset({"0000:0a:00.0"}),
        min_memory_bytes=2**30,
        max_memory_bytes=2**40,
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, "expected a GpuPolicy object, got nothing"),
        ({}, "apiVersion: expected 'gpu.dra-driver.io/v1alpha1', got nothing"),
        (policy() | {"kind": "List"}, "kind: expected 'GpuPolicy', got 'List'"),
        (policy() | {"metadata": {}}, "metadata.name: is required"),
        (policy() | {"metadata": {"name": "a" * 64}}, "metadata.name: expected a DNS subdomain of lower"),
        (policy() | {"spec": None}, "spec: is required"),
        (policy(Sharing={}), "spec.Sharing: unknown field"),
        (policy(priority=1001), "spec.priority: expected a whole number from -1000 to 1000, got 1001"),
        (policy(sharing={"strategy": "MPS", "interval": "Short"}), "spec.sharing: interval belongs to strategy"),
        (policy(sharing={"strategy": "Exclusive", "maxShares": 2}), "spec.sharing: maxShares limits a shared GPU"),
        (policy(sharing={"strategy": "MPS", "maxShares": 0}), "from 1 to 1024, got 0"),
        (policy(sharing={"strategy": "Exclusive", "defaultComputePercent": 5}), "belongs to a shared GPU"),
        (policy(sharing={"strategy": "MPS", "defaultComputePercent": 101}), "from 0 to 100, got 101"),
        (policy(sharing={"strategy": "Exclusive", "reservedMemory": "1Gi"}), "reservedMemory belongs to a shared GPU"),
        (policy(sharing={"strategy": "MPS", "reservedMemory": "2Ei"}), "expected at most 1Ei, got '2Ei'"),
        (policy(sharing={"strategy": "MPS", "reservedMemory": "-1Mi"}), "expected at least 0, got '-1Mi'"),
        (policy(sharing={"strategy": "Exclusive", "defaultShare": {"parts": 2}}), "defaultShare belongs to a shared"),
        (policy(sharing={"strategy": "MPS", "defaultShare": {}}), "spec.sharing.defaultShare: defaultShare needs"),
        (policy(sharing={"strategy": "MPS", "defaultShare": {"parts": 2, "memory": "1Gi"}}), "either parts or memory"),
        (policy(sharing={"strategy": "MPS", "defaultShare": {"parts": 2, "computePercent": 1}}), "divides the compute"),
        (policy(sharing={"strategy": "MPS", "defaultShare": {"parts": 1}}), "from 2 to 100, got 1"),
        (
            policy(sharing={"strategy": "MPS", "defaultShare": {"parts": 2}, "defaultComputePercent": 5}),
            "remove defaultComputePercent",
        ),
        (policy(sharing={"strategy": "MPS"}, forms={"whole": False}), "spec: sharing.strategy TimeSlicing or MPS"),
        (policy(sharing={"strategy": "Exclusive", "migDevices": True}), "spec.sharing: migDevices belongs to a shared"),
        (policy(forms={"whole": False, "migProfiles": []}), "spec.forms: whole false and migProfiles [] allow no form"),
        (policy(select={"minMemory": "2Gi", "maxMemory": "1Gi"}), "spec.select: minMemory is more than maxMemory"),
        (policy(select={"minors": [0, 256]}), "spec.select.minors[1]: expected a whole number from 0 to 255, got 256"),
        (policy(taints=[{"key": "a"}, {"key": "a"}]), "spec.taints: two entries have key 'a'"),
        (policy(taints=[{"key": "a"}] * 3), "spec.taints: expected at most 2 entries, got 3"),
        (policy(taints=[{"key": "a", "effect": "NoExecute"}]), "effect: expected 'NoSchedule', got 'NoExecute'"),
        (policy(taints=[{"key": "gpu.dra-driver.io/reserved"}]), "spec.taints[0]: keys in gpu.dra-driver.io are"),
        (policy(attributes=[{"name": "x"}]), "spec.attributes[0]: expected exactly one of string, int and bool"),
        (policy(attributes=[{"name": "x", "int": 1, "bool": True}]), "expected exactly one of string, int and bool"),
        (policy(attributes=[{"name": "a.kubernetes.io/x", "int": 1}]), "spec.attributes[0]: name is reserved by"),
        (policy(attributes=[{"name": "x", "int": 2**53}]), "got 9007199254740992"),
        (policy(health={"ignore": {"xids": [79]}, "evict": {"xids": [48, 79]}}), "spec.health: an XID of ignore.xids"),
        (policy(health={"ignore": {"xids": [31]}, "taint": {"xids": [31]}}), "is in taint.xids or evict.xids, too"),
        (policy(health={"ignore": {"causes": ["lost"]}, "evict": {"causes": ["lost"]}}), "spec.health: a cause of ign"),
        (policy(health={"evict": {"causes": ["unmonitored"]}}), "spec.health.evict.causes[0]: expected 'xid'"),
        (policy(health={"taint": {"xids": [0]}}), "spec.health.taint.xids[0]: expected a whole number from 1"),
        (policy(health={"calmSeconds": 86401}), "from 0 to 86400, got 86401"),
        (policy(health={"evictionGraceSeconds": -1}), "from 0 to 3600, got -1"),
        (policy(usage={"overGrant": {"action": "Kill"}}), "spec.usage.overGrant.action: expected 'Report' or 'Evict'"),
        (policy(usage={"overGrant": {"graceSeconds": 9}}), "from 10 to 86400, got 9"),
        (policy(usage={"overGrant": {"overheadPerProcess": "-1Mi"}}), "expected at least 0, got '-1Mi'"),
        (policy(usage={"idle": {"action": "Reclaim"}}), "spec.usage.idle.afterMinutes: is required"),
        (policy(usage={"idle": {"afterMinutes": 0}}), "from 1 to 10080, got 0"),
        (policy(attributes=[{"name": "x", "string": "é"}]), "string: expected printable ASCII text, got 'é'"),
        (policy() | {"status": {"x": "y" * 70_000}}, "larger than 65536 bytes"),
    ],
)  # fmt: skip
def test_every_mistake_is_named_by_its_path(written: Any, expected: str) -> None:
    assert expected in refusal(written)


def test_health_rules_are_taken_as_written_and_default_to_evicting_nothing() -> None:
    """An XID that is an exception of its cause is no contradiction; 0 seconds is not the same as none."""
    written = {
        "taint": {"xids": [31]},
        "ignore": {"xids": [119], "causes": ["nvlink", "unmonitored"]},
        "evict": {"xids": [79], "causes": ["lost", "xid"]},
        "calmSeconds": 0,
        "evictionGraceSeconds": 0,
    }
    assert decoded(policy(health=written)).health == HealthRules(
        taint_xids=frozenset({31}),
        ignored_xids=frozenset({119}),
        ignored_causes=frozenset({HealthCause.NVLINK, HealthCause.UNMONITORED}),
        evicting_xids=frozenset({79}),
        evicting_causes=frozenset({HealthCause.LOST, HealthCause.XID}),
        calm_s=0.0,
        grace_s=0.0,
    )
    assert decoded(policy()).health == HealthRules(calm_s=None, grace_s=60.0)


def test_usage_rules_are_taken_as_written_and_default_to_reports() -> None:
    written = {
        "overGrant": {"action": "Evict", "graceSeconds": 300, "overheadPerProcess": 0, "podProtection": "Ignore"},
        "idle": {"afterMinutes": 30, "action": "Reclaim"},
    }
    assert decoded(policy(usage=written)).usage == UsageRules(
        over_grant=OverGrantAction.EVICT,
        grace_s=300,
        overhead_bytes=0,
        idle_after_min=30,
        idle=IdleAction.RECLAIM,
        protection=PodProtection.IGNORE,
    )
    nothings: list[Any] = [{}, {"overGrant": {}}, {"overGrant": None, "idle": None}, {"overGrant": {"action": None}}]
    for nothing in nothings:
        assert decoded(policy(usage=nothing)).usage == UsageRules(
            over_grant=OverGrantAction.REPORT,
            grace_s=60,
            overhead_bytes=512 * 2**20,
            idle_after_min=None,
            idle=IdleAction.REPORT,
        )


def test_policies_know_every_cause_of_bad_health() -> None:
    spec = schemas()["GpuPolicy"]["fields"]["spec"]["fields"]["health"]["fields"]
    causes = {section: spec[section]["fields"]["causes"]["items"]["values"] for section in ("ignore", "evict")}
    assert causes["ignore"] == [cause.value for cause in HealthCause]
    assert causes["evict"] == [cause.value for cause in HealthCause if cause is not HealthCause.UNMONITORED]


@pytest.mark.parametrize(
    ("names", "is_taken"),
    [
        (["team", "gpu.nvidia.com/team"], False),
        (["gpu.nvidia.com/team", "example.com/zone", "team"], False),
        (["team", "example.com/team"], True),
        (["team", "gpu.nvidia.com/rank"], True),
        (["teams", "gpu.nvidia.com/team"], True),
        (["gpu.nvidia.com/team"], True),
    ],
)
def test_no_attribute_is_given_under_both_of_its_names(names: list[str], is_taken: bool) -> None:
    """Without a domain it is in the driver's, and which of two values a selector sees would be chance."""
    written = policy(attributes=[{"name": name, "int": place} for place, name in enumerate(names)])
    if is_taken:
        assert list(decoded(written).attributes) == names
    else:
        assert "spec: an attribute is repeated" in refusal(written)


@pytest.mark.parametrize("domain", ["", "example.com/", "gpu.nvidia.com/"])
@pytest.mark.parametrize("name", OWN_ATTRIBUTES)
def test_no_policy_can_say_otherwise_what_the_driver_says_itself(name: str, domain: str) -> None:
    """A claim that selects by productName must get that product."""
    assert "choose another" in refusal(policy(attributes=[{"name": domain + name, "string": "x"}]))


@pytest.mark.parametrize(("written", "reserved"), [("0", 0), (0, 0), ("1500Mi", 1500 * 2**20), (None, None)])
def test_reserved_memory_may_be_none_at_all(written: Any, reserved: int | None) -> None:
    """0 publishes all memory, as before there was a reserve; without the field the node chooses."""
    sharing = present(decoded(policy(sharing={"strategy": "MPS", "reservedMemory": written})).sharing)
    assert sharing.reserved_bytes == reserved


LIST = {"type": "list", "max": 2, "items": {"type": "boolean"}}
TEXT = {"type": "string", "min": 1, "max": 3, "pattern": "^[a-z]+$", "says": "a word"}


@pytest.mark.parametrize(
    ("value", "schema", "said"),
    [
        ("x", LIST, "expected a list, got 'x'"),
        ([True, 0], LIST, "[1]: expected true or false, got 0"),
        ([True] * 3, LIST, "expected at most 2 entries, got 3"),
        ("ab\n", TEXT, "expected a word, got 'ab\\n'"),
        ("", TEXT, "expected a word of 1 to 3 characters, got 0"),
        ("\ud800", TEXT, "expected a word, got '\\ud800'"),
        (1.0, {"type": "integer", "min": 0, "max": 9}, "expected a whole number from 0 to 9, got 1.0"),
        (2**200, {"type": "integer", "min": 0, "max": 9}, "expected a whole number from 0 to 9, got a huge number"),
        (2**200, {"type": "quantity", "min": 1, "max": 1024}, "expected at most 1Ki, got a huge number"),
        ("2Ki", {"type": "quantity", "min": 1, "max": 1024}, "expected at most 1Ki, got '2Ki'"),
        ("b", {"type": "enum", "values": ["a"]}, "expected 'a', got 'b'"),
        (["x"], {"type": "any"}, "expected an object, got a list"),
        ({"a": 1}, {"type": "map", "max": 0, "values": {"type": "boolean"}}, "expected at most 0 entries, got 1"),
    ],
)
def test_what_is_wrong_is_said_in_words(value: Any, schema: Any, said: str) -> None:
    assert [str(problem) for problem in problems(value, schema)] == [said]


def test_paths_read_as_people_write_them() -> None:
    assert path_text(("spec", "taints", 0, "key")) == "spec.taints[0].key"
    assert str(FieldProblem(("a\n", "b" * 100), "x")) == "a ." + "b" * 59 + "…: x"


def test_decoding_loads_neither_pydantic_nor_yaml() -> None:
    """9 MiB of every node process' 60, for what a small walk does."""
    script = (
        "import sys; from dra_driver.config.parameters import decode, API_VERSION as v;"
        "from dra_driver.node.policy import PolicySource;"
        "decode({'apiVersion': v, 'kind': 'GpuConfig', 'sharing': {'strategy': 'MPS'}});"
        "print(sorted({'pydantic', 'yaml', 'dra_driver.config.schemas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("crd", [export.gpu_policy_crd(), export.gpu_node_crd()], ids=["GpuPolicy", "GpuNode"])
def test_columns_show_fields_that_the_schema_has(crd: dict[str, Any]) -> None:
    (version,) = crd["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    assert version["subresources"] == {"status": {}}
    for column in version["additionalPrinterColumns"]:
        schema = root
        for step in re.sub(r"\[[^]]*\]", ".[]", column["jsonPath"]).strip(".").split("."):
            if step == "metadata":
                break
            schema = schema["items"] if step == "[]" else schema["properties"][step]
        else:
            assert schema["type"] == column["type"], column
