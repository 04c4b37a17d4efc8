"""Asks a container runtime by the Container Runtime Interface (CRI), and CRI-O for its configuration.

Only questions: Version, Status, ListContainers and ContainerStatus of RuntimeService. The messages are those fields of
kubernetes/kubernetes v1.36, staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto that are read here.

CRI-O's Status tells nothing of CDI, but its socket answers HTTP as well: ``GET /config`` gives the configuration in
force as TOML (cri-o, server/inspect.go, InspectConfigEndpoint), which ``crio status config`` prints.
"""

import http.client
import socket
from collections.abc import Mapping
from typing import Any, Final

from dra_driver.core._pb.cri_v1 import api_pb2 as pb
from dra_driver.core.errors import RetryableError
from dra_driver.core.unix_grpc import CallError, Peer, Service, shown

CALL_S: Final = 10.0
MAX_CONFIG: Final = 1 << 20
RUNTIME: Final = Service(pb, "RuntimeService")


class CriError(RetryableError):
    """The runtime gave no answer; the message says why."""


class CriClient:
    """One runtime on one socket; every call takes at most ``call_s`` seconds. Close it."""

    def __init__(self, path: str, call_s: float = CALL_S) -> None:
        self._path, self._call_s = path, call_s
        self._peer = Peer(path)

    def close(self) -> None:
        """Idempotent."""
        self._peer.close()

    def version(self) -> tuple[str, str]:
        """Name and version of the runtime, such as ``containerd`` and ``1.7.27``. Raises CriError."""
        answer = self._call("Version", pb.VersionRequest(version="v1"))
        return shown(answer.runtime_name), shown(answer.runtime_version).removeprefix("v")

    def status(self) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Conditions that do not hold, as sentences, and the verbose information. Raises CriError."""
        answer = self._call("Status", pb.StatusRequest(verbose=True))
        failed = (
            f"{shown(each.type)} is false ({shown(each.reason)}): {shown(each.message)}"
            for each in answer.status.conditions
            if not each.status
        )
        return tuple(failed), dict(answer.info)

    def containers(self, namespace: str, pod: str) -> tuple[tuple[str, str], ...]:
        """Name and id of each running container of a pod. Raises CriError."""
        labels = {"io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.name": pod}
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=labels))
        answer = self._call("ListContainers", request)
        running = (each for each in answer.containers if each.state == pb.CONTAINER_RUNNING)
        return tuple((shown(each.metadata.name), str(each.id)) for each in running)

    def container(self, container_id: str) -> Mapping[str, str]:
        """The verbose information about a container. Raises CriError."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        return dict(self._call("ContainerStatus", request).info)

    def crio_config(self) -> str:
        """CRI-O's configuration as TOML. Raises CriError."""
        connection = _UnixConnection(self._path, self._call_s)
        try:
            connection.request("GET", "/config", headers={"Host": "crio"})
            answer = connection.getresponse()
            body = answer.read(MAX_CONFIG)
        except (OSError, http.client.HTTPException) as error:
            raise CriError(f"CRI-O at {self._path} did not tell its configuration: {error}") from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise CriError(f"CRI-O at {self._path} did not tell its configuration: HTTP status {answer.status}")
        return body.decode("utf-8", "replace")

    def _call(self, method: str, request: Any) -> Any:
        try:
            return self._peer.call(RUNTIME, method, request, self._call_s)
        except CallError as error:
            raise CriError(f"the container runtime at {self._path}: {error}") from error


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
