"""The content of both documents, against golden files, and the nodes that open a MIG partition."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.core.errors import DeviceLostError, DriverUnavailableError, InvalidSpecError
from dra_driver.core.semver import Semver
from dra_driver.hardware.cdi import edits
from dra_driver.hardware.cdi.edits import Capability, DrmNode, drm_nodes, partition_capabilities
from dra_driver.hardware.cdi.hook import CdiHook
from dra_driver.hardware.cdi.libraries import DriverFiles, discover
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.spec import ContainerEdits, validate
from dra_driver.hardware.device_nodes.numbers import Majors, NodeNumbers
from dra_driver.hardware.driver_root.root import DriverRoot
from tests.fakes.driver_root import debian
from tests.harness.raising import fails

GOLDEN = Path(__file__).parents[3] / "golden/cdi"
NAMES = CdiNames("gpu.nvidia.com")
MAJORS = Majors(nvidia=195, modeset=195, uvm=510, caps=237)
HOST = DriverRoot()
HOOK = CdiHook(path="/usr/bin/nvidia-cdi-hook", version=Semver(1, 18, 0))
CONTAINER = DriverRoot(root="/driver-root", host_root="/run/nvidia/driver", dev_root="/driver-root")
UID = "0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e"
UUIDS = {0: "GPU-6a1f3c52-9d7e-4b8a-8c1d-2e3f4a5b6c7d", 3: "GPU-b2c4d6e8-1a3b-4c5d-9e7f-8091a2b3c4d5"}


@pytest.fixture
def files(tmp_path: Path) -> DriverFiles:
    """A Debian driver in a driver container, as the container runtime sees it."""
    root = DriverRoot(root=str(debian(tmp_path).path), host_root="/run/nvidia/driver", dev_root=str(tmp_path))
    return discover(root)


def golden(name: str) -> Any:
    return yaml.safe_load((GOLDEN / name).read_text())


def paths(document: ContainerEdits) -> list[str]:
    return [node.path for node in document.device_nodes]


@pytest.mark.parametrize(("hook", "expected"), [(None, "base-soname.yaml"), (HOOK, "base-hooks.yaml")])
def test_base_document_without_and_with_hooks(files: DriverFiles, hook: CdiHook | None, expected: str) -> None:
    """With NVIDIA's hook every library once; the hook makes the links and the linker's cache."""
    spec = edits.base_spec(NAMES, files, MAJORS, hook)
    validate(spec, "base")
    assert spec.to_wire() == golden(expected)


@pytest.mark.parametrize("hook", [None, HOOK], ids=["soname", "hook"])
def test_an_image_that_asks_for_all_gpus_gets_none_by_it(files: DriverFiles, hook: CdiHook | None) -> None:
    """Every image of CUDA has NVIDIA_VISIBLE_DEVICES=all, which NVIDIA's runtime as the default one would follow."""
    environment = edits.base_spec(NAMES, files, MAJORS, hook).to_wire()["containerEdits"]["env"]
    assert [each for each in environment if "VISIBLE" in each] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_claim_document() -> None:
    devices = [
        (NAMES.claim_device(UID, f"gpu-{minor}"), edits.gpu_edits(minor, MAJORS, HOST, uuid=uuid))
        for minor, uuid in UUIDS.items()
    ]
    spec = edits.claim_spec(NAMES, devices)
    validate(spec, "claim")
    assert spec.to_wire() == golden("claim.yaml")


def partition(minor: int, gi: int, uuid: str) -> ContainerEdits:
    """A partition whose capabilities have the minors that the kernel module gives them."""
    first = 3 + 135 * minor + 9 * gi
    capabilities = (Capability(minor=first), Capability(minor=first + 1))
    variable = f"DRA_GPU_{minor}_MIG_{gi}_0_UUID={uuid}"
    return edits.partition_edits(minor, MAJORS, HOST, capabilities, variable=variable)


