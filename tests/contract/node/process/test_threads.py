"""docs/internals/threads.md against the threads of started processes."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dra_driver.sim.apiserver.kinds import NODES
from dra_driver.sim.apiserver.server import ApiServer
from tests.contract.node.process.processes import Node
from tests.fakes.kubelet import DraClient, dial, register, watch_health
from tests.fakes.node_process import MpsHostProcess
from tests.fakes.simulated_gpus import SimulatedBackend

ROOT = Path(__file__).parents[4]
DRIVER = "gpu.nvidia.com"
ROW = re.compile(r"\| `(?P<name>[^`]+)` \| (?P<most>\d+) \|")


def documented(process: str) -> dict[str, int]:
    (section,) = re.findall(
        rf"^## {process}\n(.*?)(?=^## )", (ROOT / "docs/internals/threads.md").read_text(), re.M | re.S
    )
    return {re.escape(row["name"]).replace("N", r"\d+"): int(row["most"]) for row in ROW.finditer(section)}


class Child:
    """A process that answers each line on its stdin with the names of its threads, those that have ended among them."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def names(self) -> list[str]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        assert line, "the process ended"
        names: list[str] = json.loads(line)
        return names


@contextmanager
def started(command: list[str], environ: dict[str, str]) -> Iterator[Child]:
    arguments = [
        sys.executable,
        "-m",
        "tests.fakes.thread_names",
        *command[command.index("dra_driver.core.command_line.main") + 1 :],
    ]
    child = subprocess.Popen(arguments, env=environ, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Child(child)
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def undocumented(names: list[str], rows: dict[str, int]) -> list[str]:
    without_row = [name for name in names if not any(re.fullmatch(row, name) for row in rows)]
    too_many = [row for row, most in rows.items() if sum(bool(re.fullmatch(row, name)) for name in names) > most]
    return without_row + too_many


@pytest.fixture
def node(folder: Path) -> Iterator[Node]:
    api = ApiServer()
    api.start()
    api.store.create(NODES, {"metadata": {"name": "node-a"}})
    kubeconfig = str(api.kubeconfig(folder / "kubeconfig"))
    yield Node(folder, kubeconfig=kubeconfig, claim_status="true", claim_events="true", usage="true")
    api.stop()


def test_every_thread_of_a_node_process_is_documented(node: Node) -> None:
    rows = documented("Node process")
    with started(node.command(), node.environ) as child:
        child.names()  # the process has started
        register(node.registration)
        with dial(node.dra) as channel, ThreadPoolExecutor(8) as kubelet:
            client = DraClient(channel)
            calls = [kubelet.submit(client.prepare, f"uid-{n}") for n in range(4)]
            calls += [kubelet.submit(client.unprepare, f"uid-{n}") for n in range(4)]
            seen = [child.names()]
            stream = watch_health(channel, "v1")
            make_a_gpu_ill(node)
            assert len(next(stream).devices) > 0
            stream.cancel()
            with ExitStack() as asked:
                for _ in range(16):
                    asked.enter_context(ask_for_metrics(node.port))
                seen.append(child.names())
            with ask_for_metrics(node.port) as client_of_http:  # until an answer has come, and with it its thread
                client_of_http.settimeout(30)
                assert client_of_http.recv(64).startswith(b"HTTP/1.1 200")
            for call in calls:
                call.result(60)
            seen.append(child.names())
    assert [undocumented(names, rows) for names in seen] == [[]] * len(seen)
    missing = [row for row in rows if not any(re.fullmatch(row, name) for names in seen for name in names)]
    assert missing == []


def make_a_gpu_ill(node: Node) -> None:
    gpus = SimulatedBackend.from_spec(
        str(node.flags["simulate"]), "node-a", state_file=node.dra.with_name("simulated-gpus.json")
    )
    gpus.inject(gpus.snapshot().gpus[0].uuid, "xid=48")


def ask_for_metrics(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=5)
    client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    return client


def test_every_thread_of_an_mps_host_is_documented(folder: Path) -> None:
    host = MpsHostProcess(folder, folder / "plugins", DRIVER, run_dir=str(folder))
    with started(host.command(), host.environ) as child:
        names = [name for _ in range(3) for name in child.names()]
    assert set(names) - {"environ"} == set(documented("MPS host"))  # the page has that one below the table
