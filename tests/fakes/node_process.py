"""The real processes of a node, run as a user would, in folders of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

WAIT_S = 15.0


class DriverProcess:
    """A subcommand of ``dra-driver`` as a child process. ``flags`` of None are left out; they count at each start."""

    def __init__(
        self, subcommand: str, folder: Path, flags: Mapping[str, str | None], environ: Mapping[str, str] | None = None
    ) -> None:
        self.subcommand = subcommand
        self.folder = folder
        self.log = folder / "log"
        self.flags = dict(flags)
        self.environ = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), **(environ or {})}
        self.interpreter = [sys.executable]
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.flags.items() if value is not None]
        return [*self.interpreter, "-m", "dra_driver.core.command_line.main", self.subcommand, *flags]

    def refused(self) -> tuple[int, str]:
        """Runs to the end and returns exit status and stderr; for a process that must not start."""
        done = subprocess.run(
            self.command(), env=self.environ, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        return done.returncode, done.stderr

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(), env=self.environ, stdout=log, stderr=log)
        return self

    def wait_for(self, condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, f"the process ended: {self.text}"
            assert time.monotonic() < deadline, f"it did not happen: {self.text}"
            time.sleep(0.05)  # conditions ask servers: more often, and the asking is most of the work

    def end(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = WAIT_S) -> tuple[int, float]:
        assert self.process is not None
        begin = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(timeout_s), time.monotonic() - begin

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def lives(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def text(self) -> str:
        return self.log.read_text()


class NodeProcess(DriverProcess):
    def __init__(self, folder: Path, *, environ: Mapping[str, str] | None = None, **flags: str | None) -> None:
        for name in ("reg", "plugins", "cdi"):
            (folder / name).mkdir(exist_ok=True)
        own: dict[str, str | None] = {
            "node_name": "node-a",
            "simulate": "2xh100-sxm5-80gb",
            "kubelet_registrar_dir": str(folder / "reg"),
            "kubelet_plugins_dir": str(folder / "plugins"),
            "cdi_dir": str(folder / "cdi"),
        }
        super().__init__("kubelet-plugin", folder, own | flags, environ)

    @property
    def registration(self) -> Path:
        return self.folder / "reg" / "gpu.nvidia.com-reg.sock"

    @property
    def dra(self) -> Path:
        return self.folder / "plugins" / "gpu.nvidia.com" / "dra.sock"

    @property
    def cdi_files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "cdi").iterdir() if not path.name.startswith("."))


class MpsHostProcess(DriverProcess):
    """``dra-driver mps-host`` for simulated GPUs whose node process has its folder below ``plugins``."""

    def __init__(self, folder: Path, plugins: Path, driver: str, **flags: str | None) -> None:
        own: dict[str, str | None] = {
            "driver_name": driver,
            "kubelet_plugins_dir": str(plugins),
            "driver_root": str(plugins / driver / "simulated-root"),
        }
        super().__init__("mps-host", folder, own | flags)


SHARED_MEMORY = "/dev/shm"


def memory_folder() -> str | None:
    """A folder in memory, as CDI directories are on nodes; None (the usual temporary folder) without one."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None
