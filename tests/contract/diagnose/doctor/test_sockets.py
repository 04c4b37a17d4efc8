"""The doctor's questions to container runtimes and plugins, over real sockets."""

import http.server
import json
import shutil
import socketserver
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.config.settings import NodeSettings
from dra_driver.core._pb.cri_v1 import api_pb2 as cri
from dra_driver.core._pb.pluginregistration import api_pb2 as registration
from dra_driver.diagnose.doctor.node_kubelet import PluginWords, get_info, read_sockets
from dra_driver.diagnose.doctor.node_runtime import CriClient, CriError, read_runtime
from dra_driver.diagnose.doctor.node_view import HostView
from tests.harness.raising import fails


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: socket paths end at 107 characters."""
    path = Path(tempfile.mkdtemp(prefix="ds"))
    yield path
    shutil.rmtree(path)


@contextmanager
def serving(path: Path, service: str, messages: Any, answers: Mapping[str, Any]) -> Iterator[list[Any]]:
    """A gRPC server on a unix socket that gives each method one answer; yields the requests that came."""
    came: list[Any] = []
    methods = messages.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods_by_name

    def handler(name: str, answer: Any) -> "grpc.RpcMethodHandler[Any, Any]":
        def reply(request: Any, _context: object) -> Any:
            came.append(request)
            return answer

        return grpc.unary_unary_rpc_method_handler(
            reply,
            request_deserializer=getattr(messages, methods[name].input_type.name).FromString,
            response_serializer=type(answer).SerializeToString,
        )

    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {name: handler(name, answer) for name, answer in answers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield came
    finally:
        server.stop(None).wait()


def test_a_runtime_tells_version_configuration_and_containers(folder: Path) -> None:
    path = folder / "cri.sock"
    config = {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"]}
    status = cri.StatusResponse(info={"config": json.dumps(config)})
    status.status.conditions.add(type="RuntimeReady", status=True)
    status.status.conditions.add(type="NetworkReady", status=False, reason="NoCni", message="no network")
    listed = cri.ListContainersResponse()
    listed.containers.add(id="a", metadata=cri.ContainerMetadata(name="main"), state=cri.CONTAINER_RUNNING)
    listed.containers.add(id="b", metadata=cri.ContainerMetadata(name="old"), state=cri.CONTAINER_EXITED)
    answers = {
        "Version": cri.VersionResponse(runtime_name="containerd", runtime_version="v2.1.9"),
        "Status": status,
        "ListContainers": listed,
        "ContainerStatus": cri.ContainerStatusResponse(info={"info": "{}"}),
    }
    with serving(path, "runtime.v1.RuntimeService", cri, answers) as came:
        client = CriClient(str(path), call_s=30)
        try:
            assert client.version() == ("containerd", "2.1.9")
            not_ready, info = client.status()
            assert client.containers("team-a", "train") == (("main", "a"),)
            assert client.container("a") == {"info": "{}"}
        finally:
            client.close()
        facts = read_runtime(HostView(settings=NodeSettings(node_name="n"), cri_socket=str(path)), None)
    assert not_ready == ("NetworkReady is false (NoCni): no network",)
    assert json.loads(info["config"]) == config
    assert (facts.cdi, facts.cdi_dirs, facts.problem) == (True, ("/etc/cdi", "/var/run/cdi"), None)
    labels = {"io.kubernetes.pod.namespace": "team-a", "io.kubernetes.pod.name": "train"}
    assert dict(came[2].filter.label_selector) == labels


def test_a_runtime_without_an_answer_is_one_sentence(folder: Path) -> None:
    path = folder / "cri.sock"
    with serving(path, "runtime.v1.RuntimeService", cri, {}):
        facts = read_runtime(HostView(settings=NodeSettings(node_name="n"), cri_socket=str(path)), None)
    assert facts.problem is not None
    assert "Version failed with UNIMPLEMENTED" in facts.problem


class Crio(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n'
        self.send_response(200 if self.path == "/config" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_arguments: object) -> None:
        pass


def test_crio_tells_its_configuration_by_http(folder: Path) -> None:
    path = folder / "crio.sock"
    with socketserver.UnixStreamServer(str(path), Crio) as server:
        thread = threading.Thread(target=server.serve_forever, name="crio", daemon=True)
        thread.start()
        client = CriClient(str(path), call_s=30)
        try:
            assert 'cdi_spec_dirs = ["/etc/cdi"]' in client.crio_config()
        finally:
            client.close()
            server.shutdown()
            thread.join()
    with fails(CriError, "ConfigUnanswered"):
        CriClient(str(path)).crio_config()


def test_a_plugin_says_who_it_is(folder: Path) -> None:
    """As the kubelet asks it; an endpoint that is left out is the socket itself."""
    registry = folder / "reg"
    registry.mkdir()
    path = registry / "gpu.nvidia.com-reg.sock"
    settings = NodeSettings(node_name="n", kubelet_registrar_dir=str(registry), kubelet_plugins_dir=f"{folder}/plugins")
    answer = registration.PluginInfo(type="DRAPlugin", name="gpu.nvidia.com", supported_versions=["v1.DRAPlugin"])
    with serving(path, "pluginregistration.Registration", registration, {"GetInfo": answer}):
        words = get_info(str(path))
        facts = read_sockets(HostView(settings=settings))
    assert words == PluginWords(driver="gpu.nvidia.com", endpoint=str(path), versions=("v1.DRAPlugin",))
    assert facts.registry is not None
    (socket,) = facts.registry
    assert (socket.served, socket.words, socket.endpoint_served) == (True, words, True)