@pytest.mark.parametrize(
    ("file", "partitions"),
    [
        ("claim-mig.yaml", [("gpu-3-mig-1g10gb-19-4", 3, 11)]),
        (
            "claim-four-mig.yaml",
            [
                ("gpu-0-mig-3g20gb-9-0", 0, 1),
                ("gpu-0-mig-2g10gb-14-4", 0, 5),
                ("gpu-0-mig-1g5gb-19-6", 0, 13),
                ("gpu-0-mig-1g5gb-19-7", 0, 14),
            ],
        ),
    ],
)
def test_claim_documents_of_partitions(file: str, partitions: list[tuple[str, int, int]]) -> None:
    """Each partition opens its own two capabilities; those of one parent share nothing but the parent's node."""
    devices = [
        (NAMES.claim_device(UID, name), partition(minor, gi, f"MIG-0f0e0d0c-0b0a-5908-8706-0504030201{gi:02}"))
        for name, minor, gi in partitions
    ]
    spec = edits.claim_spec(NAMES, devices)
    validate(spec, "claim")
    assert spec.to_wire() == golden(file)


def test_claim_document_of_a_share_under_mps() -> None:
    """The limits travel as variables that CUDA enforces with the daemon; the share's id is in the name."""
    gpu = edits.gpu_edits(0, MAJORS, HOST, uuid=UUIDS[0])
    folder = Path(f"/var/lib/kubelet/plugins/gpu.nvidia.com/mps/{UUIDS[0]}")
    share = edits.mps_edits(folder / "pipe", folder / "shm", memory_limit_mib=10240, percentage=30)
    name = NAMES.claim_device(UID, "gpu-0", "6c1d7a0e-52b8-4f0e-9a57-3e5b1d2c4f60")
    spec = edits.claim_spec(NAMES, [(name, gpu + share)])
    validate(spec, "claim")
    assert spec.to_wire() == golden("claim-mps-share.yaml")


def test_unset_limits_are_left_to_the_daemon() -> None:
    """A variable with a made-up value would lower what the daemon allows."""
    assert edits.mps_edits(Path("/p"), Path("/s"), memory_limit_mib=None, percentage=None).env == (
        "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
    )


def test_a_partitions_nodes_are_looked_for_in_the_drivers_root() -> None:
    """A driver container has its own /dev."""
    nodes = edits.partition_edits(1, MAJORS, CONTAINER, [Capability(minor=147, mode=0o400)]).device_nodes
    assert [node.host_path for node in nodes] == [
        "/run/nvidia/driver/dev/nvidia1",
        "/run/nvidia/driver/dev/nvidia-caps/nvidia-cap147",
    ]
    assert [node.file_mode for node in nodes] == [0o666, 0o400]


def test_control_nodes_follow_the_loaded_modules(files: DriverFiles) -> None:
    """nvidia-modeset is for graphics, and older modules do not list it: then a real node tells its numbers."""
    majors, modeset = Majors(nvidia=195, uvm=507), {"/dev/nvidia-modeset": NodeNumbers(major=195, minor=254)}
    without = edits.base_spec(NAMES, files, majors, None).container_edits
    assert paths(without) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert {node.major for node in without.device_nodes} == {195, 507}
    found = edits.base_spec(NAMES, files, majors, None, modeset).container_edits.device_nodes[-1]
    assert (found.path, found.major, found.minor) == ("/dev/nvidia-modeset", 195, 254)


def test_without_nvidia_uvm_there_is_no_document(files: DriverFiles) -> None:
    """CUDA would not start, while nvidia-smi works. A node of an unloaded module cannot be opened."""
    stale = {"/dev/nvidia-uvm": NodeNumbers(major=507, minor=0)}
    with pytest.raises(DriverUnavailableError, match=r"'nvidia-uvm'.*nvidia-modprobe -u -c0"):
        edits.base_spec(NAMES, files, Majors(nvidia=195), None, stale)


