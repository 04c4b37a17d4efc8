"""What deploy/Dockerfile puts into the image: the packages that its processes import, no more; and how it is built."""

import importlib.metadata
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.kinds import NAMESPACES, NODES
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.node_image import ROOT, left_out, locked, normal, packages_folder, run_with
from tests.fakes.node_process import DriverProcess, MpsHostProcess, NodeProcess
from tests.fakes.scripts import script

image, image_base = script("image"), script("image_base")

DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
COMMANDS: tuple[str, ...] = tuple(
    f"dra_driver.{room}.main" for room in ("node.process", "node.exporter", "hardware.sharing", "controller")
)
COMMANDS += ("dra_driver.kubectl.capacity",)  # which the controller runs as a child process
ON_A_NODE = tuple(
    f"dra_driver.diagnose.{name}"
    for name in ("doctor.main", "hardware.main", "node_state.main", "node_state.cleanup_main", "policy_check")
)
# Kubeconfigs with exec plugins, OIDC and passwords, and proxies: `kube.connection` says what is missing.
LIBRARY = {"dra_driver.kube.library"}
POLICY = ROOT / "tests" / "e2e" / "policies" / "evict-xid-79.yaml"
NAMES = {"google": "protobuf", "re2": "google-re2", "grpc": "grpcio", "pynvml": "nvidia-ml-py", "yaml": "pyyaml"}


UI = ("dra_driver.kubectl.commands.kubectl", "dra_driver.kubectl.commands.ui")
CONTENTS = {"node": COMMANDS, "ui": UI}
LOADED = {"node": (*COMMANDS, *ON_A_NODE), "ui": UI}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("dra_driver", include_external_packages=True, cache_dir=None)


def imported(graph: grimp.ImportGraph, content: str) -> set[str]:
    """The packages that the processes of an image import anywhere."""
    modules = set(CONTENTS[content])
    for command in CONTENTS[content]:
        modules |= {each for each in graph.find_upstream_modules(command) if each.startswith("dra_driver")}
    modules -= LIBRARY
    outside = {name for module in modules for name in graph.find_modules_directly_imported_by(module)}
    tops = {name.partition(".")[0] for name in outside - LIBRARY}
    return {NAMES.get(top, normal(top)) for top in tops - {"dra_driver"} - sys.stdlib_module_names}


@pytest.mark.parametrize("content", CONTENTS)
def test_the_project_requires_what_its_processes_import(graph: grimp.ImportGraph, content: str) -> None:
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"][content]
    found = imported(graph, content) - {"markupsafe"}  # of jinja2
    assert {normal(re.split(r"[<>=\[]", item)[0]) for item in group} == found


@pytest.mark.parametrize("content", CONTENTS)
def test_the_image_has_those_packages_and_what_they_require(graph: grimp.ImportGraph, content: str) -> None:
    wanted = imported(graph, content)
    waiting = list(wanted)
    while waiting:
        required = importlib.metadata.requires(waiting.pop()) or []
        needed = [item for item in required if not re.search(r"extra ==|python_version < .3\.11", item)]
        found = {normal(re.split(r"[<>=~!;( ]", item)[0]) for item in needed}
        waiting += found - wanted
        wanted |= found
    assert locked(content) == wanted


@pytest.mark.parametrize("content", CONTENTS)
def test_image_lacks_only_rooms_that_its_commands_do_not_import(content: str) -> None:
    graph = grimp.build_graph("dra_driver", cache_dir=None)
    needed = {module for command in LOADED[content] for module in graph.find_upstream_modules(command)}
    removed = tuple(f"dra_driver.{name.replace('/', '.')}" for name in left_out(content))
    assert not {module for module in needed if f"{module}.".startswith(tuple(f"{name}." for name in removed))}
    assert all((ROOT / "dra_driver" / name).is_dir() for name in left_out(content))


