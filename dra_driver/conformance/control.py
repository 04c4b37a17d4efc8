"""Kill and start a driver: by a command of the user, or as a child of this process; and run this project's own driver.

Of its simulated GPUs, policies taint the first and share the second.
"""

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from dra_driver.conformance.values import UnableError
from dra_driver.core.errors import ConfigurationError

COMMAND_S: Final = 60.0
STOP_S: Final = 15.0
MAX_OUTPUT: Final = 400


class CommandControl:
    """``--restart-command``: kills the driver and starts it again. The command must exit with 0."""

    def __init__(self, command: str) -> None:
        """Raises ConfigurationError for a command that cannot be split into words."""
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigurationError(f"--restart-command {command[:80]!r} cannot be read: {error}") from error
        if not self._words:
            raise ConfigurationError("--restart-command is empty")

    def restart(self) -> None:
        # A file and not a pipe: the driver that the command starts in the background may keep it and write to it.
        with tempfile.TemporaryFile() as output:
            self._run(output)

    def _run(self, said: IO[bytes]) -> None:
        quiet = subprocess.DEVNULL
        try:
            child = subprocess.Popen(self._words, stdin=quiet, stdout=quiet, stderr=said, start_new_session=True)
        except OSError as error:
            raise UnableError(f"--restart-command cannot be started: {error}") from error
        try:
            status = child.wait(COMMAND_S)
        except subprocess.TimeoutExpired as error:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(STOP_S)
            raise UnableError(f"--restart-command did not end within {COMMAND_S:g} s") from error
        if status != 0:
            said.seek(0)
            text = said.read(MAX_OUTPUT).decode("utf-8", "replace").strip()
            raise UnableError(f"--restart-command ended with status {status}: {text}")


class ChildControl:
    """Run the driver in the foreground as a child of this process; `stop` it at the end."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._command = list(command)
        self._environ = dict(environ)
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises ConfigurationError if the command cannot be started."""
        quiet = subprocess.DEVNULL
        try:
            with self._log.open("ab") as log:
                self._child = subprocess.Popen(
                    self._command, env=self._environ, stdin=quiet, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise ConfigurationError(f"the driver {self._command[0]} cannot be started: {error}") from error

    def restart(self) -> None:
        self._end(signal.SIGKILL)
        self.start()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL. Idempotent."""
        self._end(signal.SIGTERM)

    def log_tail(self, lines: int = 10) -> str:
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def _end(self, how: signal.Signals) -> None:
        """End the child's whole process group, so that a wrapping shell does not leave the driver behind."""
        if self._child is None:
            return
        for number in (how, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_S)
                break
        self._child = None


POLICIES: Final = """\
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: tainted}
spec:
  select: {minors: [0]}
  taints: [{key: conformance.dra-driver.io/tainted, value: "yes"}]
---
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: shared}
spec: {select: {minors: [1]}, sharing: {strategy: TimeSlicing}}
"""


def own_driver(program: Sequence[str], spec: str, folder: Path, *, kubeconfig: str, node: str) -> list[str]:
    """Return the command line. Creates the directories that it names."""
    for name in ("reg", "plugins", "cdi", "policies"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "policies" / "policies.yaml").write_text(POLICIES)
    return [
        *(*program, "kubelet-plugin"),
        *("--node-name", node),
        *("--kubeconfig", kubeconfig),
        *("--kubelet-registrar-dir", str(folder / "reg")),
        *("--kubelet-plugins-dir", str(folder / "plugins")),
        *("--cdi-dir", str(folder / "cdi")),
        *("--policy-dir", str(folder / "policies")),
        *("--nvidia-cdi-hook-path", "none"),
        *("--simulate", spec),
    ]
