"""The whole node process from outside: its start, failures, device nodes on the host, and stop."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.hardware.gpu.simulated.root import UVM_MISSING
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.node.process.hardware import SIMULATED_ROOT
from dra_driver.sim.apiserver.server import ApiServer
from tests.contract.node.process.processes import DRIVER, NODE, POOL, Node, claim_maker, devices, events, generations
from tests.fakes.kubelet import DraClient, dial, register, watch_health
from tests.fakes.node_process import NodeProcess

UID = "b1c7e0f2-5d0a-4c61-9f7e-0f6f0a8c1d2e"


@pytest.mark.usefixtures("new_interpreters")
def test_starts_publishes_serves_and_stops_on_sigterm(rest: RestClient, node: Callable[..., Node]) -> None:
    process = node().start()
    process.wait_for(lambda: "has not registered" in process.ready()[1])
    assert process.ready()[0] == 503
    assert register(process.registration).endpoint == str(process.dra)
    process.wait_for(lambda: process.ready() == (200, "ok\n"))
    assert process.health() == (200, "ok\n")
    assert "dra_driver_registered 1.0" in process.metrics()
    before = generations(rest)
    assert len(before) == POOL
    status, seconds = process.end()
    assert (status, seconds < 5.0) == (0, True), process.text
    assert not process.registration.exists()
    assert not process.dra.exists()
    assert generations(rest) == before


def test_prepared_claim_survives_kill_9_and_restart(rest: RestClient, node: Callable[..., Node]) -> None:
    process = node().start()
    process.wait_for(lambda: len(generations(rest)) == POOL and process.dra.exists())
    maker = claim_maker(rest)
    claim = maker.make(0)
    first = process.prepare(claim)
    assert first.devices, first.error
    files, slices = process.cdi_files, generations(rest)
    process.end(signal.SIGKILL)

    again = node().start()
    again.wait_for(lambda: again.text.count("serving the kubelet") == 2)
    assert again.prepare(claim) == first
    assert again.cdi_files == files
    maker.drop(claim)
    assert not again.unprepare(claim).error
    assert [name for name in again.cdi_files if claim["uid"] in name] == []
    assert generations(rest) == slices, "a restart must not rewrite slices"


def test_two_pods_overlap_in_a_rolling_update(rest: RestClient, node: Callable[..., Node]) -> None:
    """maxSurge 1: the new pod registers while the old one still serves; both see one journal."""
    old = node(pod_uid="aaaa").start()
    old.wait_for(lambda: "serving the kubelet" in old.text)
    new = node(pod_uid="bbbb").start()
    sockets = [new.folder / "reg" / f"{DRIVER}-{uid}-reg.sock" for uid in ("aaaa", "bbbb")]
    new.wait_for(lambda: all(path.exists() for path in sockets))
    endpoints = {register(path).endpoint for path in sockets}
    assert len(endpoints) == 2
    assert old.end()[0] == 0
    assert not sockets[0].exists()
    assert register(sockets[1]).endpoint in endpoints
    status, text = node().refused()
    assert (status, "runs on this node" in text) == (2, True)


def test_api_server_that_is_down_at_start_is_waited_for(tmp_path: Path, node: Callable[..., Node]) -> None:
    server = ApiServer()
    server.start()
    kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))
    connection = Connection.load(kubeconfig)
    RestClient(connection).create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    connection.close()
    server.stop()
    process = node(kubeconfig=kubeconfig).start()
    process.register()
    process.wait_for(lambda: "no answer from the API server" in process.ready()[1])
    assert process.health() == (200, "ok\n"), "a restart would not bring the API server back"
    assert not process.unprepare({"uid": UID}).error
    back = ApiServer(successor_of=server)
    back.start()
    try:
        process.wait_for(lambda: process.ready()[0] == 200, timeout_s=40.0)
    finally:
        process.kill()
        back.stop()


@pytest.mark.parametrize("exists", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["empty-root", "no-root"])
def test_missing_nvidia_driver_is_waited_for_without_attracting_pods(
    rest: RestClient, folder: Path, node: Callable[..., Node], exists: bool
) -> None:
    """A driver is often installed after this process has started; what an earlier run offered is withdrawn."""
    earlier = node().start()
    earlier.wait_for(lambda: {"gpu-0", "gpu-1"} < set(devices(rest)))
    earlier.end()
    root = folder / "driver"
    if exists:
        root.mkdir()
    process = node(simulate=None, driver_root=str(root)).start()
    process.register()
    process.wait_for(lambda: "libnvidia-ml.so.1" in process.ready()[1])
    assert process.health()[0] == 200
    assert not process.unprepare({"uid": UID}).error
    process.wait_for(lambda: devices(rest) == [])
    assert len(generations(rest)) == 1, "the pool stays known"
    assert process.end()[0] == 0


def test_cdi_files_that_vanish_come_back_and_a_directory_in_the_way_is_named(
    rest: RestClient, node: Callable[..., Node]
) -> None:
    """The runtime restarts a container without a prepare, so no prepare would restore the files."""
    process = node().start()
    process.register()
    process.wait_for(lambda: process.ready()[0] == 200)
    maker = claim_maker(rest)
    claim = maker.make(0)
    assert process.prepare(claim).devices
    contents = {name: (process.folder / "cdi" / name).read_bytes() for name in process.cdi_files}
    assert len(contents) == 2
    shutil.rmtree(process.folder / "cdi")
    cdi = process.folder / "cdi"
    process.wait_for(lambda: cdi.exists() and len(process.cdi_files) == 2)
    assert {name: (cdi / name).read_bytes() for name in process.cdi_files} == contents
    shutil.rmtree(cdi)
    cdi.write_text("in the way")
    process.wait_for(lambda: str(cdi) in process.ready()[1])  # before a prepare fails
    assert process.health()[0] == 200, "a restart would not help"
    cdi.unlink()
    process.wait_for(lambda: process.ready()[0] == 200 and len(process.cdi_files) == 2)
    maker.drop(claim)


def test_journal_that_is_removed_makes_the_process_ask_for_its_restart(
    rest: RestClient, node: Callable[..., Node]
) -> None:
    """SQLite goes on in the unlinked file, and a successor would not see its entries."""
    process = node().start()
    process.wait_for(lambda: process.health()[0] == 200 and process.registration.exists())
    (process.dra.parent / "state.db").unlink()
    process.wait_for(lambda: "state.db was removed" in process.health()[1])
    assert process.health()[0] == 503


def test_stop_is_quick_with_a_silent_api_server_and_an_open_health_stream(
    tmp_path: Path, node: Callable[..., Node]
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        kubeconfig = tmp_path / "kubeconfig"
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        document = {
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config"} | document))
        process = node(kubeconfig=str(kubeconfig)).start()
        process.wait_for(process.dra.exists)
        with dial(process.dra) as channel:
            stream = watch_health(channel, "v1alpha1")
            client = DraClient(channel)
            request = client._messages.NodePrepareResourcesRequest(claims=[client.claim(UID)])
            stuck = client.prepare_method.future(request, timeout=45)
            time.sleep(0.3)  # let the call reach the API client, whose answer never comes
            status, seconds = process.end()
            assert (status, seconds < 5.0) == (0, True), f"{seconds}: {process.text}"
            stuck.cancel()
            stream.cancel()


LOADED = """
import sys, threading
from dra_driver.config.settings import load_node_settings
from dra_driver.node.process.plugin import NodeProcess
process = NodeProcess(load_node_settings({flags!r}, {{}}))
process.start()
assert not process.live()
from pathlib import Path
from tests.fakes.kubelet import DraClient, dial
before = set(sys.modules)
with dial(Path({dra!r})) as channel:
    answer = DraClient(channel).prepare({uid!r}, namespace={namespace!r}, name={name!r}).claims[{uid!r}]
    assert answer.devices, answer.error
