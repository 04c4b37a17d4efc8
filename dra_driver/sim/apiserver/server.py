"""Runs the API server: uvicorn in a thread, on 127.0.0.1 with its own certificate and token.

Start: 1. bind the socket, 2. run the event loop in a thread, 3. wait until it accepts connections (10 s). Stop: 1. end
every watch, 2. let requests in flight finish (0.3 s), 3. abort the other connections, 4. join the thread (5 s).
"""

import asyncio
import base64
import json
import os
import secrets
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import trustme
import uvicorn

from dra_driver.core.errors import RetryableError
from dra_driver.core.files import replace_file
from dra_driver.sim.apiserver.asgi_app import ApiApplication
from dra_driver.sim.apiserver.jsonvalue import Clock, utc_now
from dra_driver.sim.apiserver.store import Store

ADDRESS = "127.0.0.1"
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
ABORT_AFTER_S = 0.3
NAMESPACE_DELAY_S = 1.0


class ApiServer:
    """The embedded cluster's API server. Start it once, stop it once; ``store`` outlives it.

    ``port`` 0 chooses a free port. ``check_cel`` returns None if a CEL expression compiles, else the compiler's
    message. ``successor_of`` is a stopped server, whose store, port, token and certificate this one uses: a restart.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        check_cel: Callable[[str], str | None] | None = None,
        clock: Clock = utc_now,
        store: Store | None = None,
        successor_of: "ApiServer | None" = None,
    ) -> None:
        before = successor_of
        self._clock = clock
        self.store: Store = (
            before.store
            if before
            else store or Store(check_cel=check_cel, clock=clock, namespace_delay_s=NAMESPACE_DELAY_S)
        )
        self._port: int = before._port if before else port
        self._token = before.token if before else secrets.token_urlsafe(32)
        self._authority: trustme.CA = before._authority if before else trustme.CA()
        self._certificate: trustme.LeafCert = (
            before._certificate if before else self._authority.issue_cert(ADDRESS, "localhost")
        )
        self._server: uvicorn.Server | None = None
        self._application: ApiApplication | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        return f"https://{ADDRESS}:{self._port}"

    @property
    def token(self) -> str:
        """The bearer token that every request must have."""
        return self._token

    @property
    def certificate(self) -> str:
        """The certificate of the server's authority in PEM, with which clients verify the server."""
        return self._authority.cert_pem.bytes().decode()

    def start(self) -> str:
        """Listen and serve; returns the base URL. Raises RetryableError if the port is in use or the start fails."""
        listener = self._bind()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listener)), name="embedded-api-server", daemon=True
        )
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise RetryableError(f"the embedded API server did not accept connections within {START_TIMEOUT_S:.0f} s")
        return self.url

    def stop(self) -> None:
        """End watches and requests and release the port. Idempotent; allowed without a start."""
        if self._server is None or self._loop is None or self._application is None or self._thread is None:
            return
        self._server.should_exit = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_streams, self._server, self._application, self._loop)
        self._thread.join(STOP_TIMEOUT_S)
        self._server = None

    @staticmethod
    def _end_streams(server: uvicorn.Server, application: ApiApplication, loop: asyncio.AbstractEventLoop) -> None:
        """End watches, then abort connections that clients keep open without answering TLS close_notify."""
        application.close()

        def abort() -> None:
            for connection in list(server.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()

        loop.call_later(ABORT_AFTER_S, abort)

    def kubeconfig(self, path: str | os.PathLike[str]) -> Path:
        """Write a kubeconfig with mode 0600; replaces an existing file by a rename."""
        authority = base64.b64encode(self.certificate.encode()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": cluster}],
            "users": [{"name": "embedded-admin", "user": {"token": self._token}}],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "embedded-admin"}}],
            "current-context": "embedded",
        }
        target = Path(path)
        replace_file(target, json.dumps(config, indent=1).encode())
        return target

    def _bind(self) -> socket.socket:
        # With an explicit protocol, asyncio sets TCP_NODELAY; without that, every reply waits 40 ms for an ACK.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, self._port))
        except OSError as error:
            listener.close()
            raise RetryableError(
                f"the embedded API server cannot listen on {ADDRESS}:{self._port}: {error.strerror}; "
                "choose another port"
            ) from error
        self._port = listener.getsockname()[1]
        return listener

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._application = ApiApplication(self.store, self._token, self._clock)
        config = uvicorn.Config(
            self._application,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=75,
        )
        config.load()
        config.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._certificate.configure_cert(config.ssl)
        self._server = uvicorn.Server(config)
        announce = asyncio.create_task(self._announce(self._server))
        await self._server.serve(sockets=[listener])
        await announce

    async def _announce(self, server: uvicorn.Server) -> None:
        while not server.started and not server.should_exit:
            await asyncio.sleep(0.005)
        self._ready.set()
