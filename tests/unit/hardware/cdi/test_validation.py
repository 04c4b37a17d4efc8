"""Every rule of the CDI specification, broken once, and the message that names the place."""

from typing import Any

import pytest

from dra_driver.core.errors import InvalidSpecError
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
from dra_driver.hardware.cdi.validation import driver_problems, spec_problems, validate

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
    assert any(message in problem for problem in spec_problems(document)), spec_problems(document)


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
    """A validator that refuses too much would keep pods from starting."""
    assert spec_problems(document) == ()


def test_edits_of_the_whole_document_are_checked_too() -> None:
    """The base document has nearly everything at its top."""
    document = CdiSpec(kind="a.com/gpu", devices=named("g").devices, container_edits=ContainerEdits(env=("broken",)))
    assert spec_problems(document) == ("containerEdits: env[0]: 'broken' is not 'NAME=value'",)


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
    assert spec_problems(document) == ()
    assert any(message in problem for problem in driver_problems(document)), driver_problems(document)


def test_all_problems_come_in_one_error_that_names_the_file() -> None:
    """One attempt shows all mistakes of a document."""
    document = editing(env=("A",), mounts=(Mount(host_path="", container_path="/c", options=("ro",)),))
    with pytest.raises(InvalidSpecError) as raised:
        validate(document, "/var/run/cdi/x.json")
    for part in ("/var/run/cdi/x.json", "env[0]", "mounts[0].hostPath: empty", "neither bind nor rbind"):
        assert part in str(raised.value)