def test_without_any_module_in_the_list_real_nodes_count(files: DriverFiles) -> None:
    """Modules that registered under unknown names, and NVIDIA's mock of a driver, which has none."""
    control = {"nvidiactl": (195, 255), "nvidia-uvm": (510, 0), "nvidia-uvm-tools": (510, 1)}
    real = {f"/dev/{name}": NodeNumbers(major=major, minor=minor) for name, (major, minor) in control.items()}
    assert paths(edits.base_spec(NAMES, files, Majors(), None, real).container_edits) == [*real]
    gpu = edits.gpu_edits(2, Majors(), HOST, found=NodeNumbers(major=195, minor=2)).device_nodes[0]
    assert (gpu.major, gpu.minor) == (195, 2)


def test_the_kernels_list_is_trusted_over_a_node(files: DriverFiles) -> None:
    """A node may be left of a driver that was loaded with other numbers."""
    stale = {"/dev/nvidia-uvm": NodeNumbers(major=507, minor=0), "/dev/nvidiactl": NodeNumbers(major=300, minor=9)}
    nodes = edits.base_spec(NAMES, files, MAJORS, None, stale).container_edits.device_nodes
    assert [(node.major, node.minor) for node in nodes[:2]] == [(195, 255), (510, 0)]
    gpu = edits.gpu_edits(2, MAJORS, HOST, found=NodeNumbers(major=300, minor=7)).device_nodes[0]
    assert (gpu.major, gpu.minor) == (195, 2)


def test_without_the_kernel_module_nothing_is_promised(files: DriverFiles) -> None:
    """A node with a made-up number would give a pod that starts and cannot work."""
    with pytest.raises(DriverUnavailableError, match=r"/dev/nvidiactl.*load the NVIDIA kernel module"):
        edits.base_spec(NAMES, files, Majors(), None)
    with pytest.raises(DriverUnavailableError, match=r"/dev/nvidia4.*/proc/devices lists neither"):
        edits.gpu_edits(4, Majors(uvm=510), HOST)


@pytest.mark.parametrize("hook", [None, HOOK])
def test_graphics_nodes_come_with_their_links_where_a_hook_can_make_them(hook: CdiHook | None) -> None:
    """CDI itself cannot make links."""
    nodes = [
        DrmNode(name="card1", numbers=NodeNumbers(major=226, minor=1)),
        DrmNode(name="renderD128", numbers=NodeNumbers(major=226, minor=128)),
    ]
    result = edits.graphics_edits(nodes, HOST, "0000:65:00.0", hook)
    assert paths(result) == ["/dev/dri/card1", "/dev/dri/renderD128"]
    links = [word for made in result.hooks for word in made.args if "::" in word]
    folder = "/dev/dri/by-path/pci-0000:65:00.0"
    assert links == ([f"../card1::{folder}-card", f"../renderD128::{folder}-render"] if hook else [])
    assert edits.graphics_edits([], HOST, "0000:65:00.0", hook).empty, "a hook without links would be an error"


def test_the_same_device_twice_is_one_device_and_two_of_one_name_are_refused() -> None:
    """Two requests with admin access may get one GPU; the driver must not guess which GPU a container gets."""
    name, first, second = NAMES.claim_device(UID, "gpu-0"), *(edits.gpu_edits(n, MAJORS, HOST) for n in (0, 1))
    spec = edits.claim_spec(NAMES, [(name, first), (name, first)])
    assert len(spec.devices) == 1
    validate(spec, "claim")
    with pytest.raises(InvalidSpecError, match="listed 2 times"):
        validate(edits.claim_spec(NAMES, [(name, first), (name, second)]), "claim")


# Lines of another form are skipped: newer modules may add to the list.
MINORS = "config 1\n\n# 3\nfoo bar\ngpu0/gi9 many\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu1/gi1/access 147\n"


def write(folder: Path, inside: str, text: str) -> None:
    path = folder / inside
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def access(folder: Path, instance: str, text: str) -> None:
    write(folder, f"nvidia/capabilities/gpu0/mig/{instance}/access", text)


