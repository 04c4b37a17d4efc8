"""CDI documents: versions, wire form, validation; and names of kinds, devices and files, also hostile ones."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import ClaimError, ConfigurationError, InvalidSpecError
from dra_driver.hardware.cdi.names import CdiNames
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
    decode,
    driver_problems,
    minimum_version,
    spec_problems,
    validate,
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
    pair = (CdiDevice(name=names[0], container_edits=first), CdiDevice(name=names[1], container_edits=second))
    together = minimum_version(CdiSpec(kind="ab/cd", devices=pair))
    alone = [minimum_version(CdiSpec(kind="ab/cd", devices=(device,))) for device in pair]
    assert KNOWN_VERSIONS.index(together) == max(KNOWN_VERSIONS.index(version) for version in alone)


def test_the_wire_form_has_the_specifications_names_and_no_empty_fields() -> None:
    edits = ContainerEdits(
        additional_gids=(44,),
        intel_rdt=IntelRdt(clos_id="a", l3_cache_schema="b", mem_bw_schema="c", enable_monitoring=False),
        net_devices=(NetDevice(host_interface_name="e0", name="n0"),),
    )
    assert edits.to_wire() == {
        "netDevices": [{"hostInterfaceName": "e0", "name": "n0"}],
        "additionalGids": [44],
        "intelRdt": {"closID": "a", "l3CacheSchema": "b", "memBwSchema": "c", "enableMonitoring": False},
    }


def test_edits_add_up_in_order() -> None:
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
    wire = document.to_wire()
    assert decode(json.dumps(wire), "x.json") == document
    assert decode(json.dumps({**wire, "cdiVersion": "v1.1.0"}), "x.json") == document, "the reference library takes a v"


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


ENV = ContainerEdits(env=("A=1",))


def named(name: str) -> CdiSpec:
    return CdiSpec(kind="k8s.example.com/gpu", devices=(CdiDevice(name=name, container_edits=ENV),))


def of_kind(kind: str) -> CdiSpec:
    return CdiSpec(kind=kind, devices=named("gpu-0").devices)


def editing(**edits: Any) -> CdiSpec:
    device = CdiDevice(name="gpu-0", container_edits=ContainerEdits(**edits))
    return CdiSpec(kind="k8s.example.com/gpu", devices=(device,))


def node(**fields: Any) -> CdiSpec:
    return editing(device_nodes=(DeviceNode(**{"path": "/dev/x", **fields}),))


def mount(**fields: Any) -> CdiSpec:
    full = {"host_path": "/h", "container_path": "/c", "options": ("rbind",), **fields}
    return editing(mounts=(Mount(**full),))


def hook(**fields: Any) -> CdiSpec:
    full = {"hook_name": "createContainer", "path": "/bin/h", "env": ("A=1",), **fields}
    return editing(hooks=(Hook(**full),))


def net(*pairs: tuple[str, str]) -> CdiSpec:
    return editing(net_devices=tuple(NetDevice(host_interface_name=host, name=name) for host, name in pairs))


BROKEN = [
    (
        CdiSpec(kind="a.com/gpu", devices=named("g").devices, container_edits=ContainerEdits(env=("broken",))),
        "containerEdits: env[0]: 'broken' is not 'NAME=value'",
    ),
    (of_kind("nokind"), "kind: 'nokind' is not '<vendor>/<class>'"),
    (of_kind("/gpu"), "kind: vendor '' is shorter than 2"),
    (of_kind("v/gpu"), "kind: vendor 'v' is shorter than 2"),
    (of_kind("example.com/g"), "kind: class 'g' is shorter than 2"),
    (of_kind("1a.com/gpu"), "kind: vendor '1a.com' does not start with a letter"),
    (of_kind("a.com/gpu-"), "kind: class 'gpu-' does not end with a letter or digit"),
    (of_kind("a.com/g:pu"), "kind: class 'g:pu' holds a character"),
    (of_kind("a.com/gp/u"), "kind: class 'gp/u' holds a character"),
    (of_kind("a.com/gpü"), "kind: class 'gpü' does not end"),
    (of_kind("a.com/gpu\n"), "does not end with a letter or digit"),
    (CdiSpec(kind="a.com/gpu"), "devices: none"),
    (named(""), "device '': the name is empty"),
    (named("a/b"), "device 'a/b': the name holds a character"),
    (named("a=b"), "device 'a=b': the name holds a character"),
    (named("a-"), "device 'a-': the name does not start and end"),
    (named("-a"), "device '-a': the name does not start and end"),
    (named("a\n"), "the name does not start and end"),
    (named("٣"), "device '٣': the name does not start and end"),
    (CdiSpec(kind="a.com/gpu", devices=named("g").devices * 2), "device 'g': listed 2 times"),
    (editing(), "device 'gpu-0': containerEdits are empty"),
    (editing(env=()), "device 'gpu-0': containerEdits are empty"),
    (editing(env=("A",)), "device 'gpu-0': env[0]: 'A' is not 'NAME=value'"),
    (editing(env=("A=1", "=B")), "device 'gpu-0': env[1]: '=B' is not 'NAME=value'"),
    (node(path=""), "device 'gpu-0': deviceNodes[0].path: empty"),
    (node(type="char"), "device 'gpu-0': deviceNodes[0].type: 'char' for /dev/x is none of b, c, u, p"),
    (node(permissions="rwx"), "device 'gpu-0': deviceNodes[0].permissions: 'rwx' for /dev/x"),
    (mount(host_path=""), "device 'gpu-0': mounts[0].hostPath: empty"),
    (mount(container_path=""), "device 'gpu-0': mounts[0].containerPath: empty"),
    (hook(hook_name="preStart"), "device 'gpu-0': hooks[0].hookName: 'preStart' is none of prestart"),
    (hook(path=""), "device 'gpu-0': hooks[0].path: empty"),
    (hook(env=("NOVALUE",)), "device 'gpu-0': hooks[0].env[0]: 'NOVALUE' is not 'NAME=value'"),
    (editing(intel_rdt=IntelRdt(clos_id="..")), "device 'gpu-0': intelRdt.closID: '..'"),
    (editing(intel_rdt=IntelRdt(clos_id="a/b")), "intelRdt.closID: 'a/b'"),
    (editing(intel_rdt=IntelRdt(clos_id="a\nb")), "intelRdt.closID"),
    (editing(intel_rdt=IntelRdt(clos_id="a" * 4096)), "less than 4096"),
    (net(("", "n0")), "device 'gpu-0': netDevices[0].hostInterfaceName: empty"),
    (net(("e0", "")), "device 'gpu-0': netDevices[0].name: empty"),
    (net(("e0", "n0"), ("e0", "n1")), "netDevices: hostInterfaceName 'e0' is used more than once"),
    (net(("e0", "n0"), ("e1", "n0")), "netDevices: name 'n0' is used more than once"),
]


@pytest.mark.parametrize(("document", "message"), BROKEN, ids=[text[:50] for _, text in BROKEN])
def test_a_broken_rule_is_told_with_device_and_field(document: CdiSpec, message: str) -> None:
    """A runtime would drop the whole file and say so only in its log."""
    problems = list(spec_problems(document))
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize(
    "document",
    [
        of_kind("ab/cd"),
        of_kind("K8S.Example_1.com/GPU-x.y"),
        named("0"),
        named("0:1"),
        named("a" * 300),
        editing(env=("A=",)),
        node(type="c", permissions="mrw"),
        node(permissions=""),
        mount(),
        hook(),
        editing(intel_rdt=IntelRdt(clos_id="/")),
        editing(additional_gids=(0,)),
        net(("e0", "n0"), ("e1", "n1")),
    ],
)
def test_what_the_specification_allows_is_allowed(document: CdiSpec) -> None:
    assert not list(spec_problems(document))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (mount(options=("ro",)), "mounts[0].options: neither bind nor rbind for /c"),
        (mount(host_path="relative"), "mounts[0].hostPath: 'relative' is not an absolute path"),
        (mount(container_path="/a/../../etc"), "mounts[0].containerPath: '/a/../../etc' is not an absolute path"),
        (node(host_path="dev/x"), "deviceNodes[0].hostPath: 'dev/x'"),
        (node(major=-1), "deviceNodes[0].major: -1 for /dev/x is not a device number"),
        (node(minor=2**32), "deviceNodes[0].minor: 4294967296"),
        (node(file_mode=0o20666), "deviceNodes[0].fileMode: 8630"),
        (hook(env=()), "hooks[0].env: empty"),
        (hook(path="hook"), "hooks[0].path: 'hook'"),
        (editing(env=("A=\0",)), "env[0]"),
    ],
)
def test_rules_of_the_driver_refuse_documents_that_load_and_then_fail(document: CdiSpec, message: str) -> None:
    """CDI lets these through; runc then fails, or runs a hook with the container's LD_PRELOAD as host root."""
    problems = list(driver_problems(document))
    assert any(message in problem for problem in problems), problems
    assert not list(spec_problems(document))


