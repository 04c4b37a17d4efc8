"""etcd and kube-apiserver from binaries at hand, for measuring; without other controllers.

etcd does not sync its writes: both drivers read through the API server, and neither waits for etcd's disk.
"""

import base64
import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from dra_driver.core.errors import DraError
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient

TOKEN = "bench-token"
READY_S = 90.0


@contextlib.contextmanager
def control_plane(*, etcd: Path, apiserver: Path, folder: Path) -> Iterator[Path]:
    """Run both; yields a kubeconfig with all rights."""
    with ControlPlane(etcd=etcd, apiserver=apiserver, folder=folder) as plane:
        yield plane.kubeconfig


class ControlPlane:
    """Both processes, from the start of the block to its end."""

    def __init__(self, *, etcd: Path, apiserver: Path, folder: Path) -> None:
        certificate = _certificate(folder)
        client_port, peer_port, api_port = _free_ports(3)
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
        """Process ids by name."""
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
    """Run a process until the end of the block; its output goes to ``log``."""
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


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


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
