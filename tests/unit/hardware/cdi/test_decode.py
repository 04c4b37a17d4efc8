"""Documents read back as strictly as the runtimes read them."""

import json
from typing import Any

import pytest

from dra_driver.core.errors import InvalidSpecError
from dra_driver.hardware.cdi.decode import decode
from dra_driver.hardware.cdi.spec import (
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
)

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
