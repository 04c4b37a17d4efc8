"""The document's wire form and the lowest version that can say it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import InvalidSpecError
from dra_driver.hardware.cdi.decode import decode
from dra_driver.hardware.cdi.spec import (
    KNOWN_VERSIONS,
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    minimum_version,
)

ENV = ContainerEdits(env=("A=1",))


def spec(edits: ContainerEdits = ENV, *, name: str = "gpu-0", kind: str = "k8s.example.com/claim") -> CdiSpec:
    return CdiSpec(kind=kind, devices=(CdiDevice(name=name, container_edits=edits),))


@pytest.mark.parametrize(
    ("document", "version"),
    [
        (spec(), "0.3.0"),
        (spec(ContainerEdits(mounts=(Mount(host_path="/a", container_path="/a", type="tmpfs"),))), "0.4.0"),
        (spec(ContainerEdits(device_nodes=(DeviceNode(path="/dev/a", host_path="/dev/b"),))), "0.5.0"),
        (spec(name="0gpu"), "0.5.0"),
        (spec(name="gpu0"), "0.3.0"),
        (spec(kind="example.com/cl.aim"), "0.6.0"),
        (CdiSpec(kind="ab/cd", annotations={"a": "b"}, devices=spec().devices), "0.6.0"),
        (CdiSpec(kind="ab/cd", devices=(CdiDevice(name="g", annotations={"a": "b"}, container_edits=ENV),)), "0.6.0"),
        (spec(ContainerEdits(additional_gids=(44,))), "0.7.0"),
        (spec(ContainerEdits(intel_rdt=IntelRdt(clos_id="x"))), "0.7.0"),
        (spec(ContainerEdits(intel_rdt=IntelRdt(schemata=("L3:0=f",)))), "1.1.0"),
        (spec(ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=True))), "1.1.0"),
        (spec(ContainerEdits(intel_rdt=IntelRdt(enable_monitoring=False))), "0.7.0"),
        (spec(ContainerEdits(net_devices=(NetDevice(host_interface_name="e0", name="n0"),))), "1.1.0"),
        (CdiSpec(kind="ab/cd", devices=spec().devices, container_edits=ContainerEdits(additional_gids=(1,))), "0.7.0"),
    ],
)
def test_each_feature_asks_for_the_version_that_brought_it(document: CdiSpec, version: str) -> None:
    """A lower version makes a consumer refuse the file, a higher one shuts older consumers out."""
    assert minimum_version(document) == version
    assert document.to_wire()["cdiVersion"] == version


EDITS = st.builds(
    ContainerEdits,
    env=st.just(("A=1",)),
    device_nodes=st.sampled_from([(), (DeviceNode(path="/dev/a"),), (DeviceNode(path="/dev/a", host_path="/b"),)]),
    mounts=st.sampled_from([(), (Mount(host_path="/a", container_path="/a", type="bind"),)]),
    additional_gids=st.sampled_from([(), (7,)]),
    intel_rdt=st.sampled_from([None, IntelRdt(), IntelRdt(schemata=("x",))]),
    net_devices=st.sampled_from([(), (NetDevice(host_interface_name="a", name="b"),)]),
)


@given(first=EDITS, second=EDITS, names=st.tuples(st.sampled_from(["a", "0"]), st.sampled_from(["b", "1"])))
def test_a_further_device_never_lowers_the_version(
    first: ContainerEdits, second: ContainerEdits, names: tuple[str, str]
) -> None:
    """The version of a document is the highest that any of its devices needs alone."""
    pair = (CdiDevice(name=names[0], container_edits=first), CdiDevice(name=names[1], container_edits=second))
    together = minimum_version(CdiSpec(kind="ab/cd", devices=pair))
    alone = [minimum_version(CdiSpec(kind="ab/cd", devices=(device,))) for device in pair]
    assert KNOWN_VERSIONS.index(together) == max(KNOWN_VERSIONS.index(version) for version in alone)


def test_the_wire_form_has_the_specifications_names_and_no_empty_fields() -> None:
    """A consumer decodes strictly: one misspelt field and the whole file is refused."""
    edits = ContainerEdits(
        device_nodes=(DeviceNode(path="/dev/x", type="c", major=195, minor=0, file_mode=438, permissions="rwm"),),
        mounts=(Mount(host_path="/h", container_path="/c", options=("ro", "rbind")),),
        hooks=(Hook(hook_name="createContainer", path="/bin/h", args=("h", "x"), env=("A=1",)),),
        additional_gids=(44,),
        intel_rdt=IntelRdt(clos_id="a", l3_cache_schema="b", mem_bw_schema="c", enable_monitoring=False),
        net_devices=(NetDevice(host_interface_name="e0", name="n0"),),
    )
    assert spec(edits).to_wire()["devices"] == [
        {
            "name": "gpu-0",
            "containerEdits": {
                "deviceNodes": [
                    {"path": "/dev/x", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "permissions": "rwm"}
                ],
                "netDevices": [{"hostInterfaceName": "e0", "name": "n0"}],
                "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "rbind"]}],
                "hooks": [{"hookName": "createContainer", "path": "/bin/h", "args": ["h", "x"], "env": ["A=1"]}],
                "additionalGids": [44],
                "intelRdt": {"closID": "a", "l3CacheSchema": "b", "memBwSchema": "c", "enableMonitoring": False},
            },
        }
    ]


def test_edits_add_up_in_order() -> None:
    """A GPU's edits and a sharing daemon's are joined for one device; the first come first."""
    first = ContainerEdits(env=("A=1",), additional_gids=(1,), intel_rdt=IntelRdt(clos_id="x"))
    second = ContainerEdits(env=("B=2",), mounts=(Mount(host_path="/a", container_path="/b"),))
    both = first + second
    assert (both.env, both.additional_gids, len(both.mounts)) == (("A=1", "B=2"), (1,), 1)
    assert both.intel_rdt == IntelRdt(clos_id="x")
    assert first + ContainerEdits() == first


GOOD: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "k8s.example.com/claim",
    "devices": [{"name": "gpu-0", "containerEdits": {"env": ["A=1"]}}],
}


def with_edits(**edits: Any) -> dict[str, Any]:
    return {**GOOD, "devices": [{"name": "gpu-0", "containerEdits": edits}]}


def test_a_document_survives_writing_and_reading() -> None:
    """What the embedded cluster shows of a container must be what was written."""
    edits = ContainerEdits(
        env=("A=1",),
        device_nodes=(
            DeviceNode(path="/dev/x", host_path="/d/x", type="c", major=1, minor=0, file_mode=438, uid=0, gid=44),
        ),
        net_devices=(NetDevice(host_interface_name="e0", name="n0"),),
        mounts=(Mount(host_path="/h", container_path="/c", options=("rbind",), type="none"),),
        hooks=(Hook(hook_name="poststop", path="/bin/h", args=("h",), env=("A=1",), timeout=5),),
        additional_gids=(44,),
        intel_rdt=IntelRdt(clos_id="x", schemata=("a",), enable_monitoring=False),
    )
    document = CdiSpec(
        kind="k8s.example.com/claim",
        annotations={"a": "b"},
        devices=(CdiDevice(name="gpu-0", annotations={"c": "d"}, container_edits=edits),),
        container_edits=edits,
    )
    assert decode(json.dumps(document.to_wire()), "x.json") == document


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ({**GOOD, "cdiVersion": "0.9.0"}, "cdiVersion: '0.9.0' is unknown, expected one of 0.3.0"),
        ({**GOOD, "cdiVersion": "1.2.0"}, "cdiVersion: '1.2.0'"),
        ({key: value for key, value in GOOD.items() if key != "cdiVersion"}, "cdiVersion: ''"),
        ({**GOOD, "cdiVersion": 0.5}, "cdiVersion: expected a string, found 0.5"),
        ({**GOOD, "annotations": {"a": "b"}}, "cdiVersion: '0.5.0' is too low, its fields need at least 0.6.0"),
        ({**GOOD, "foo": 1}, "unknown field `foo`"),
        ({**GOOD, "kind": None}, "got `null` - at `$.kind`"),
        ({**GOOD, "devices": []}, "devices: none"),
        ({**GOOD, "devices": [[]]}, "Expected `object`, got `array` - at `$.devices[0]`"),
        (with_edits(), "device 'gpu-0': containerEdits are empty"),
        (with_edits(env=[1]), "got `int` - at `$.devices[0].containerEdits.env[0]`"),
        (with_edits(Env=["A=1"]), "unknown field `Env` - at `$.devices[0].containerEdits`"),
        (with_edits(deviceNodes=[{"path": "/d", "fileMode": True}]), "got `bool`"),
        (with_edits(deviceNodes=[{"path": "/d", "uid": -1}]), "Expected `int` >= 0"),
        (with_edits(deviceNodes=[{"path": "/d", "major": 2**63}]), "deviceNodes[0].major`"),
        (with_edits(deviceNodes=[{"type": "c"}]), "missing required field `path`"),
        (with_edits(intelRdt={"enableCMT": True}), "unknown field `enableCMT`"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_anything_a_runtime_refuses_is_refused_with_its_place(wire: Any, message: str) -> None:
    """The runtime's own message is in its log, on another machine."""
    with pytest.raises(InvalidSpecError) as raised:
        decode(json.dumps(wire), "/var/run/cdi/x.json")
    assert message in str(raised.value)
    assert "/var/run/cdi/x.json" in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", "{", '{"kind": "a", "kind": "b"}', "[" * 100_000, b"\xff\xfe\x00", '{"cdiVersion": NaN}']
)
def test_text_that_is_no_document_is_one_clear_error(text: str | bytes) -> None:
    """Half a file, a repeated key, hostile nesting: never another exception."""
    with pytest.raises(InvalidSpecError, match=r"x\.json"):
        decode(text, "x.json")


def test_a_leading_v_in_the_version_is_accepted() -> None:
    """The reference library takes v0.5.0 for 0.5.0."""
    assert decode(json.dumps({**GOOD, "cdiVersion": "v0.5.0"}), "x").devices[0].name == "gpu-0"
