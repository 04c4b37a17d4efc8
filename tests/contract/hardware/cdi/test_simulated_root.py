"""The driver files of the simulated root, of every tree in docs/driver-roots.md, and of this machine's own tools."""

import platform
import re
import shutil
import subprocess
import sysconfig
import time
from pathlib import Path

import pytest

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.cdi import edits
from dra_driver.hardware.cdi.edits import claim_spec
from dra_driver.hardware.cdi.elf import read_shared_object
from dra_driver.hardware.cdi.hook import HookVersions, choose_hook
from dra_driver.hardware.cdi.libraries import discover
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.provider import CdiProvider
from dra_driver.hardware.cdi.spec import decode, validate
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.driver_root import search
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.driver_root.search import CUDA, NVML, Detector, find_library, find_program
from dra_driver.hardware.gpu.simulated import root as simulated_root
from dra_driver.sim.node.container import ContainerView
from tests.fakes.driver_root import VERSION
from tests.fakes.driver_trees import TREES, DriverTree
from tests.fakes.simulated_gpus import SimulatedBackend

NAMES = CdiNames("gpu.nvidia.com")
UID = "0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e"


@pytest.fixture
def snapshot() -> Snapshot:
    backend = SimulatedBackend.from_spec("8xh100-sxm5-80gb", "node-a")
    backend.open()
    try:
        return backend.snapshot()
    finally:
        backend.close()


def test_the_simulated_root_is_discovered_fast(tmp_path: Path, snapshot: Snapshot) -> None:
    """Version, libraries with SONAMEs and the program that lists GPUs, in less than 20 ms."""
    simulated_root.write(tmp_path, snapshot)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        files = discover(DriverRoot(root=str(tmp_path)))
        times.append(time.perf_counter() - start)
    assert files.version == snapshot.driver_version
    assert files.multiarch == f"{platform.machine()}-linux-gnu"
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= {library.soname for library in files.libraries}
    programs = {file.container_path for file in files.files}
    assert programs == {f"/usr/bin/nvidia-{name}" for name in ("smi", "cuda-mps-control", "cuda-mps-server")}
    assert min(times) < 0.020


def test_both_documents_of_a_simulated_claim_are_valid_and_point_to_files(tmp_path: Path, snapshot: Snapshot) -> None:
    root = tmp_path / "root"
    simulated_root.write(root, snapshot)
    writer = CdiWriter(str(tmp_path / "cdi"), NAMES)
    provider = CdiProvider(DriverRoot(root=str(root)), NAMES, writer, str(root / "proc/devices"))
    provider.ensure_base()
    gpus = snapshot.gpus[:2]
    devices = [(NAMES.claim_device(UID, gpu.device_name), provider.edits_for(gpu)) for gpu in gpus]
    writer.write_claim(UID, claim_spec(NAMES, devices))
    base = decode((tmp_path / "cdi" / NAMES.base_file_name).read_text(), "base")
    text = (tmp_path / "cdi" / NAMES.claim_file_name(UID)).read_text()
    assert len(text) < 2048, "it is written in the prepare call"
    claim = decode(text, "claim")
    assert all(Path(mount.host_path).is_file() for mount in base.container_edits.mounts)
    assert "/usr/bin/nvidia-smi" in {mount.container_path for mount in base.container_edits.mounts}
    numbers = {
        node.path: (node.type, node.major, node.minor) for edits in claim.all_edits() for node in edits.device_nodes
    }
    assert numbers == {f"/dev/nvidia{gpu.minor}": ("c", 195, gpu.minor) for gpu in gpus}