def test_locked_versions_are_those_of_the_tests() -> None:
    for name in ("node", "ui", "build"):
        pins = re.findall(r"^(\S+==\S+)", (ROOT / "requirements" / f"{name}.txt").read_text(), flags=re.M)
        tested = (ROOT / "requirements" / "dev.txt").read_text()
        assert [pin for pin in pins if f"{pin} " not in tested] == []


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages_folder(tmp_path_factory.mktemp("image") / "packages", locked("node"))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A unix socket's path may have 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="dra-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def surveys(controller: DriverProcess, result: str) -> bool:
    (port,) = re.findall(r"serving metrics and health.*port=(\d+)", controller.text)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return f'dra_driver_capacity_surveys_total{{result="{result}"}} 1.0' in text


def test_the_processes_run_from_the_packages_of_the_image(packages: Path, short_path: Path) -> None:
    api = ApiServer()
    api.start()
    api.store.create(NAMESPACES, {"metadata": {"name": "dra-driver"}})
    api.store.create(NODES, {"metadata": {"name": "node-a"}})
    kubeconfig = str(api.kubeconfig(short_path / "kubeconfig"))
    rest = RestClient(Connection.load(kubeconfig))
    folders = {name: short_path / name for name in ("node", "mps", "controller", "policies")}
    for folder in folders.values():
        folder.mkdir()
    shutil.copy(POLICY, folders["policies"])
    node = NodeProcess(
        folders["node"], kubeconfig=kubeconfig, simulate="1xl4-24gb", policy_dir=str(folders["policies"])
    )
    own = {"namespaces": "none", "shm_dir": str(folders["mps"])}  # /run and mounts are root's
    mps = MpsHostProcess(folders["mps"], folders["node"] / "plugins", "gpu.nvidia.com", **own)
    flags = {"kubeconfig": kubeconfig, "http_addr": "127.0.0.1:0", "evict_extended_resource_pods": "true"}
    controller = DriverProcess("controller", folders["controller"], {**flags, "capacity_interval": "60"})
    processes = (node, mps, controller)
    try:
        for process in processes:
            run_with(process, packages)
            process.start()
        node.wait_for(lambda: "gpu-0" in str(rest.list(paths.resource_slices())), timeout_s=30)
        mps.wait_for(lambda: "MPS host started" in mps.text, timeout_s=30)
        controller.wait_for(lambda: "leads now" in controller.text, timeout_s=30)
        controller.wait_for(lambda: surveys(controller, "done") or surveys(controller, "failed"), timeout_s=60)
        assert surveys(controller, "done"), controller.text
    finally:
        for process in processes:
            process.kill()
        api.stop()


