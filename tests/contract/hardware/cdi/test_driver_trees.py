"""Every tree of docs/driver-roots.md has its driver found, and the readers agree with this machine's own tools."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from dra_driver.hardware.cdi import edits
from dra_driver.hardware.cdi.elf import read_shared_object
from dra_driver.hardware.cdi.hook import HookVersions, choose_hook
from dra_driver.hardware.cdi.libraries import discover
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.spec import validate
from dra_driver.hardware.device_nodes.numbers import Majors
from dra_driver.hardware.driver_root import search
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.driver_root.search import CUDA, NVML, Detector, find_library, find_program
from tests.fakes.driver_root import VERSION
from tests.fakes.driver_trees import TREES, DriverTree

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