def test_all_problems_come_in_one_error_that_names_the_file() -> None:
    document = editing(env=("A",), mounts=(Mount(host_path="", container_path="/c", options=("ro",)),))
    with pytest.raises(InvalidSpecError) as raised:
        validate(document, "/var/run/cdi/x.json")
    for part in ("/var/run/cdi/x.json", "env[0]", "mounts[0].hostPath: empty", "neither bind nor rbind"):
        assert part in str(raised.value)


NAMES = CdiNames("gpu.nvidia.com")
UID = "0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e"
SHARE = "9d6a2c1e-11aa-4b5f-8c0d-d1e2f3a4b5c6"

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
UIDS = st.uuids().map(str)


def test_names_follow_the_convention_of_dra_drivers() -> None:
    assert NAMES.common_id == "k8s.gpu.nvidia.com/device=common"
    assert NAMES.base_file_name == "k8s.gpu.nvidia.com-device_base.json"
    assert NAMES.claim_file_name(UID) == f"k8s.gpu.nvidia.com-claim_{UID}.json"
    assert NAMES.claim_id(UID, "gpu-0") == f"k8s.gpu.nvidia.com/claim={UID}-gpu-0"
    assert NAMES.claim_id(UID, "gpu-0", SHARE) == f"k8s.gpu.nvidia.com/claim={UID}-gpu-0-{SHARE}"


