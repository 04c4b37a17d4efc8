"""The document's wire form and the lowest version that can say it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
