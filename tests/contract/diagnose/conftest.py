"""An embedded cluster with the DaemonSet of the driver; a driver root with our C library as its NVML."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.gpu.simulated import root as simulated_root
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes import cuda
from tests.fakes.nvml import library
from tests.fakes.nvml.state import ENVIRONMENT, State
from tests.fakes.pods_on_nodes import DEPLOYED, NAMESPACE


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path) -> str:
    return str(api.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def cluster(kubeconfig: str) -> Iterator[RestClient]:
    connection = Connection.load(kubeconfig)
    client = RestClient(connection)
    client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    client.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets", DEPLOYED)
    client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-7"}})
    yield client
    connection.close()


@pytest.fixture
def signals() -> Iterator[None]:
    """For commands that set handlers of the process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


SPEC = "2xh100-sxm5-80gb,1xl4-24gb,1xa100-sxm4-40gb"
ROOT = Path(__file__).parents[3]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
MAIN = ("-m", "dra_driver.core.command_line.main")


def run_python(
    *arguments: str, environment: Mapping[str, str] = os.environ, cwd: Path = ROOT, timeout: float = 90
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = library.reason_why_not()
    if reason is not None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("root")
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    library.build(folder)
    return root


PROBE = """
from pathlib import Path
from dra_driver.diagnose.hardware import mounts
mounts.enter()
mounts.plain_dev(Path("/dev"))
"""


@pytest.fixture(scope="session")
def mounts_work() -> None:
    """Root in a container may lack the rights to mount and to make device nodes."""
    done = run_python("-c", PROBE, timeout=30)
    if done.returncode != 0:
        pytest.skip(f"no mount namespaces here: {done.stderr.splitlines()[-1]}")


@pytest.fixture
def whole_root(driver_root: Path, mounts_work: None) -> Iterator[Path]:
    """A simulated driver's root with our C libraries for NVML and CUDA, below a folder that MPS does not cover."""
    folder = Path(tempfile.mkdtemp(prefix="dra-root-", dir="/var/tmp"))
    node = parse_groups(SPEC, "node-a")
    snapshot = Snapshot(
        driver_version=node.driver_version,
        cuda_driver_version=node.cuda_driver_version,
        gpus=tuple(one.gpu for one in node.gpus),
    )
    simulated_root.write(folder, snapshot)
    libraries = folder / f"usr/lib/{os.uname().machine}-linux-gnu"
    real = libraries / f"libnvidia-ml.so.{snapshot.driver_version}"
    real.unlink()
    shutil.copy(next(driver_root.rglob("libnvidia-ml.so.1")), real)
    (libraries / f"libcuda.so.{snapshot.driver_version}").unlink()
    cuda.build(libraries / f"libcuda.so.{snapshot.driver_version}")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def state(driver_root: Path, tmp_path: Path) -> Iterator[State]:
    state = State.create(tmp_path / "state", parse_groups(SPEC, "node-a"))
    yield state
    state.close()


@pytest.fixture
def environment(tmp_path: Path, driver_root: Path, state: State) -> dict[str, str]:
    """The settings of the node process, with folders of the test; below the host's root no process computes."""
    process = tmp_path / "host/proc/2"
    process.mkdir(parents=True)
    (process / "comm").write_text("kthreadd\n")
    return {
        "HOST_ROOT": str(tmp_path / "host"),
        **os.environ,
        ENVIRONMENT: str(state.path),
        "DRIVER_ROOT": str(driver_root),
        "KUBELET_PLUGINS_DIR": str(tmp_path / "plugins"),
        "TMPDIR": str(tmp_path),
    }


@pytest.fixture
def command(environment: dict[str, str], tmp_path: Path) -> Command:
    """Runs ``dra-driver hardware-check`` with arguments, in the test's folder."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return run_python(*MAIN, "hardware-check", *arguments, environment=environment, cwd=tmp_path)

    return run
