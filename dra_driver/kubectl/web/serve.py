"""Start and stop the web UI: 1. socket on loopback, 2. readers, 3. address printed, 4. server until a signal.

Stop: 1. server (open streams end within a second), 2. readers; their threads do not keep the process.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.usage.device_use import UseReport
from dra_driver.kubectl.web.app import PageSources, application
from dra_driver.kubectl.web.gate import Keys
from dra_driver.kubectl.web.reading import Derived, Periodic, ReadsCluster, heap, read_without_collection, same_cluster
from dra_driver.kubectl.web.use_history import UseHistory, UseSample


class BoundedConnection(H11Protocol):
    """A connection that ends after ``idle_s`` to twice that time without a complete request or an answer in progress.

    Connections are limited, and every user of the machine can open some: idle ones would keep all others out.
    """

    idle_s: ClassVar[float] = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(self.idle_s, self.look, None)

    def look(self, former: RequestResponseCycle | None) -> None:
        """``former`` is the request at the previous call."""
        if self.transport.is_closing():
            return
        if self.cycle is former and (former is None or former.response_complete):
            self.transport.close()
            return
        self.loop.call_later(self.idle_s, self.look, self.cycle)


LOOPBACK: Final = "127.0.0.1"
CLUSTER_S: Final = 5.0
USE_S: Final = 15.0


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
    """Serve until SIGINT or SIGTERM; ``say`` gets the address. Raises ConfigurationError if the port is taken."""
    listening = _listening(port)
    with listening:
        port = listening.getsockname()[1]
        keys = Keys()
        sources = PageSources(
            cluster=Periodic(
                "page-cluster", lambda: read_without_collection(source), interval_s, same=same_cluster, rest=heap.sweep
            ),
            derived=Derived(),
            about=about,
            use=Periodic("page-use", UseHistory(read_use, past=read_past).read, use_interval_s) if read_use else None,
        )
        app = application(sources, keys, (f"{LOOPBACK}:{port}", f"localhost:{port}"))
        readers = [each for each in (sources.cluster, sources.derived, sources.use) if each is not None]
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
