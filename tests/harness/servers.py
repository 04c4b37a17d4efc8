"""API servers for measuring: that of $KUBECONFIG, the embedded one, or etcd and kube-apiserver from binaries at hand,
where etcd does not sync its writes; Node objects; and the client of examples and expectations for a real cluster."""

import base64
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

from dra_driver.core.errors import DraError, NotFoundError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.server import ApiServer
from dra_driver.sim.loop import kind_of


@contextlib.contextmanager
def api_server() -> Iterator[tuple[str, str]]:
    if kubeconfig := os.environ.get("KUBECONFIG"):
        version = RestClient(Connection.load(kubeconfig)).get("/version")["gitVersion"]
        yield kubeconfig, f"the cluster in KUBECONFIG, {version}"
        return
    server = ApiServer(port=0)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield str(server.kubeconfig(Path(folder) / "kubeconfig")), "embedded"
    finally:
        server.stop()


@contextlib.contextmanager
def node_object(rest: RestClient, name: str) -> Iterator[None]:
    with contextlib.suppress(NotFoundError):
        rest.delete(f"/api/v1/nodes/{name}")
    rest.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    try:
        yield
    finally:
        rest.delete(f"/api/v1/nodes/{name}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


TOKEN = "bench-token"
READY_S = 90.0


class ControlPlane:
    def __init__(self, *, etcd: Path, apiserver: Path, folder: Path) -> None:
        certificate = _certificate(folder)
        client_port, peer_port, api_port = free_port(), free_port(), free_port()
        self._folder, self._running = folder, contextlib.ExitStack()
        self._etcd_command = _etcd(etcd, folder, client_port, peer_port)
        self._apiserver_command = _apiserver(apiserver, folder, client_port, api_port)
        self.kubeconfig = _kubeconfig(folder, api_port, certificate)

    def __enter__(self) -> Self:
        self._etcd = self._running.enter_context(started(self._etcd_command, self._folder / "etcd.log"))
        self._start_apiserver()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def pids(self) -> dict[str, int]:
        return {"etcd": self._etcd.pid, "API server": self._apiserver.pid}

    def restart_apiserver(self) -> None:
        """Kill the API server and wait until its next run is ready; etcd keeps everything."""
        self._apiserver.kill()
        self._apiserver.wait(15)
        self._start_apiserver()

    def _start_apiserver(self) -> None:
        log = self._folder / "apiserver.log"
        self._apiserver = self._running.enter_context(started(self._apiserver_command, log))
        _wait_ready(self.kubeconfig, log)


@contextlib.contextmanager
def started(
    command: Sequence[object], log: Path, environ: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as file:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=file, stderr=file, env={**os.environ, **(environ or {})}
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _certificate(folder: Path) -> Path:
    key, certificate = folder / "api.key", folder / "api.crt"
    subject = ["-subj", "/CN=kube-apiserver", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3", *subject]
    subprocess.run([*make, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    subprocess.run(["openssl", "genrsa", "-out", str(folder / "sa.key"), "2048"], check=True, capture_output=True)  # noqa: S607
    (folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    return certificate


def _etcd(etcd: Path, folder: Path, client_port: int, peer_port: int) -> list[object]:
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    return [
        *[etcd, "--data-dir", folder / "etcd", "--unsafe-no-fsync"],
        *["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer],
        *["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"],
    ]


def _apiserver(apiserver: Path, folder: Path, etcd_port: int, port: int) -> list[object]:
    key = f"{folder}/sa.key"
    return [
        *[apiserver, f"--etcd-servers=http://127.0.0.1:{etcd_port}", f"--secure-port={port}"],
        *["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"],
        *[f"--tls-cert-file={folder}/api.crt", f"--tls-private-key-file={folder}/api.key"],
        *["--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.97.0.0/16"],
        *[f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"],
        *[f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC"],
    ]


def _kubeconfig(folder: Path, port: int, certificate: Path) -> Path:
    ca = base64.b64encode(certificate.read_bytes()).decode()
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": ca}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "admin"}}],
        "current-context": "bench",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


def _wait_ready(kubeconfig: Path, log: Path) -> None:
    rest = RestClient(Connection.load(str(kubeconfig)))
    deadline = time.monotonic() + READY_S
    while True:
        try:
            # The last of the start: the class of the namespace's flow, which the first writes need.
            if rest.get_text("/readyz") == "ok":
                return
        except DraError:
            if time.monotonic() > deadline:
                raise SystemExit(f"the API server did not come up; its log ends:\n{log.read_text()[-2000:]}") from None
        time.sleep(0.2)


class RestClusterClient:
    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    def create(self, obj: Obj, namespace: str) -> Obj:
        kind = kind_of(obj)
        return self._rest.create(object_path(kind, namespace), obj)

    def find(self, kind: ResourceKind, name: str, namespace: str) -> Obj | None:
        try:
            return self._rest.get(object_path(kind, namespace, name))
        except NotFoundError:
            return None

    def list(self, kind: ResourceKind, namespace: str) -> list[Obj]:
        items: list[Obj] = self._rest.list(object_path(kind, namespace))["items"]
        return items

    def delete(self, kind: ResourceKind, name: str, namespace: str) -> None:
        """Delete the object and its dependents, as kubectl does. Does nothing if the object does not exist."""
        try:
            self._rest.delete(object_path(kind, namespace, name), propagation="Background")
        except NotFoundError:
            return

    def log(self, namespace: str, pod: str, container: str) -> str:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/log"
        return self._rest.get_text(path, {"container": container})


def object_path(kind: ResourceKind, namespace: str, name: str = "") -> str:
    root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
    inside = f"/namespaces/{quote(namespace, safe='')}" if kind.namespaced and namespace else ""
    return f"{root}{inside}/{kind.plural}" + (f"/{quote(name, safe='')}" if name else "")
