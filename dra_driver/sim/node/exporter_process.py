"""The real usage exporter of a simulated node, as a child process over the files that the node shows."""

import http.client
import json
import socket
from typing import Any, Final

from dra_driver.core.errors import RetryableError
from dra_driver.sim.node.node import NodeFolders
from dra_driver.sim.node.node_process import DriverSubprocess

HOST: Final = "127.0.0.1"
ASK_S: Final = 10.0


class ExporterSubprocess(DriverSubprocess):
    """``dra-driver exporter`` for one node. ``port``, on loopback, serves /metrics and /usage."""

    def __init__(self, name: str, spec: str, folders: NodeFolders, *, interval_s: int = 1) -> None:
        self.port = _free_port()
        arguments = [
            "exporter",
            *("--node-name", name),
            *("--simulate", spec),
            *("--kubelet-plugins-dir", str(folders.plugins)),
            *("--pod-resources-socket", str(folders.pod_resources)),
            *("--proc-dir", str(folders.proc)),
            *("--log-dir", str(folders.log_links)),
            *("--http-addr", f"{HOST}:{self.port}"),
            *("--interval", str(interval_s)),
        ]
        super().__init__("usage exporter", arguments, folders.exporter_log)

    @property
    def url(self) -> str:
        """Its base URL on loopback, which has no slash at its end."""
        return f"http://{HOST}:{self.port}"

    def usage(self) -> Any:
        """What /usage answers. Raises RetryableError while it does not."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ASK_S)
        try:
            connection.request("GET", "/usage")
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise RetryableError(f"the usage exporter at {HOST}:{self.port} answers {answer.status}")
            return json.loads(body)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise RetryableError(f"the usage exporter at {HOST}:{self.port} does not answer: {error}") from error
        finally:
            connection.close()


def _free_port() -> int:
    """A port that is free now; another process may take it before the exporter does, which then says so."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
