"""Open a node's claims as a node process does, while none runs: for repair and cleanup.

The caller holds the lock of the node process (`no_node_process`); a node process that starts now exits with status 2.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, DraError, KubernetesApiError
from dra_driver.core.files import lock_file
from dra_driver.core.model.gpu import Snapshot
from dra_driver.diagnose.node_state.state import Places, read_state
from dra_driver.hardware.cdi import CdiNames
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.hardware.sharing.mps_files import MpsFolders
from dra_driver.kube.claims import BoundedGetter
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import Claims, PrepareGate
from dra_driver.node.process import hardware, preflight
from dra_driver.node.process.hardware import HostDeviceNodes, OwnedBackend
from dra_driver.node.process.node_claims import open_node_claims, open_provider, open_writer

LOOK_S: Final = 15.0
"""The first read of the GPUs in a session; without a driver it fails immediately."""
PROBE_S: Final = 0.1
"""A process that only checks whether an MPS host runs holds its lock briefly."""


@contextmanager
def no_node_process(plugin_dir: Path) -> Iterator[None]:
    """Keep a node process from starting. Raises ConfigurationError if one runs."""
    lock = preflight.ProcessLock(plugin_dir, shared=False)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def no_mps_host(folder: Path) -> Iterator[None]:
    """Keep an MPS host that would use ``folder`` from starting, if one has run. Raises ConfigurationError if one runs.
    The caller must not use the claims in this context: they see a host that does not answer."""
    path = MpsFolders(folder).lock
    try:
        lock = lock_file(path, timeout_s=PROBE_S, create_mode=None)
    except FileNotFoundError:
        yield
        return
    except BlockingIOError as error:
        raise ConfigurationError(
            f"no file was removed: an MPS host runs on this node ({path} is locked); delete the DaemonSet "
            "dra-driver-mps-host first",
            reason="MpsHostRuns",
            path=path,
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"no file was removed: cannot lock {path}: {error.strerror or error}", reason="NoLock"
        ) from error
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def stopped_node(settings: NodeSettings) -> Iterator[Claims]:
    """The claims of the node. Raises ConfigurationError if the journal cannot be opened."""
    plugin_dir = Path(settings.kubelet_plugins_dir) / settings.driver_name
    with ExitStack() as stack:
        found = hardware.choose(settings, plugin_dir)
        nodes = HostDeviceNodes.of(found)
        names = CdiNames(settings.driver_name)
        writer = open_writer(settings, plugin_dir, names)
        owned = OwnedBackend(found.backend)
        inventory = Inventory(owned, settings.poll_interval)
        claims = open_node_claims(
            settings,
            plugin_dir,
            rest=_api(settings.kubeconfig),
            names=names,
            writer=writer,
            provider=open_provider(settings, found, nodes, names, writer),
            inventory=inventory,
            hardware=found,
            device_nodes=nodes,
            gate=PrepareGate(),
        )
        stack.callback(claims.close)
        owned.use_journal(claims.journal)
        stack.callback(inventory.stop)
        inventory.start()
        inventory.wait_first(LOOK_S)
        yield claims


def look_at_hardware(settings: NodeSettings) -> Callable[[], Snapshot]:
    """A function that reads the GPUs once, in a separate session."""
    plugin_dir = Path(settings.kubelet_plugins_dir) / settings.driver_name

    def look() -> Snapshot:
        backend = hardware.choose(settings, plugin_dir).backend
        backend.open()
        try:
            return backend.snapshot()
        finally:
            backend.close()

    return look


def _api(kubeconfig: str | None) -> BoundedGetter:
    try:
        return RestClient(Connection.load(kubeconfig))
    except ConfigurationError as error:
        return _NoApi(str(error))


class _NoApi:
    """Stand-in for the API server, which only a journal rebuild needs."""

    def __init__(self, reason: str) -> None:
        self._error = ApiUnreachableError(reason)

    def get(
        self,
        path: str,  # noqa: ARG002 - the interface's
        query: object = None,  # noqa: ARG002 - same
        *,
        within_s: float | None = None,  # noqa: ARG002 - same
    ) -> dict[str, object]:
        raise self._error

    def send_all(
        self,
        paths: Sequence[str],
        *,
        within_s: float | None = None,  # noqa: ARG002 - the interface's
    ) -> Callable[[], list[dict[str, object] | KubernetesApiError]]:
        return lambda: [self._error for _ in paths]


RUNNING = (
    "a node process runs on this node, and repairs its state automatically: files within seconds, GPU settings within "
    "30 s, the rest within ten minutes or at its restart; check again then, or stop it first"
)


def repair(settings: NodeSettings, places: Places) -> tuple[str, ...]:
    """Make journal, files and hardware agree; return messages about the rest.

    Keeps a copy of a damaged journal and rebuilds it. Prepared claims stay prepared. Raises ConfigurationError while a
    node process runs, or if the directory does not exist.
    """
    refuse_while_running(places)
    problems: list[str] = []
    with no_node_process(places.plugin), stopped_node(settings) as claims:
        problems += claims.service.recover().problems
        try:
            claims.service.reclaim_orphans()
            if claims.service.rebuild_pending:
                problems.append("the journal is not completely rebuilt: a node process will continue the rebuild")
        except DraError as error:
            problems.append(str(error))
    return tuple(dict.fromkeys(problems))


def refuse_while_running(places: Places) -> None:
    """Raises ConfigurationError."""
    if not places.plugin.is_dir():
        raise ConfigurationError(f"{places.plugin} does not exist: cannot repair it", reason="NoDirectory")
    if read_state(places).runs:
        raise ConfigurationError(RUNNING, reason="NodeProcessRuns")
