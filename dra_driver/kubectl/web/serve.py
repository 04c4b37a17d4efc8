"""Start and stop the web UI: listen, start the readers, print the address, serve until a signal. With sign-in, each
visitor's session has its own readers.

At the end, the server stops first (open streams end within 1 s), then the readers. Their threads are daemons.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from dra_driver.core.errors import ConfigurationError, UnauthorizedError
from dra_driver.core.text import cut, printable
from dra_driver.kube.rest import RestClient
from dra_driver.kubectl.usage.device_use import UseReport
from dra_driver.kubectl.web.access_control import ADMITTED, Keys
from dra_driver.kubectl.web.app import TRIES_AT_ONCE, PageSources, application
from dra_driver.kubectl.web.reading import (
    BackgroundResults,
    OwnSource,
    Periodic,
    ReadsCluster,
    SeenCluster,
    gc_control,
    read_state,
    same_cluster,
)
from dra_driver.kubectl.web.sessions import ReadsWithToken, Visitors
from dra_driver.kubectl.web.use_history import WINDOW_S, UseHistory, UseSample


class BoundedConnection(H11Protocol):
    """A connection with limits: other users of the machine must not block the owner of the web UI.

    It closes after ``first_s`` without a complete request, and after one to two times ``idle_s`` without a new one.
    Only responses to the owner can take longer. Beyond ``most`` connections, the oldest one of other users closes.
    """

    first_s: ClassVar[float] = 1.0
    idle_s: ClassVar[float] = 10.0
    most: ClassVar[int] = 200

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened_at = self.loop.time()
        here = [each for each in self.connections if isinstance(each, BoundedConnection)]
        here = [each for each in here if not each.transport.is_closing()]
        if len(here) > self.most:
            # At least this connection is not the owner's.
            min(here, key=lambda each: (each.is_owned, each.opened_at)).transport.abort()
        self.loop.call_later(self.first_s, self.look, None)

    @property
    def is_owned(self) -> bool:
        return self.cycle is not None and ADMITTED in self.cycle.scope

    @property
    def is_busy(self) -> bool:
        return self.is_owned and not self.cycle.response_complete

    def look(self, former: RequestResponseCycle | None) -> None:
        """``former`` is the request at the previous call."""
        if self.transport.is_closing():
            return
        if self.cycle is former and not self.is_busy:
            self.transport.abort()  # close() would wait for a client that does not read
            return
        self.loop.call_later(self.idle_s, self.look, self.cycle)


LOOPBACK: Final = "127.0.0.1"
CLUSTER_S: Final = 5.0
USE_S: Final = 15.0
_STOP_S: Final = 2.0
MAX_STREAMS_OF_VISITOR: Final = 8
READINGS_AT_ONCE: Final = 2
"""Readings of a large cluster leave processor time for pages of other visitors."""
MAX_POINTS_OF_VISITOR: Final = 50_000
"""Values of use that a session keeps for charts: with 1,000 nodes a minute, with 100 nodes ten."""


def serve(
    source: ReadsCluster,
    *,
    about: str,
    port: int,
    say: Callable[[str], None],
    read_use: Callable[[], UseReport] | None = None,
    read_past: Callable[[int, Mapping[str, str]], Sequence[UseSample]] | None = None,
    taken: str = "",
    interval_s: float = CLUSTER_S,
    use_interval_s: float = USE_S,
) -> None:
    """Serve until SIGINT or SIGTERM; ``say`` gets the address. Raises ConfigurationError if the port is taken.

    ``read_past`` returns samples of a window in seconds, of series with the labels; none means all series.
    """
    with _listening(port) as listening:
        port = listening.getsockname()[1]
        keys = Keys()
        past_results = BackgroundResults()

        def last_hour() -> tuple[Sequence[UseSample], str] | None:
            found = past_results.ask(WINDOW_S, 0, partial(read_past, WINDOW_S, {})) if read_past else None
            samples = found.value if found and isinstance(found.value, list) else ()
            return None if read_past and not found else (samples, found.problem if found else "")

        sources = PageSources(
            cluster=Periodic(
                "page-cluster", lambda: read_state(source), interval_s, same=same_cluster, rest=gc_control.sweep
            ),
            background_results=BackgroundResults(),
            about=about,
            use=Periodic("page-use", UseHistory(read_use, past=last_hour).read, use_interval_s) if read_use else None,
            past=read_past,
            past_results=past_results,
            taken=taken,
        )
        app = application(sources, keys, (f"{LOOPBACK}:{port}", f"localhost:{port}"))
        sources.start()
        try:
            say(f"http://{LOOPBACK}:{port}/{keys.folder}/open?code={keys.code}")
            uvicorn.Server(server_config(app)).run(sockets=[listening])
        finally:
            sources.stop(_STOP_S)


def serve_visitors(
    read: ReadsWithToken,
    *,
    origins: Mapping[str, str],
    port: int,
    everywhere: bool,
    max_sessions: int,
    say: Callable[[str], None],
) -> None:
    """Serve visitors until SIGINT or SIGTERM; ``everywhere`` listens on all addresses. Raises ConfigurationError if the
    port is taken."""
    visitors = Visitors(read, origins, max_sessions)
    with _listening(port, everywhere=everywhere) as listening:
        say(f"http://{LOOPBACK}:{listening.getsockname()[1]}/")
        try:
            uvicorn.Server(server_config(visitors)).run(sockets=[listening])
        finally:
            visitors.close()


def reader_with_tokens(
    connect: Callable[[str], RestClient], read_use: Callable[[RestClient], UseReport]
) -> ReadsWithToken:
    """``connect`` returns a client with a token."""
    tries, readings = threading.Semaphore(TRIES_AT_ONCE), threading.Semaphore(READINGS_AT_ONCE)

    def begin(token: str, namespaces: Sequence[str], expired: Callable[[], None]) -> PageSources:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        found = connect(token).create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        user = printable(cut(str(found["status"]["userInfo"].get("username", "")), 253))
        account = user.split(":")[2:] if user.startswith("system:serviceaccount:") else []
        source = OwnSource(connect(token), *(namespaces or account[:1]))

        def read() -> SeenCluster:
            try:
                with readings:
                    return read_state(source)
            except UnauthorizedError:
                expired()
                raise

        def rest() -> None:
            results.drop()
            gc_control.sweep()

        history = UseHistory(partial(read_use, connect(token)), max_points=MAX_POINTS_OF_VISITOR)
        results = BackgroundResults()
        sources = PageSources(
            cluster=Periodic("page-cluster", read, CLUSTER_S, same=same_cluster, rest=rest, keeps=False),
            background_results=results,
            about=user,
            use=Periodic("page-use", history.read, USE_S, keeps=False),
            is_visitor=True,
            max_streams=MAX_STREAMS_OF_VISITOR,
            tries=tries,
        )
        sources.start()
        return sources

    return begin


def server_config(app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=BoundedConnection,
        log_level="error",
        access_log=False,  # it would log the one-time code
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        proxy_headers=False,
        h11_max_incomplete_event_size=64 << 10,
    )


def _listening(port: int, *, everywhere: bool = False) -> socket.socket:
    """Listen, because the address is printed before the server accepts."""
    is_dual = everywhere and socket.has_dualstack_ipv6()
    address = "" if everywhere else LOOPBACK
    try:
        found = socket.create_server(
            (address, port), family=socket.AF_INET6 if is_dual else socket.AF_INET, backlog=128, dualstack_ipv6=is_dual
        )
    except OSError as error:
        raise ConfigurationError(f"--port {port}: cannot listen on {address}:{port}: {error.strerror}") from error
    # asyncio sets it only with an explicit protocol; without it, the end of every page waits 40 ms for an ACK.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found