process.stop()
print(" ".join(sorted(sys.modules)))
"""

OWN_PACKAGES_NOT_LOADED = (
    *("cel", "allocation", "doctor", "explain", "lint", "sim", "usage", "controller"),
    *("hardware_check", "gpu.nvml.probes"),
)
FOREIGN_PACKAGES_NOT_LOADED = (
    *("starlette", "uvicorn", "rich", "pydantic"),
    *("kubernetes", "urllib3"),  # only for a kubeconfig that needs them, see `kube.library`
)


def test_node_process_loads_only_what_it_needs(rest: RestClient, node: Callable[..., Node]) -> None:
    """One import too many in a shared package would cost every node 20 MiB."""
    process = node().start()
    process.wait_for(lambda: len(generations(rest)) == POOL)
    process.end()
    maker = claim_maker(rest)
    claim = maker.make(0)
    script = LOADED.format(flags=process.flags, dra=str(process.dra), **claim)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(__file__).parents[4],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded: set[Any] = set(done.stdout.split())
    assert "dra_driver.node.claims.workflow.service" in loaded, "the check must look at a process that has worked"
    wrong = [f"dra_driver.{name}" for name in OWN_PACKAGES_NOT_LOADED if f"dra_driver.{name}" in loaded]
    wrong += [package for package in FOREIGN_PACKAGES_NOT_LOADED if package in loaded]
    assert wrong == []
    maker.drop(claim)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"node_name": None}, "--node-name (NODE_NAME) is missing"),
        ({"node_name": "Not_A_Name"}, "--node-name (NODE_NAME): 'Not_A_Name': expected a DNS subdomain"),
        ({"http_addr": "everywhere"}, "--http-addr (HTTP_ADDR): 'everywhere': expected HOST:PORT"),
        (
            {"kubelet_registrar_dir": "/nowhere/plugins_registry"},
            "registry /nowhere/plugins_registry is not a directory",
        ),
        ({"simulate": None, "driver_root": "/nowhere/driver"}, "driver root /nowhere/driver is not a directory"),
        ({"cdi_dir": "/proc/version"}, "cannot create the CDI directory /proc/version"),
        ({"cdi_dir": "/proc/sys"}, "the CDI directory /proc/sys is not writable"),
        ({"kubeconfig": "/nowhere/kubeconfig"}, "kubeconfig /nowhere/kubeconfig does not exist"),
        ({"simulate": "3xnonsense"}, "nonsense"),
        ({"kubelet_plugins_dir": "/tmp/" + "p" * 100}, "the limit is 107"),
    ],
)
def test_wrong_configuration_ends_with_status_2_and_a_sentence(
    node: Callable[..., Node], flags: dict[str, str | None], sentence: str
) -> None:
    status, text = node(**flags).refused()
    assert status == 2, text
    last = text.splitlines()[-1]
    assert last.startswith("dra-driver: ")
    assert sentence in last
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("plugins/gpu.nvidia.com/dra.sock", "dra.sock: found a directory"),
        ("reg/gpu.nvidia.com-reg.sock", "-reg.sock: found a directory"),
        ("plugins/gpu.nvidia.com/state.db", "cannot start without a journal"),
        ("plugins/gpu.nvidia.com/simulated-root/usr/bin/nvidia-smi", "cannot start without a driver root"),
    ],
)
def test_process_that_cannot_start_has_published_nothing(
    rest: RestClient, node: Callable[..., Node], path: str, sentence: str
) -> None:
    """In a crash loop, published devices would attract pods that no process could serve."""
    process = node()
    (process.folder / path).mkdir(parents=True)
    status, text = process.refused()
    assert (status, "Traceback" in text) == (2, False), text
    assert sentence in text.splitlines()[-1]
    assert (generations(rest), process.cdi_files) == ([], [])


def test_second_process_of_one_pod_has_published_nothing(rest: RestClient, node: Callable[..., Node]) -> None:
    """Two processes with one --pod-uid share the lock; the socket detects the second before it changes anything."""
    first = node(pod_uid="aaaa").start()
    first.wait_for(lambda: len(generations(rest)) == POOL)
    smi = first.folder / "plugins" / DRIVER / "simulated-root" / "usr" / "bin" / "nvidia-smi"
    before = generations(rest), smi.read_text()
    status, text = node(pod_uid="aaaa", simulate="1xl4-24gb").refused()
    assert (status, "another process already serves" in text.splitlines()[-1]) == (2, True), text
    assert (generations(rest), smi.read_text()) == before, "the first one's containers would see other GPUs"


@pytest.mark.usefixtures("new_interpreters")
def test_settings_come_from_the_environment_too(folder: Path, kubeconfig: str) -> None:
    process = NodeProcess(folder, environ={"NODE_NAME": "Wrong", "KUBECONFIG": kubeconfig}, node_name=None)
    status, text = process.refused()
    assert (status, "'Wrong'" in text) == (2, True)


def test_port_in_use_is_a_configuration_error(node: Callable[..., Node]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, text = node(http_addr=f"127.0.0.1:{taken.getsockname()[1]}").refused()
    assert status == 2
    assert "choose another --http-addr" in text


CALL_S = 45.0
"""The kubelet's own limit."""