@pytest.mark.parametrize(
    "uid",
    ["", "../../x", "..", ".", "a/b", "a\\b", "a.b", "a b", "a\n", "a\0b", "-a", "a-", "é", "٣", "a" * 65, "a=b", "*"],
)
def test_a_hostile_uid_never_becomes_a_path_or_a_name(uid: str) -> None:
    """The UID comes over a socket; with it as a path another driver's files could be written or removed."""
    for use in (NAMES.claim_file_name, lambda u: NAMES.claim_id(u, "gpu-0"), lambda u: NAMES.claim_id(UID, "gpu-0", u)):
        with pytest.raises(ClaimError, match="not a Kubernetes UID"):
            use(uid)


@pytest.mark.parametrize("device", ["", "GPU", "gpu_0", "gpu/0", "gpu=0", "../gpu", "gpu-", "a" * 64, "gpu.0", "gpu\n"])
def test_a_device_that_is_no_dns_label_is_refused(device: str) -> None:
    """Replacing characters instead would let two devices share a name."""
    with pytest.raises(ClaimError, match="DNS label"):
        NAMES.claim_device(UID, device)


@pytest.mark.parametrize(
    "driver", ["", "GPU.nvidia.com", "gpu..com", ".gpu", "gpu/x", "a" * 64, "gpu_x", "gpu-", "g\n"]
)
def test_a_driver_name_that_kubernetes_would_refuse_is_refused_first(driver: str) -> None:
    with pytest.raises(ConfigurationError, match="driver name"):
        CdiNames(driver)


@given(driver=st.lists(LABELS, min_size=1, max_size=2).map(".".join), uid=UIDS, device=LABELS, share=st.none() | UIDS)
def test_every_accepted_name_is_valid_cdi(driver: str, uid: str, device: str, share: str | None) -> None:
    names = CdiNames(driver)
    name = names.claim_device(uid, device, share)
    document = CdiSpec(
        kind=names.claim_kind, devices=(CdiDevice(name=name, container_edits=ContainerEdits(env=("A=1",))),)
    )
    assert not list(spec_problems(document))
    assert document.to_wire()["cdiVersion"] in ("0.3.0", "0.5.0")
    assert names.claim_id(uid, device, share) == f"{document.kind}={name}"
    assert json.loads(json.dumps(name)) == name


@given(driver=st.lists(LABELS, min_size=1, max_size=2).map(".".join), uid=UIDS)
def test_a_claims_uid_can_be_read_from_its_file_name(driver: str, uid: str) -> None:
    """That is how orphans are found after a crash."""
    names = CdiNames(driver)
    assert names.uid_of(names.claim_file_name(uid)) == uid
    assert names.uid_of(names.base_file_name) is None


@given(text=st.text(max_size=80))
def test_any_text_is_refused_or_stays_in_the_folder(text: str) -> None:
    """No UID, however made, yields a name with a separator or a dot file."""
    try:
        name = NAMES.claim_file_name(text)
    except ClaimError:
        return
    assert re.fullmatch(r"k8s\.gpu\.nvidia\.com-claim_[A-Za-z0-9-]+\.json", name)


def test_only_temporary_files_of_this_driver_are_recognised() -> None:
    """Every writer built on the reference library leaves spec.*.tmp in the same folder."""
    assert NAMES.is_temporary(f"{NAMES.temporary_prefix}a1b2c3d4.tmp")
    for name in ("spec.12345678.tmp", ".k8s.gpu_a1b2c3d4.tmp", ".k8s.gpu.nvidia.com_a1b2c3d4.json", "a1b2c3d4.tmp"):
        assert not NAMES.is_temporary(name)
    assert not CdiNames("gpu").is_temporary(f"{CdiNames('gpu-x').temporary_prefix}a1b2c3d4.tmp")
