"""The real node process of a simulated node, as a child process with folders of its own.

Owns its command line, environment, log file and end. Refuses to know what it does.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from dra_driver.errors import RetryableError
from dra_driver.sim.node import NodeFolders

STOP_TIMEOUT_S = 7.0
# What a child needs to start; anything else, NODE_NAME or KUBECONFIG say, could change what it does.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")


class NodeProcess:
    """``dra-driver kubelet-plugin`` for one node. `start` after `kill` or `stop` is a restart; one owner."""

    def __init__(self, name: str, spec: str, folders: NodeFolders, kubeconfig: Path) -> None:
        self._log = folders.log
        self._child: subprocess.Popen[bytes] | None = None
        self.command = [
            *(sys.executable, "-m", "dra_driver.cli.main", "kubelet-plugin"),
            *("--node-name", name),
            *("--kubeconfig", str(kubeconfig)),
            *("--kubelet-registrar-dir", str(folders.registry)),
            *("--kubelet-plugins-dir", str(folders.plugins)),
            *("--cdi-dir", str(folders.cdi)),
            *("--nvidia-cdi-hook-path", "none"),
            *("--simulate", spec),
        ]

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        """Its process id, None before the first start."""
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Start it; its output is appended to the log. Raises RetryableError when it cannot be started."""
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
            raise RetryableError(f"cannot start the node process {self.command}: {error}") from error

    def stop(self) -> int | None:
        """SIGTERM, and SIGKILL if that is not enough; the exit status. Idempotent."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int | None:
        """SIGKILL: no chance to clean up."""
        return self._end(signal.SIGKILL)

    def log_tail(self, lines: int = 20) -> str:
        """The newest lines of its log, for messages."""
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
