"""The real processes of a simulated node (node process, MPS host, exporter) and the controller, as child processes."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import RetryableError
from dra_driver.sim.node.node import NodeFolders

# Longer than the node process (7 s) and the MPS host (9 s for its daemons) take to stop.
STOP_TIMEOUT_S = 10.0
# Folder of the simulated driver root in the plugin directory.
SIMULATED_ROOT = "simulated-root"
# Variables that a child needs to start. Others, such as NODE_NAME or KUBECONFIG, could change its settings.
_INHERITED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
    "VIRTUAL_ENV",
    "MALLOC_ARENA_MAX",
)


class DriverSubprocess:
    """One ``dra-driver`` subcommand. `start` after `kill` or `stop` is a restart. Not thread-safe."""

    def __init__(self, what: str, arguments: Sequence[str], log: Path) -> None:
        self._what = what
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self.command = [sys.executable, "-m", "dra_driver.core.command_line.main", *arguments]

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id, None before the first start."""
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Start the process and append its output to the log. Raises RetryableError if it cannot be started."""
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        try:
            with self._log.open("ab") as log:
                self._child = subprocess.Popen(
                    self.command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise RetryableError(f"cannot start the {self._what} {self.command}: {error}") from error

    def ask_to_stop(self) -> None:
        """Send SIGTERM without waiting, so that several processes can stop at the same time. Idempotent."""
        if self.is_running and self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def stop(self) -> int | None:
        """Send SIGTERM, after 10 s SIGKILL; returns the exit status. Idempotent."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int | None:
        return self._end(signal.SIGKILL)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log, for messages."""
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def _end(self, how: signal.Signals) -> int | None:
        if self._child is None:
            return None
        if self._child.poll() is None:
            self._child.send_signal(how)
        try:
            return self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait(STOP_TIMEOUT_S)


class NodeSubprocess(DriverSubprocess):
    """``dra-driver kubelet-plugin`` for one node; ``policies`` is its policy folder; ``usage``: it has an exporter,
    and tells claims and their pods what is found."""

    def __init__(
        self, name: str, spec: str, folders: NodeFolders, kubeconfig: Path, policies: Path, *, usage: bool = False
    ) -> None:
        arguments = [
            "kubelet-plugin",
            *("--node-name", name),
            *("--kubeconfig", str(kubeconfig)),
            *("--kubelet-registrar-dir", str(folders.registry)),
            *("--kubelet-plugins-dir", str(folders.plugins)),
            *("--cdi-dir", str(folders.cdi)),
            *("--nvidia-cdi-hook-path", "none"),
            *("--policy-dir", str(policies)),
            *("--simulate", spec),
            *(("--usage", "true", "--claim-events", "true") if usage else ()),
        ]
        super().__init__("node process", arguments, folders.log)


class MpsHostSubprocess(DriverSubprocess):
    """``dra-driver mps-host`` for one node, with the simulated driver's MPS programs.

    Runs without privileges and mount namespaces: its daemons share this user's files and one folder of shared memory,
    which no simulated client uses.
    """

    def __init__(self, driver: str, folders: NodeFolders) -> None:
        arguments = [
            "mps-host",
            *("--driver-name", driver),
            *("--kubelet-plugins-dir", str(folders.plugins)),
            *("--driver-root", str(folders.plugins / driver / SIMULATED_ROOT)),
            *("--shm-dir", str(folders.shm)),
            *("--namespaces", "none"),
        ]
        super().__init__("MPS host", arguments, folders.mps_log)


class ControllerSubprocess(DriverSubprocess):
    """``dra-driver controller`` with evictions switched on, and its Lease in namespace default.

    ``more`` are further flags.
    """

    def __init__(self, kubeconfig: Path, log: Path, more: Sequence[str] = ()) -> None:
        arguments = [
            "controller",
            *("--kubeconfig", str(kubeconfig)),
            *("--namespace", "default"),
            *("--max-evictions-per-minute", "600"),
            "--evict-extended-resource-pods",
            *more,
        ]
        super().__init__("controller", arguments, log)


HOST: Final = "127.0.0.1"
ASK_S: Final = 10.0


class ExporterSubprocess(DriverSubprocess):
    """``dra-driver exporter`` for one node. ``port``, on loopback, serves /metrics and /usage."""

    def __init__(self, name: str, spec: str, folders: NodeFolders, *, interval_s: int = 1) -> None:
        with socket.socket() as probe:  # another process may take the port before the exporter, which then says so
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
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
