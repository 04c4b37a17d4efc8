"""Checks and readers of a node with facts and texts that no directory of a test has."""

import json
from pathlib import Path

import pytest

from dra_driver.config.settings import NodeSettings
from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.diagnose.doctor.node import NODE_CHECKS, LocalFacts
from dra_driver.diagnose.doctor.node_files import DiskFacts, FileFacts
from dra_driver.diagnose.doctor.node_files import parsed as parsed_container
from dra_driver.diagnose.doctor.node_kubelet import SocketFacts, flags_of, read_kubelet
from dra_driver.diagnose.doctor.node_runtime import RuntimeFacts, with_config, with_crio_config
from dra_driver.diagnose.doctor.node_view import HostView, parse_version
from dra_driver.diagnose.node_state.state import CdiState, JournalState, MpsState, NodeState, SocketState
from dra_driver.node.claims.inspection import JournalContent

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL
VIEW = HostView(settings=NodeSettings(node_name="node-1"))


def found_by(check: str, facts: LocalFacts) -> Finding:
    (finding,) = next(each for each in NODE_CHECKS if each.name == check).run(facts, f"node/{facts.node}")
    return finding


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "status", "seen"),
    [
        (100 * 1024, 1000, FAIL, "/plugins has 100 KiB free"),
        (1 << 30, 3, FAIL, "/plugins has 3 inodes free"),
        (8 << 20, 1000, WARN, "/plugins has 8 MiB free"),
        (1 << 30, 1000, OK, "/plugins has 1024 MiB free"),
        (1 << 30, None, OK, "/plugins has 1024 MiB free"),
    ],
)
def test_a_full_disk_is_named_with_what_is_left(
    free_bytes: int, free_files: int | None, status: Status, seen: str
) -> None:
    """Some file systems count no inodes."""
    disk = DiskFacts(folder="/plugins", what="the journal", free_bytes=free_bytes, free_files=free_files)
    finding = found_by("disk", LocalFacts(node="node-1", view=VIEW, files=FileFacts(disks=(disk,))))
    assert finding.status is status
    assert finding.seen.startswith(seen)
    assert (status is OK) == (not finding.fix)


@pytest.mark.parametrize(
    ("check", "facts"),
    [
        ("plugin-folders", LocalFacts(node="n", view=VIEW, sockets=SocketFacts(problem="/reg: Permission denied"))),
        ("device-plugin", LocalFacts(node="n", view=VIEW, sockets=SocketFacts(device_plugins=None))),
        ("runtime-answers", LocalFacts(node="n", view=VIEW, runtime=RuntimeFacts(socket="/run/x.sock", denied=True))),
    ],
)
def test_what_only_root_may_see_is_unknown(check: str, facts: LocalFacts) -> None:
    finding = found_by(check, facts)
    assert (finding.status, finding.fix) == (Status.UNKNOWN, "Run it as root.")


PLUGIN = Path("/plugins/gpu.nvidia.com")


def records(*, exists: bool = True, problem: str | None = None) -> NodeState:
    """A state whose socket is dead and whose CDI folder has a broken file: other checks report both."""
    return NodeState(
        plugin=PLUGIN,
        exists=exists,
        boot_id="b",
        journal=JournalState(path=PLUGIN / "state.db", content=JournalContent()),
        cdi=CdiState(folder=Path("/cdi"), problems=("no CDI file",)),
        mps=MpsState(),
        sockets=(SocketState(path=PLUGIN / "dra.sock", served=False),),
        health_problem=problem,
    )


@pytest.mark.parametrize(
    ("found", "status", "reason", "seen"),
    [
        (records(), OK, "Records", "0 claims"),
        (records(problem="not JSON"), WARN, "HealthUnreadable", "not JSON"),
        (PermissionError(13, "Refused", "/plugins"), Status.UNKNOWN, "RecordsUnreadable", "/plugins: Refused"),
    ],
)
def test_records_warn_at_most(found: NodeState | OSError, status: Status, reason: str, seen: str) -> None:
    """The node process repairs its records, so they do not keep GPUs from working."""
    finding = found_by("records", LocalFacts(node="n", view=VIEW, records=found))
    assert (finding.status, finding.layer, finding.reason) == (status, Layer.PREPARE, reason)
    assert seen in finding.seen
    assert finding.fix[:1].isupper() or status is OK


def test_a_node_without_the_drivers_folder_has_no_records() -> None:
    (check,) = [each for each in NODE_CHECKS if each.name == "records"]
    assert check.run(LocalFacts(node="n", view=VIEW, records=records(exists=False))) == ()


def test_flags_in_both_spellings() -> None:
    words = ("kubelet", "--root-dir=/data", "--config", "/etc/k.yaml", "--fail-swap-on", "-v=2", "--config", "/b.yaml")
    assert flags_of("\0".join(words)) == {"root-dir": "/data", "config": "/b.yaml", "fail-swap-on": "", "v": "2"}
    for odd in ("", "kubelet", "kubelet\0--", "\0\0--x"):
        assert all(value == "" for value in flags_of(odd).values())


def write(folder: Path, files: dict[str, str]) -> HostView:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostView(settings=NodeSettings(node_name="node-1"), host=str(folder))


