"""A simulated driver's programs, an MPS host that is a real process, and a client."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.simulated import root as simulated_root
from dra_driver.hardware.sharing.mps import MpsClient
from dra_driver.hardware.sharing.mps_files import MpsFolders
from tests.fakes.sharing import FakeGpuNotes
from tests.fakes.simulated_gpus import SimulatedBackend

DRIVER = "gpu.nvidia.com"


def until(holds: Callable[[], object], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {within_s} s")
        time.sleep(0.02)


class Node:
    """Driver root, plugin directory, hosts and a client of one simulated node."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        self.plugins = base / "plugins"
        self.backend = SimulatedBackend.from_spec("2xh100-sxm5-80gb", "node")
        self.backend.open()
        simulated_root.write(self.root, self.backend.snapshot())
        self.gpus = tuple(gpu.uuid for gpu in self.backend.snapshot().gpus)
        self.notes = FakeGpuNotes()
        self.client = MpsClient(self.plugins / DRIVER / "mps", self.backend, self.notes)
        self.folders = MpsFolders(self.plugins / DRIVER / "mps")
        self.hosts: list[subprocess.Popen[bytes]] = []
        self.wrapper: tuple[str, ...] = ()  # a program that starts the host

    def start_host(self, *more: str) -> "subprocess.Popen[bytes]":
        """``dra-driver mps-host``; returns when it holds the lock."""
        arguments = {
            "--kubelet-plugins-dir": str(self.plugins),
            "--driver-name": DRIVER,
            "--driver-root": str(self.root),
            "--shm-dir": str(self.base / "shm"),
            "--run-dir": str(self.base / "run"),
            "--namespaces": "none",
        } | dict(zip(more[::2], more[1::2], strict=True))
        with (self.base / f"host-{len(self.hosts)}.log").open("wb") as log:
            host = subprocess.Popen(
                [
                    *self.wrapper,
                    sys.executable,
                    "-m",
                    "dra_driver.core.command_line.main",
                    "mps-host",
                    *(word for pair in arguments.items() for word in pair),
                ],
                stderr=log,
                stdout=log,
            )
        self.hosts.append(host)
        root = Path(arguments["--kubelet-plugins-dir"], arguments["--driver-name"], "mps")
        until(lambda: MpsFolders(root).host_lives() or host.poll() is not None)
        return host

    def host_log(self) -> str:
        return (self.base / f"host-{len(self.hosts) - 1}.log").read_text()

    def fault(self, name: str, text: str = "") -> Path:
        path = self.root / simulated_root.FAULTS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def control_script(self, text: str) -> None:
        path = self.root / "usr/bin/nvidia-cuda-mps-control"
        path.unlink()
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def processes(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"DRA_DRIVER_MPS_DAEMON={self.folders.daemons}/".encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def mounts(self) -> dict[str, str]:
        lines = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
        return {path: options for _, path, _, options, *_ in lines if path.startswith(f"{self.base}/")}

    def close(self) -> None:
        for host in self.hosts:
            if host.poll() is None:
                host.terminate()
        for host in self.hosts:
            try:
                host.wait(timeout=12)
            except subprocess.TimeoutExpired:
                host.kill()
                host.wait(timeout=5)
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


def copy_program(name: str, root: Path) -> None:
    """A program and its libraries into ``root``, as a driver container would have them."""
    source = Path(shutil.which(name) or name)
    linked = subprocess.run(["/usr/bin/ldd", str(source)], capture_output=True, text=True, check=True).stdout
    for path in (source, *(Path(word) for word in linked.split() if word.startswith("/"))):
        target = root / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path.resolve(), target)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


@pytest.fixture
def private_node() -> Iterator[Node]:
    """A node whose files are not below /tmp, which daemons with namespaces of their own do not see."""
    probe = subprocess.run(["/usr/bin/unshare", "-m", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no mount namespaces here: {probe.stderr.strip()}")
    base = Path(tempfile.mkdtemp(dir="/var/tmp"))
    made = Node(base)
    yield made
    made.close()
    for path in made.mounts():
        subprocess.run(["/usr/bin/umount", path], check=True)
    shutil.rmtree(base)
