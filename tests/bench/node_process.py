"""A node process under measurement: started as a user does, observed through /proc and its socket."""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import grpc

from dra_driver.core._pb.dra_v1 import api_pb2
from tests.bench.report import cpu_s, rss_mib

SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
CALL_TIMEOUT_S = 45.0


class NodeProcess:
    """``dra-driver kubelet-plugin`` with simulated GPUs in folders of its own; a context manager."""

    def __init__(self, *, kubeconfig: str, node: str, spec: str) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="dra-bench-"))
        self._log = (self._root / "log").open("wb")
        self.started_at = time.monotonic()
        self._process = subprocess.Popen(
            [
                *[sys.executable, "-m", "dra_driver.core.command_line.main", "kubelet-plugin"],
                *["--kubeconfig", kubeconfig, "--node-name", node, "--simulate", spec],
                *["--kubelet-registrar-dir", str(self._dir("reg")), "--kubelet-plugins-dir", str(self._dir("plugins"))],
                *["--cdi-dir", str(self._dir("cdi")), "--http-addr", ""],
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def _dir(self, name: str) -> Path:
        path = self._root / name
        path.mkdir(exist_ok=True)
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> float:
        """Seconds from the start of the process until ``condition`` holds."""
        while not condition():
            if self._process.poll() is not None or time.monotonic() - self.started_at > timeout_s:
                raise SystemExit("the node process did not get there; its log:\n" + (self._root / "log").read_text())
            time.sleep(0.005)
        return time.monotonic() - self.started_at

    @property
    def socket(self) -> Path:
        return self._root / "plugins" / "gpu.nvidia.com" / "dra.sock"

    def rss_mib(self) -> float:
        return rss_mib(self._process.pid)

    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)


class Kubelet:
    """The two calls of the kubelet, timed."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        grpc.channel_ready_future(self._channel).result(timeout=20)
        self._prepare = self._method("NodePrepareResources", api_pb2.NodePrepareResourcesResponse)
        self._unprepare = self._method("NodeUnprepareResources", api_pb2.NodeUnprepareResourcesResponse)

    def _method(self, name: str, response: Any) -> Any:
        return self._channel.unary_unary(
            f"{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )

    def prepare(self, claim: Mapping[str, str]) -> float:
        request = api_pb2.NodePrepareResourcesRequest(claims=[api_pb2.Claim(**claim)])
        return self._timed(self._prepare, request, claim["uid"])

    def unprepare(self, claim: Mapping[str, str]) -> float:
        request = api_pb2.NodeUnprepareResourcesRequest(claims=[api_pb2.Claim(**claim)])
        return self._timed(self._unprepare, request, claim["uid"])

    @staticmethod
    def _timed(call: Any, request: Any, uid: str) -> float:
        start = time.perf_counter()
        response = call(request, timeout=CALL_TIMEOUT_S)
        elapsed = time.perf_counter() - start
        if response.claims[uid].error:
            raise SystemExit(f"the driver answered: {response.claims[uid].error}")
        return elapsed