class CutNode:
    """A node with one H100 whose driver root follows every change, as the node process lets it."""

    def __init__(self, folder: Path) -> None:
        self.cdi, root = folder / "cdi", folder / "root"
        self.backend = SimulatedBackend.from_spec(
            "1xh100-sxm5-80gb", "node-a", on_change=lambda seen: simulated_root.write(root, seen)
        )
        simulated_root.write(root, self.backend.snapshot())
        self.gpu = self.backend.snapshot().gpus[0]
        self.writer = CdiWriter(str(self.cdi), NAMES)
        driver_root = DriverRoot(root=str(root), dev_root=str(root))
        self.provider = CdiProvider(
            driver_root, NAMES, self.writer, str(root / "proc/devices"), "none", proc_driver=str(root / "proc/driver")
        )

    def make(self, profile: str, start: int) -> tuple[str, str]:
        """A partition and its claim's device; the CDI name and the UUID."""
        profile_id = next(found.profile_id for found in self.gpu.mig_profiles if found.name == profile)
        gi = self.backend.create_gpu_instance(self.gpu.uuid, profile_id, start)
        made = self.backend.create_compute_instance(self.gpu.uuid, gi)
        edits = self.provider.edits_for_partition(self.gpu, gi_id=gi, ci_id=made.ci_id, uuid=str(made.uuid))
        device = f"gpu-0-mig-{gi}"
        uid = f"{UID[:-2]}{gi:02}"
        self.writer.write_claim(uid, claim_spec(NAMES, [(NAMES.claim_device(uid, device), edits)]))
        return NAMES.claim_id(uid, device), str(made.uuid)

    def sees(self, folder: Path, *names: str) -> list[str]:
        """What ``nvidia-smi -L`` lists in a container with these devices."""
        view = ContainerView(folder)
        view.create({"name": "main"}, [NAMES.common_id, *names], [self.cdi])
        return view.check().output.splitlines()


def test_a_container_sees_its_partitions_and_no_others(tmp_path: Path) -> None:
    node = CutNode(tmp_path)
    node.backend.set_mig_mode(node.gpu.uuid, True)
    node.provider.ensure_base()
    made = [node.make(profile, start) for profile, start in (("3g.40gb", 0), ("1g.10gb", 4), ("1g.10gb", 5))]
    for at, (name, uuid) in enumerate(made):
        parent, partition = node.sees(tmp_path / f"view-{at}", name)
        assert node.gpu.uuid in parent
        assert uuid in partition
    listed = node.sees(tmp_path / "several", made[0][0], made[2][0])
    assert [line.split()[1] for line in listed[1:]] == ["3g.40gb", "1g.10gb"]
    assert [uuid in line for line, uuid in zip(listed[1:], (made[0][1], made[2][1]), strict=True)] == [True, True]


def test_a_partition_that_is_gone_gets_no_document(tmp_path: Path) -> None:
    node = CutNode(tmp_path)
    node.backend.set_mig_mode(node.gpu.uuid, True)
    node.make("1g.10gb", 4)
    (instance,) = node.backend.mig_instances(node.gpu.uuid)
    node.backend.destroy_compute_instance(node.gpu.uuid, instance.gi_id, 0)
    with pytest.raises(DeviceLostError, match=rf"instance gi{instance.gi_id}/ci0 of /dev/nvidia0"):
        node.provider.edits_for_partition(node.gpu, gi_id=instance.gi_id, ci_id=0, uuid="MIG-x")


def test_a_gpu_that_fell_off_the_bus_keeps_the_nodes_of_its_partitions(tmp_path: Path) -> None:
    """The kernel module does not take them away: a claim in the midst of its prepare must not lose its partition."""
    node = CutNode(tmp_path)
    node.backend.set_mig_mode(node.gpu.uuid, True)
    node.make("1g.10gb", 4)
    (instance,) = node.backend.mig_instances(node.gpu.uuid)
    node.backend.mark_lost(node.gpu.minor, "fallen off the bus")
    assert node.provider.edits_for_partition(node.gpu, gi_id=instance.gi_id, ci_id=0, uuid="MIG-x")
    node.backend.restore(node.gpu.minor)
    node.backend.destroy_compute_instance(node.gpu.uuid, instance.gi_id, 0)
    node.backend.destroy_gpu_instance(node.gpu.uuid, instance.gi_id)
    assert not list(tmp_path.glob("root/proc/driver/nvidia/capabilities/gpu*/mig/**/access"))


PAGE = Path(__file__).parents[4] / "docs/driver-roots.md"
HEAD = "| system | driver root | libraries | nvidia-smi | nvidia-cuda-mps-control | CDI hook | source |"
each_tree = pytest.mark.parametrize("tree", TREES, ids=[tree.name for tree in TREES])


def row(tree: DriverTree, host: Path) -> str:
    tree.lay_out(host)
    root = Detector(str(host)).current()

    def inside(path: str | None) -> str:
        assert path is None or path.startswith(root.root)
        return "none" if path is None else f"`{path.removeprefix(root.root)}`"

    folder = inside(str(Path(find_library(root.root, CUDA) or "").parent))
    programs = [inside(find_program(root.root, name)) for name in ("nvidia-smi", "nvidia-cuda-mps-control")]
    versions = HookVersions(lambda at, path: b"NVIDIA CDI Hook version 1.18.0")
    hook = choose_hook(DriverRoot(root=str(host), host_root="/"), None, versions).hook
    found = [f"`{root.host_root or '/'}`", folder, *programs, f"`{hook.path}`" if hook else "none"]
    return f"| {' | '.join([tree.name, *found, tree.source])} |"


