"""One node of the embedded cluster: the real node process, MPS host and exporter, and the controller, as child
processes, with the simulated kubelet and the check for leftovers."""

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import AlreadyExistsError, RetryableError
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.kinds import NAMESPACES, PODS
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.node.network import NetworkDriver
from dra_driver.sim.node.node import NodeFolders, SimulatedKubelet
from dra_driver.sim.objects import uid

# Longer than the node process (7 s) and the MPS host (9 s for its daemons) take to stop.
STOP_TIMEOUT_S = 10.0
# Folder of the simulated driver root in the plugin directory.
SIMULATED_ROOT = "simulated-root"
# Variables that a child needs to start. Others, such as NODE_NAME or KUBECONFIG, could change its settings.
_INHERITED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV",
    "MALLOC_ARENA_MAX",
)  # fmt: skip


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
    """``dra-driver kubelet-plugin`` for one node, with policy directory ``policies``. ``usage``: it has an exporter and
    reports findings to claims and their pods."""

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
    """``dra-driver mps-host`` for one node, with the simulated driver's MPS programs. Runs without privileges: its
    daemons share this user's files and one directory of shared memory, which no simulated client uses."""

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
    """``dra-driver controller`` with evictions enabled, its Lease in namespace default, and ``more`` flags."""

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
        return f"http://{HOST}:{self.port}"

    def usage(self) -> Any:
        """Return the answer of /usage. Raises RetryableError without an answer."""
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


NAMESPACE: Final = "dra-driver"
PORT: Final = 8082  # the port of the chart's exporter; what answers for it is the process' own port on loopback
_LABELS: Final = {"app.kubernetes.io/name": "dra-driver", "app.kubernetes.io/component": "exporter"}


DRIVER = "gpu.nvidia.com"
SIMULATED_STATE = "simulated-gpus.json"  # state file of the simulated GPUs, in the node process' plugin directory


class ClusterNode:
    """One node. Kubelet, node process and MPS host can be stopped and started separately."""

    def __init__(
        self,
        store: Store,
        name: str,
        spec: str,
        *,
        folders: NodeFolders,
        kubeconfig: Path,
        policies: Path,
        number: int,
        usage: bool = False,
        nics: bool = False,
    ) -> None:
        self.name = name
        self.spec = spec
        self.folders = folders
        self._store = store
        self._number = number
        self.process = NodeSubprocess(name, spec, folders, kubeconfig, policies, usage=usage)
        self.exporter = ExporterSubprocess(name, spec, folders) if usage else None
        self.mps_host = MpsHostSubprocess(DRIVER, folders)
        self.kubelet = SimulatedKubelet(store, name, folders, number=number)
        self.network: NetworkDriver | None = None
        if nics:
            gpus, rest = (
                SimulatedBackend.from_spec(spec, name).snapshot().gpus,
                RestClient(Connection.load(str(kubeconfig))),
            )
            self.network = NetworkDriver(name, gpus, rest, registry=folders.registry, plugins=folders.plugins)
        self._exporter_uid = ""

    @property
    def processes(self) -> list[DriverSubprocess]:
        """The child processes, in the order of their stop."""
        return [self.process, self.mps_host, *([self.exporter] if self.exporter is not None else [])]

    def start_exporter(self) -> None:
        """Start the usage exporter and create its pod once, if the node has one."""
        if self.exporter is None:
            return
        self.exporter.start()
        with suppress(AlreadyExistsError):
            self._store.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        name, ports = f"dra-driver-exporter-{self._number}", [{"name": "metrics", "containerPort": PORT}]
        container = {"name": "exporter", "image": "dra-driver", "ports": ports}
        spec = {"nodeName": self.name, "containers": [container], "tolerations": [{"operator": "Exists"}]}
        self._store.ports.serve(NAMESPACE, name, PORT, self.exporter.port)
        pod = {"metadata": {"name": name, "labels": _LABELS}, "spec": spec}
        self._exporter_uid = uid(self._store.create(PODS, pod, namespace=NAMESPACE))

    def restart_kubelet(self) -> None:
        """Stop the kubelet and start a new one, which deletes the node's slices at its start as the real one does."""
        self.kubelet.stop()
        self.kubelet = SimulatedKubelet(self._store, self.name, self.folders, number=self._number)
        self.kubelet.start()

    def claim_files(self) -> list[Path]:
        return sorted(self.folders.cdi.glob(f"k8s.{DRIVER}-claim_*"))

    def journal_rows(self) -> int:
        """Number of claims in the node process' journal; 0 before the journal exists."""
        path = self.folders.plugins / DRIVER / "state.db"
        if not path.exists():
            return 0
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as connection:
            return int(connection.execute("SELECT count(*) FROM claim").fetchone()[0])

    def mps_daemons(self) -> list[str]:
        """Ids of MPS daemons whose folders exist: requested and not removed yet."""
        return sorted(path.name for path in (self.folders.plugins / DRIVER / "mps" / "daemons").glob("*"))

    def changed_gpus(self) -> list[str]:
        """Simulated GPUs that differ from their specification: MIG instances, MIG mode, compute mode."""
        path = self.folders.plugins / DRIVER / SIMULATED_STATE
        if not path.exists():
            return []
        now = SimulatedBackend.from_spec(self.spec, self.name, state_file=path)
        described = SimulatedBackend.from_spec(self.spec, self.name)
        return [
            f"{gpu.uuid} has {len(gpu.mig_instances)} MIG instances, MIG mode {'on' if gpu.mig_enabled else 'off'}, "
            f"compute mode {now.compute_mode(gpu.uuid).name}"
            for gpu in now.snapshot().gpus
            if gpu != described.snapshot().gpu_by_uuid(gpu.uuid)
            or now.compute_mode(gpu.uuid) != described.compute_mode(gpu.uuid)
        ]

    def leftovers(self) -> list[str]:
        """Return leftovers of claims, one sentence each."""
        rows, folders = self.journal_rows(), [path.name for path in self.folders.views.iterdir()]
        return [
            *(f"CDI document {path.name}" for path in self.claim_files()),
            *(
                f"metadata file {path.name}"
                for path in sorted((self.folders.plugins / DRIVER).glob("dra-device-metadata/*"))
            ),
            *([f"{rows} claims in the journal"] if rows else []),
            *(f"container folder {pod}" for pod in folders if pod != self._exporter_uid),
            *(f"the kubelet still has claims of pod {pod}" for pod in self.kubelet.dra.state.pods()),
            *(f"MPS daemon {daemon}" for daemon in self.mps_daemons()),
            *(f"network card of claim {claim}" for claim in (self.network.prepared if self.network else ())),
            *self.changed_gpus(),
        ]