def test_minor_and_mode_are_the_kernel_modules(tmp_path: Path) -> None:
    """An administrator may have given the nodes other modes; the file's number is decimal."""
    access(tmp_path, "gi1", "DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    access(tmp_path, "gi1/ci0", "DeviceFileMinor: 31\nDeviceFileMode: 438\nDeviceFileModify: 1\n")
    found = partition_capabilities(str(tmp_path), 0, 1, 0)
    assert found == (Capability(minor=30, mode=0o444), Capability(minor=31, mode=0o666))
    assert found[0].path == "/dev/nvidia-caps/nvidia-cap30"


def test_the_list_of_minors_answers_where_the_access_files_are_not_seen(tmp_path: Path) -> None:
    write(tmp_path, "nvidia-caps/mig-minors", MINORS)
    assert partition_capabilities(str(tmp_path), 0, 1, 0) == (Capability(minor=12), Capability(minor=13))


def test_an_instance_that_is_gone_is_not_looked_up_in_the_list(tmp_path: Path) -> None:
    """Where the module lists existing instances, the number of another one would open the next instance with its id."""
    write(tmp_path, "nvidia-caps/mig-minors", MINORS)
    access(tmp_path, "gi1", "DeviceFileMinor: 12\n")
    with pytest.raises(DeviceLostError, match=r"instance gi1/ci0 of /dev/nvidia0: .*/gi1/ci0/access is missing"):
        partition_capabilities(str(tmp_path), 0, 1, 0)


@pytest.mark.parametrize("text", ["", "no such line\n", "DeviceFileMinor: many\n", "DeviceFileMinor: 9999999999\n"])
def test_an_access_file_that_makes_no_sense_is_not_guessed_from(tmp_path: Path, text: str) -> None:
    """A wrong number would open the partition of another claim."""
    access(tmp_path, "gi1", text)
    access(tmp_path, "gi1/ci0", "DeviceFileMinor: 31\n")
    with pytest.raises(DeviceLostError, match="has no DeviceFileMinor"):
        partition_capabilities(str(tmp_path), 0, 1, 0)


def test_a_module_that_tells_nothing_is_named_with_what_to_do(tmp_path: Path) -> None:
    """Modules before 450.80.02, or a node process that does not see the node's /proc."""
    with pytest.raises(DriverUnavailableError, match=r"/dev/nvidia0: .*/proc/driver, and .* 450\.80\.02 or newer"):
        partition_capabilities(str(tmp_path), 0, 1, 0)


@pytest.mark.parametrize(("gpu", "instance", "compute"), [(0, 2, 0), (0, 1, 1), (1, 1, 0), (3, 1, 0)])
def test_an_unknown_instance_is_lost(tmp_path: Path, gpu: int, instance: int, compute: int) -> None:
    """The next instance may have its id; nothing is made up meanwhile."""
    write(tmp_path, "nvidia-caps/mig-minors", MINORS + "gpu3/gi1/access 1048576\n")
    with fails(DeviceLostError, "CapabilityNodeMissing"):
        partition_capabilities(str(tmp_path), gpu, instance, compute)


def test_drm_nodes_come_from_sysfs(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices/0000:65:00.0/drm"
    for name, content in {"card1": "226:1\n", "renderD129": "226:129\n", "card1-DP-1": "1:1\n", "card2": "x"}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "dev").write_text(content)
    assert drm_nodes("0000:65:00.0", str(tmp_path)) == (
        DrmNode(name="card1", numbers=NodeNumbers(major=226, minor=1)),
        DrmNode(name="renderD129", numbers=NodeNumbers(major=226, minor=129)),
    )


@pytest.mark.parametrize("bus_id", [None, "", "../../../etc", "0000:65:00.0/..", "0000:66:00.0"])
def test_no_drm_nodes_without_a_gpu_of_that_address(tmp_path: Path, bus_id: str | None) -> None:
    assert drm_nodes(bus_id, str(tmp_path)) == ()