def test_the_page_lists_every_tree_and_what_is_found_in_it(tmp_path: Path) -> None:
    lines = PAGE.read_text().splitlines()
    start = lines.index(HEAD) + 2
    listed = lines[start : start + len(TREES)]
    assert listed == [row(tree, tmp_path / str(number)) for number, tree in enumerate(TREES)]
    assert not lines[start + len(TREES)].startswith("|")


@each_tree
def test_every_part_finds_the_same_driver(tree: DriverTree, tmp_path: Path) -> None:
    tree.lay_out(tmp_path)
    root = Detector(str(tmp_path)).current()
    files = discover(root)
    assert files.version == VERSION
    home = files.library_folders[0]
    for name in (NVML, CUDA):
        assert find_library(root.root, name) == f"{root.root}{home}/{name.removesuffix('.1')}.{VERSION}"
    mounted = {file.path: file.container_path for file in files.files}
    for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
        found = find_program(root.root, name)
        assert found is not None
        assert mounted[found.removeprefix(root.root)].rpartition("/")[0] in {"/usr/bin", "/bin", "/usr/local/bin"}


@each_tree
def test_containers_get_the_driver_from_paths_of_the_host(tree: DriverTree, tmp_path: Path) -> None:
    """The runtime mounts from the host's paths, at which the files of the tree must exist."""
    tree.lay_out(tmp_path)
    root = Detector(str(tmp_path)).current()
    spec = edits.base_spec(CdiNames("gpu.nvidia.com"), discover(root), Majors(nvidia=195, uvm=510), None)
    validate(spec, "base")
    mounts = spec.container_edits.mounts
    assert all((tmp_path / mount.host_path.lstrip("/")).is_file() for mount in mounts)
    targets = {mount.container_path for mount in mounts}
    for folder in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu"):
        assert {f"{folder}/{name}" for name in (NVML, CUDA)} <= targets
    nodes = {node.path: node.host_path for node in spec.container_edits.device_nodes}
    own = "/run/nvidia/driver/dev/nvidiactl" if "container" in tree.name else ""
    assert nodes["/dev/nvidiactl"] == own


LDCONFIG = shutil.which("ldconfig") or "/sbin/ldconfig"
READELF = shutil.which("readelf")


def system_libraries() -> list[Path]:
    folder = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "")
    return sorted(path for path in folder.glob("lib*.so.*") if path.is_file() and not path.is_symlink())[:60]


@pytest.mark.skipif(READELF is None, reason="needs readelf (package binutils) to compare with")
def test_sonames_agree_with_readelf() -> None:
    libraries = system_libraries()
    assert libraries
    output = subprocess.run(
        [str(READELF), "-d", *map(str, libraries)], capture_output=True, text=True, check=False, timeout=60
    ).stdout
    expected: dict[str, str | None] = {}
    for part in re.split(r"^File: ", output, flags=re.MULTILINE)[1:]:
        soname = re.search(r"\(SONAME\).*\[(.*)\]", part)
        expected[part.splitlines()[0]] = soname[1] if soname else None
    found = {str(path): read_shared_object(str(path)) for path in libraries}
    assert {path: library.soname for path, library in found.items() if library} == {
        path: soname for path, soname in expected.items() if found[path]
    }
    assert sum(library is not None for library in found.values()) > len(libraries) // 2


@pytest.mark.skipif(not Path("/etc/ld.so.cache").exists(), reason="needs a glibc system with a linker cache")
def test_the_linkers_cache_agrees_with_ldconfig() -> None:
    printed = subprocess.run([LDCONFIG, "-p"], capture_output=True, text=True, check=True, timeout=60).stdout
    lines = re.findall(r"^\t(\S+) \((.*?)\) => (\S+)$", printed, flags=re.MULTILINE)
    expected = [(name, path) for name, flags, path in lines if re.search(r"x86-64|AArch64", flags)]
    found = list(search.cache_entries(search.read_cache("/etc/ld.so.cache")))
    assert found
    assert found == expected