def prepared(rest: RestClient, running: Node) -> Any:
    return running.prepare(claim_maker(rest).make(0), CALL_S)


def numbers(path: Path) -> tuple[int, int]:
    status = path.lstat()
    assert stat.S_ISCHR(status.st_mode)
    return os.major(status.st_rdev), os.minor(status.st_rdev)


def may_make_nodes(folder: Path) -> bool:
    try:
        os.mknod(folder / "probe", stat.S_IFCHR, os.makedev(195, 0))
    except PermissionError:
        return False
    (folder / "probe").unlink()
    return True


def test_a_claims_nodes_are_on_the_host_before_the_answer(
    rest: RestClient, node: Callable[..., Node], tmp_path: Path
) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    if not may_make_nodes(dev):
        pytest.skip("this user may not make device nodes")
    stale = os.makedev(194, 0)
    os.mknod(dev / "nvidia0", stat.S_IFCHR | 0o600, stale)
    running = node(host_dev=str(dev)).start()
    running.register()
    running.wait_for(lambda: devices(rest))
    assert not prepared(rest, running).error
    assert {name: numbers(dev / name) for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")} == {
        "nvidia0": (195, 0),
        "nvidiactl": (195, 255),
        "nvidia-uvm": (510, 0),
        "nvidia-uvm-tools": (510, 1),
    }
    assert (dev / "nvidia0").stat().st_mode & 0o777 == 0o666
    assert numbers((dev / "char/195:0").resolve()) == (195, 0)
    assert os.readlink(dev / "char/510:0") == "../nvidia-uvm"  # noqa: PTH115 - not normalised
    running.wait_for((dev / "nvidia1").exists, timeout_s=20)
    assert running.ready() == (200, "ok\n")