def test_a_kubelets_gates_come_from_files_and_flags(tmp_path: Path) -> None:
    """Files of --config-dir are over the file of --config, and --feature-gates is over both."""
    command = "kubelet\0--config=/k.yaml\0--config-dir=/k.d\0--feature-gates=C=true,A=false\0"
    view = write(
        tmp_path,
        {
            "proc/7/comm": "kubelet\n",
            "proc/7/cmdline": command,
            "k.yaml": "featureGates: {A: true, B: true}\ncontainerRuntimeEndpoint: unix:///run/x.sock\n",
            "k.d/10.conf": "featureGates: {B: false}\n",
            "k.d/notes": "not a configuration",
        },
    )
    found = read_kubelet(view, lambda _view, _pid: "v1.36.2")
    assert found.gates == {"A": False, "B": False, "C": True}
    assert found.runtime_socket == "/run/x.sock"


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\0\1", "featureGates: yes", "&a [*a]"])
def test_a_configuration_of_another_form_tells_nothing_and_a_missing_one_is_named(tmp_path: Path, text: str) -> None:
    view = write(tmp_path, {"proc/7/comm": "kubelet", "proc/7/cmdline": "kubelet\0--config=/k.yaml", "k.yaml": text})
    assert read_kubelet(view, lambda _view, _pid: None).gates == {}
    (tmp_path / "k.yaml").unlink()
    assert read_kubelet(view, lambda _view, _pid: None).config_problem == "cannot read /k.yaml"


@pytest.mark.parametrize("config", ["", "null", "[]", "{", '{"containerd": []}', '{"enableCDI": "yes"}'])
def test_a_runtimes_configuration_of_another_form(config: str) -> None:
    """A runtime of tomorrow may print something else: the switch is unknown, not off."""
    assert with_config(RuntimeFacts(name="containerd"), config).cdi is None


@pytest.mark.parametrize(
    ("config", "tells"),
    [
        ("", True),
        ("= 3", False),
        ("crio = 3", False),
        ("[crio]\nruntime = 3", False),
        ("[crio.runtime]\ncdi_spec_dirs = 3", True),
    ],
)
def test_crios_configuration_of_another_form(config: str, tells: bool) -> None:
    read = with_crio_config(RuntimeFacts(name="cri-o"), config)
    assert (read.cdi_dirs, read.tells_config) == (None, tells)


def test_a_runtimes_folders_are_shown_as_it_names_them() -> None:
    """Those of an odd type too, and 16 at most."""
    folders = [5, *(f"/{number}" for number in range(20))]
    texts = ("5", *(f"/{number}" for number in range(15)))
    read = with_config(RuntimeFacts(name="containerd"), json.dumps({"cdiSpecDirs": folders}))
    assert (read.tells_config, read.cdi_dirs) == (True, texts)
    crio = with_crio_config(RuntimeFacts(name="cri-o"), f"[crio.runtime]\ncdi_spec_dirs = {folders}")
    assert (crio.tells_config, crio.cdi_dirs) == (True, texts)


_NODE = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
_RULE = {"allow": True, "type": "c", "major": 195, "minor": 0}


def container_info(*nodes: object, rules: list[object] | None = None, **more: object) -> str:
    linux = {"devices": nodes, "resources": {"devices": [_RULE] if rules is None else rules}}
    return json.dumps({"runtimeSpec": {"linux": linux}, **more})


@pytest.mark.parametrize(
    ("info", "asked"),
    [
        pytest.param(container_info(_NODE, config={"CDI_devices": [None, {"name": "a"}]}), ("a",), id="a null name"),
        pytest.param(container_info(_NODE, config={"CDI_devices": "a"}), None, id="no list of names"),
        pytest.param(container_info(_NODE, config="a"), None, id="a text as config"),
        pytest.param(container_info({"type": "p"}, _NODE), None, id="a pipe without a path"),
        pytest.param(container_info(_NODE | {"major": "195"}), None, id="a number as text"),
        pytest.param(container_info(_NODE | {"major": 195.0}), None, id="a number with a fraction"),
        pytest.param(container_info(_NODE, rules=[{"allow": False, "major": "x"}, _RULE]), None, id="an odd denial"),
        pytest.param(container_info(_NODE, rules=[{"allow": True, "access": "rwm"}]), None, id="privileged"),
        pytest.param(container_info(_NODE, odd={"\ud800": "\ud800"}), None, id="half of a surrogate pair"),
        pytest.param(container_info(_NODE, odd=float("nan")), None, id="a number that JSON lacks"),
    ],
)
def test_odd_fields_of_a_container_hide_nothing_else(info: str, asked: tuple[str, ...] | None) -> None:
    read = parsed_container("main", info)
    (node,) = read.nodes
    assert (read.problem, read.asked) == (None, asked)
    assert (node.path, node.major, node.minor, node.allowed) == ("/dev/nvidia0", 195, 0, True)


@pytest.mark.parametrize(
    "info",
    [
        pytest.param(container_info({"path": "/dev/nvidia0", "type": "c", "minor": 0}), id="a node without its major"),
        pytest.param(container_info({"type": "c", "major": 195, "minor": 0}), id="a node without a path"),
        pytest.param(container_info(_NODE, rules=[_RULE | {"major": "x"}]), id="a rule with an odd major"),
        *("", "[]", "{}", '{"runtimeSpec": null}', '{"runtimeSpec": {"linux": {"devices": [3]}}}'),
    ],
)
def test_a_container_is_unknown_where_its_devices_are(info: str) -> None:
    """Not a device 0:0 that its cgroup does not allow."""
    read = parsed_container("main", info)
    assert (bool(read.problem), read.nodes) == (True, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1.6.20~ds1", (1, 6)), ("v1.36.2+k3s1", (1, 36)), ("2.1.9+unknown", (2, 1)), ("unknown", None), ("", None)],
)
def test_versions_as_programs_print_them(text: str, expected: tuple[int, int] | None) -> None:
    """Debian, k3s and builds from source add their own."""
    assert parse_version(text) == expected
