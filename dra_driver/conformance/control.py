"""Kill and start a driver, by a command of the user or as a child of this process, and run this project's driver.

Policies taint the first simulated GPU and share the second. All further GPUs recover from a fault immediately.
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
    """A command of the user, which must exit with 0. ``--restart-command`` kills the driver and starts it again."""

    def __init__(self, command: str | Sequence[str], option: str = "--restart-command") -> None:
        """Raises ConfigurationError for a command that cannot be split into words."""
        self._option = option
        try:
            self._words = shlex.split(command) if isinstance(command, str) else list(command)
        except ValueError as error:
            raise ConfigurationError(
                f"cannot parse {option} {command[:80]!r}: {error}", reason="InvalidCommand"
            ) from error
        if not self._words:
            raise ConfigurationError(f"{option} is empty", reason="InvalidCommand")

    def restart(self) -> None:
        self.run()

    def run(self, **values: str) -> None:
        """Run the command with values for each ``{name}``. Raises UnableError."""
        words = self._words
        for name, value in values.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        # A file and not a pipe: a driver that the command starts in the background may keep it and write to it.
        with tempfile.TemporaryFile() as output:
            self._run(words, output)

    def _run(self, words: Sequence[str], said: IO[bytes]) -> None:
        quiet = subprocess.DEVNULL
        try:
            child = subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=said, start_new_session=True)
        except OSError as error:
            raise UnableError(f"cannot start {self._option}: {error}", reason="NotStarted") from error
        try:
            status = child.wait(COMMAND_S)
        except subprocess.TimeoutExpired as error:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(STOP_S)
            raise UnableError(f"{self._option} did not end within {COMMAND_S:g} s", reason="TimedOut") from error
        if status != 0:
            said.seek(0)
            text = said.read(MAX_OUTPUT).decode("utf-8", "replace").strip()
            raise UnableError(
                f"{self._option} ended with status {status}: {text}", reason="CommandFailed", status=status
            )


class CommandFaults:
    """``--break-command`` and ``--repair-command``, with values for ``{device}`` and ``{pool}``."""

    def __init__(self, inject: str | Sequence[str], recover: str | Sequence[str]) -> None:
        """Raises ConfigurationError as `CommandControl`."""
        self._inject = CommandControl(inject, "--break-command")
        self._recover = CommandControl(recover, "--repair-command")

    def inject(self, pool: str, device: str) -> None:
        self._inject.run(pool=pool, device=device)

    def recover(self, pool: str, device: str) -> None:
        self._recover.run(pool=pool, device=device)


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
            raise ConfigurationError(
                f"cannot start the driver {self._command[0]}: {error}", reason="NotStarted"
            ) from error

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
        """End the child's whole process group, so that no driver survives a wrapping shell."""
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
---
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: recovers-at-once}
spec: {select: {minors: [2, 3, 4, 5, 6, 7]}, health: {calmSeconds: 0}}
"""


def own_driver(program: Sequence[str], spec: str, folder: Path, *, kubeconfig: str, node: str) -> list[str]:
    """Return the command line. Creates its directories."""
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


def own_faults(program: Sequence[str], *, kubeconfig: str, node: str) -> CommandFaults:
    """Faults of simulated GPUs."""
    end = ("--kubeconfig", kubeconfig, "--wait", "0")
    return CommandFaults(
        [*program, "sim", "inject", node, "{device}", "recovery-action", *end],
        [*program, "sim", "recover", node, "{device}", *end],
    )


def simulated_root(folder: Path) -> Path:
    """The driver root of the simulated GPUs, with the kernel's list of their device numbers."""
    return folder / "plugins" / "gpu.nvidia.com" / "simulated-root"