def test_a_dev_that_cannot_be_written_is_a_warning(rest: RestClient, node: Callable[..., Node]) -> None:
    running = node(host_dev="/proc").start()
    running.register()
    running.wait_for(lambda: devices(rest))
    assert not prepared(rest, running).error
    running.wait_for(lambda: events(rest, "DeviceNodeProblem"), timeout_s=20)
    status, text = running.ready()
    assert (status, text.splitlines()[0]) == (200, "ok")
    assert "remark: the host's /dev/nvidia-uvm is not the character device 510:0: it cannot be made: " in text
    assert 'dra_driver_device_node_problems{kind="node"} 6.0' in running.metrics()


def test_without_nvidia_uvm_the_node_says_so_until_it_is_loaded(rest: RestClient, node: Callable[..., Node]) -> None:
    running = node()
    fault = running.folder / "plugins" / DRIVER / SIMULATED_ROOT / UVM_MISSING
    fault.parent.mkdir(parents=True)
    fault.touch()
    running.start()
    running.register()
    running.wait_for(lambda: "lists nvidia but not nvidia-uvm" in running.ready()[1], timeout_s=20)
    assert running.ready()[0] == 503
    running.wait_for(lambda: events(rest, "CudaUnavailable"), timeout_s=20)
    assert "modprobe nvidia-uvm" in events(rest, "CudaUnavailable")[0]
    assert devices(rest) == []
    fault.unlink()
    running.wait_for(lambda: devices(rest), timeout_s=20)
    running.wait_for(lambda: running.ready() == (200, "ok\n"), timeout_s=20)
    assert not prepared(rest, running).error
