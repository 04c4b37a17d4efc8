"""Starts and stops the page: 1. socket on loopback, 2. readers, 3. address printed, 4. server until a signal.

Stop: 1. server (open streams end within a second), 2. readers; their threads do not keep the process.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import uvicorn

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.usage.device_use import UseReport
from dra_driver.kubectl.web.app import PageSources, application
from dra_driver.kubectl.web.connections import BoundedConnection
from dra_driver.kubectl.web.derived import Derived
from dra_driver.kubectl.web.gate import Keys
from dra_driver.kubectl.web.heap import heap
from dra_driver.kubectl.web.reading import Periodic, ReadsCluster, read_without_collection, same_cluster
from dra_driver.kubectl.web.use_history import UseHistory, UseSample

LOOPBACK: Final = "127.0.0.1"
CLUSTER_S: Final = 5.0
USE_S: Final = 15.0


class _Reads(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


def serve(
    source: ReadsCluster,
    *,
    about: str,
    port: int,
    say: Callable[[str], None],
    read_use: Callable[[], UseReport] | None = None,
    read_past: Callable[[], Sequence[UseSample]] = tuple,
    interval_s: float = CLUSTER_S,
    use_interval_s: float = USE_S,
) -> None:
    """Serves until SIGINT or SIGTERM. ``say`` is given the address, ``read_past`` what was used before.

    Raises ConfigurationError if the port is taken.
    """
    listening = _listening(port)
    with listening:
        port = listening.getsockname()[1]
        keys = Keys()
        sources = PageSources(
            cluster=Periodic(
                "page-cluster",
                lambda: read_without_collection(source),
                interval_s,
                same=same_cluster,
                rest=heap.sweep,
            ),
            derived=Derived(),
            about=about,
            use=Periodic("page-use", UseHistory(read_use, past=read_past).read, use_interval_s) if read_use else None,
        )
        app = application(sources, keys, (f"{LOOPBACK}:{port}", f"localhost:{port}"))
        readers: list[_Reads] = [sources.cluster, sources.derived, *([sources.use] if sources.use else [])]
        for reader in readers:
            reader.start()
        try:
            say(f"http://{LOOPBACK}:{port}/open?code={keys.code}")
            _run(app, listening)
        finally:
            for reader in readers:
                reader.stop()


def _run(app: object, listening: socket.socket) -> None:
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=BoundedConnection,
        log_level="error",
        access_log=False,  # it would print the code
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
        h11_max_incomplete_event_size=64 << 10,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _listening(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((LOOPBACK, port))
        found.listen(128)  # the address is printed before the server accepts
    except OSError as error:
        found.close()
        raise ConfigurationError(f"--port {port}: {LOOPBACK}:{port} cannot be used: {error.strerror}") from error
    return found