def test_the_page_serves_visitors_from_the_packages_of_its_image(tmp_path: Path) -> None:
    """In a pod: with the API server's address and CA, without a token, and with probes as in the chart."""
    packages = packages_folder(tmp_path / "packages", locked("ui"), "ui")
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"server": "https://127.0.0.1:1"}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    document = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {}}]}
    kubeconfig.write_text(json.dumps({**document, "contexts": [context], "current-context": "c"}))
    command = [sys.executable, "-S", "-m", "dra_driver.kubectl.commands.kubectl", "ui", "--sign-in", "--all-addresses"]
    with subprocess.Popen(
        [*command, "--kubeconfig", str(kubeconfig)],
        env={"PYTHONPATH": str(packages), "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            (port,) = re.findall(r"127\.0\.0\.1:(\d+)/", process.stdout.readline())
            probe = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", headers={"Host": "localhost"})
            with urllib.request.urlopen(probe, timeout=10) as answer:  # noqa: S310 - http, see above
                assert answer.status == 204
        finally:
            process.terminate()


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["sim", "demo"], "run pip install '.[sim]'"),
        (["conformance", "--simulate=1xl4-24gb"], "run pip install '.[sim]'"),
        (["controller", "--evict-extended-resource-pods=true"], "run this where pip or pipx installed this project"),
    ],
)
def test_what_is_not_in_the_image_says_what_to_install(
    packages: Path, tmp_path: Path, arguments: list[str], where: str
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("users: [{name: u, user: {exec: {command: x}}}]\n")
    answer = subprocess.run(
        [sys.executable, "-S", "-m", "dra_driver.core.command_line.main", *arguments],
        env={"PYTHONPATH": str(packages), "KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in answer.stderr
    assert "which is not installed here (the image for nodes" in answer.stderr, answer.stdout
    assert where in answer.stderr
    assert answer.returncode in (1, 2)


def test_labels_name_title_version_revision_and_base() -> None:
    labels = set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", DOCKERFILE))
    assert labels >= {"title", "description", "licenses", "version", "revision", "base.name"}


def test_both_stages_have_the_base_that_the_argument_names() -> None:
    """The packages are compiled for its Python. Alpine has another C library than NVIDIA's libraries are built for."""
    stages = re.findall(r"^FROM --platform=(\S+) (\S+)", DOCKERFILE, flags=re.M)
    assert stages == [("${BUILDPLATFORM}", "${BASE}"), ("${TARGETPLATFORM}", "${BASE}")]
    (base,) = re.findall(r"^ARG BASE=(\S+)", DOCKERFILE, flags=re.M)
    assert "alpine" not in base
    assert "latest" not in base


def test_every_package_is_installed_by_hash() -> None:
    installs = re.findall(r"pip \S+ \S+ (?:install|wheel) .*", DOCKERFILE.replace("\\\n", ""))[0].split(";")
    unhashed = [line for line in installs if " install " in line and "--require-hashes" not in line]
    options = [line.split(" install ")[1].split() for line in unhashed]
    assert options == [["--no-compile", "--no-deps", "--no-index", "/wheel/*.whl"]]


def test_pip_compiles_no_package_of_the_image() -> None:
    """`compile_image.py` does, into one folder. PIP_NO_COMPILE=1 makes pip compile: it reads the value as `compile`."""
    installs = re.findall(r"/opt/dra-driver/bin/python install ([^;]*)", DOCKERFILE)
    assert len(installs) == 2
    assert [line for line in installs if "--no-compile" not in line] == []
    assert "PIP_NO_COMPILE" not in DOCKERFILE


def test_the_context_is_what_the_build_reads() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert allowed == {
        *("LICENSE", "README.md", "pyproject.toml"),
        *("dra_driver", "requirements", "build/wheels", "scripts/compile_image.py"),
    }


def test_the_builder_needs_python_alone() -> None:
    """`make image` runs it with the user's Python, which has none of the locked packages."""
    command = [sys.executable, "-S", "scripts/image.py"]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env={"BUILDER": "kaniko"}, capture_output=True, text=True, timeout=30
    )
    assert done.stderr == "BUILDER is kaniko, expected one of podman, buildah, docker\n"


@pytest.mark.parametrize(
    ("base", "release", "refused"),
    [
        ("python:3.11-slim-trixie", True, True),
        ("python:3.11-slim-trixie", False, False),
        (f"python:3.11@sha256:{'a' * 64}", True, False),
        ("python@sha256:abc", True, True),
    ],
)
def test_a_release_needs_a_base_with_a_digest(
    base: str, release: bool, refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if refused:
        with pytest.raises(SystemExit, match=re.escape(base)):
            image.check_base(base, release=release)
    else:
        image.check_base(base, release=release)
        assert ("can move" in capsys.readouterr().err) is ("@" not in base)


@pytest.mark.parametrize(("variables", "tag"), [({"RELEASE": "1"}, ""), ({}, "v0.1.0")])
def test_a_release_is_a_variable_or_the_tag_of_the_version(
    variables: dict[str, str], tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docker").touch(0o755)
    monkeypatch.setattr(image, "git", lambda *arguments: tag if arguments[0] == "tag" else "")
    with pytest.raises(SystemExit, match="the base image of a release needs a digest"):
        image.read_order({**variables, "PATH": str(tmp_path)})


STATUS = "Package: {}\nStatus: {} ok installed\nArchitecture: amd64\nVersion: {}\nDescription: x\n Package: not one\n"


def saved(path: Path, *layers: dict[str, str]) -> Path:
    """A docker-archive; a file that ends in ``.wh.NAME`` removes one."""
    config = {"config": {"Env": ["PATH=/bin", "PYTHON_VERSION=3.11.9"]}}
    names = [f"{number}.tar" for number in range(len(layers))]
    with tarfile.open(path, "w") as archive:
        for name, layer in zip(names, layers, strict=True):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w:gz") as content:
                for file, text in layer.items():
                    add(content, file, text.encode("latin-1"))
            add(archive, name, inner.getvalue())
        add(archive, "c.json", json.dumps(config).encode())
        add(archive, "manifest.json", json.dumps([{"Config": "c.json", "Layers": names}]).encode())
    return path


def elf(machine: int) -> str:
    return "\x7fELF" + "\x02\x01\x01" + "\0" * 9 + "\x03\0" + chr(machine) + "\0"


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_a_base_for_another_architecture_is_refused(arch: str, tmp_path: Path) -> None:
    archive = saved(tmp_path / "x.tar", {"usr/bin/python3.11": elf(62)}, {"opt/msgspec.so": elf(62), "opt/x.py": "x"})
    if arch == "amd64":
        image_base.check_architecture(archive, arch)
    else:
        with pytest.raises(SystemExit, match=r"for arm64, but usr/bin/python3\.11 is not: is BASE for arm64"):
            image_base.check_architecture(archive, arch)


def test_wheels_in_the_dockerfile_are_those_that_were_downloaded() -> None:
    used = re.findall(r"--platform (manylinux\w+_)\$machine", DOCKERFILE)
    assert [f"{name}{machine}" for machine in ("x86_64", "aarch64") for name in used] == [
        name for names in image.PLATFORMS.values() for name in names
    ]


def test_buildah_is_told_both_platforms() -> None:
    order = image.Order(builder="buildah", image="x", version="1", revision="1", epoch=0, arch="arm64")
    build = " ".join(image.commands(order)[0])
    assert f"BUILDPLATFORM=linux/{image.host_arch()} " in build
    assert "TARGETPLATFORM=linux/arm64 " in build


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def test_the_sbom_has_the_debian_packages_of_the_base(tmp_path: Path) -> None:
    sbom = tmp_path / "x.cdx.json"
    sbom.write_text(json.dumps({"components": [{"name": "grpcio"}]}))
    base = {
        "usr/lib/os-release": 'ID=debian\nVERSION_ID="12"\n',
        "var/lib/dpkg/status": STATUS.format("old", "install", 1),
    }
    base["var/lib/dpkg/status.d/gone"] = STATUS.format("gone", "install", 1)
    newer = "\n".join(
        [
            STATUS.format("libc6", "install", "2.36-9+deb12u1"),
            "Package: left\nStatus: deinstall ok config-files\nVersion: 1\n",
        ]
    )
    archive = saved(tmp_path / "x.tar", base, {"./var/lib/dpkg/status": newer, "var/lib/dpkg/status.d/.wh.gone": ""})
    assert image_base.add_base_packages(sbom, archive, "amd64") == "1 Debian packages by dpkg's status"
    document = json.loads(sbom.read_text())
    assert [each.get("purl") for each in document["components"]] == [
        None,
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64&distro=debian-12",
        "pkg:generic/python@3.11.9",
    ]


def test_a_base_without_dpkg_is_said_to_be_unknown(tmp_path: Path) -> None:
    sbom = tmp_path / "x.cdx.json"
    sbom.write_text("{}")
    image_base.add_base_packages(sbom, saved(tmp_path / "x.tar", {"etc/os-release": "ID=alpine\n"}), "amd64")
    (told,) = json.loads(sbom.read_text())["metadata"]["properties"]
    assert (told["name"], told["value"][:8]) == ("dra-driver:base-packages", "unknown:")
