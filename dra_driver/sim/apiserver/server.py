"""Run the API server: uvicorn in a thread, on 127.0.0.1 with its own certificate and token.

Start: 1. bind the socket, 2. run the event loop in a thread, 3. wait until it accepts connections (10 s). Stop: 1. end
every watch, 2. let requests in flight finish (0.3 s), 3. abort all further connections, 4. join the thread (5 s).
"""

import asyncio
import base64
import hmac
import json
import logging
import os
import secrets
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from pathlib import Path

import trustme
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dra_driver.core.errors import GoneError, KubernetesApiError, RetryableError
from dra_driver.core.files import replace_file
from dra_driver.sim.apiserver.api_errors import status_body, status_error
from dra_driver.sim.apiserver.jsonvalue import Clock, dump, utc_now
from dra_driver.sim.apiserver.messages import JSON, ApiRequest, Reply
from dra_driver.sim.apiserver.pod_subresources import LogPlan, ProxyPlan, fetch, is_over, log_text
from dra_driver.sim.apiserver.router import BOOKMARK_INTERVAL_S, Frames, Router, RouterReply, WatchPlan
from dra_driver.sim.apiserver.store import Store

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 3 * 1024 * 1024  # k8s.io/apiserver pkg/server/config.go MaxRequestBodyBytes
LOG_POLL_S = 0.25


class ApiApplication:
    """The ASGI application. Call `close` before stopping the server, to end every stream."""

    def __init__(self, store: Store, token: str, clock: Clock) -> None:
        self._store = store
        self._token = f"Bearer {token}".encode()
        self._clock = clock
        self._router = Router(store, clock)
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End every watch and followed log. Call it on the event loop."""
        self._closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            outcome = await self._outcome(request)
            if isinstance(outcome, ProxyPlan):
                outcome = await asyncio.to_thread(fetch, outcome)
        except KubernetesApiError as error:
            outcome = Reply.of(status_body(error), status=error.status or 500)
        except ClientDisconnect:
            return
        except Exception as error:  # request boundary: one bug must not stop the server
            log.exception("request failed", extra={"method": request.method, "path": request.url.path})
            internal = status_error(
                500, "InternalError", f"Internal error occurred: {type(error).__name__}: {error}", {}
            )
            outcome = Reply.of(status_body(internal), status=500)
        if isinstance(outcome, Reply):
            await _respond(outcome)(scope, receive, send)
        elif isinstance(outcome, WatchPlan):
            await self._stream(receive, send, JSON, self._watch(outcome))
        else:
            await self._stream(receive, send, "text/plain", self._log(outcome))

    async def _outcome(self, request: Request) -> RouterReply:
        sent = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(sent, self._token):
            raise status_error(401, "Unauthorized", "Unauthorized")
        query: dict[str, str] = {}
        for key, value in request.query_params.multi_items():
            query.setdefault(key, value)
        headers, body = request.headers, await _body(request)
        asked = ApiRequest(method=request.method, path=request.url.path, query=query, headers=headers, body=body)
        return self._router.answer(asked)

    async def _stream(self, receive: Receive, send: Send, media_type: str, chunks: AsyncIterator[bytes]) -> None:
        headers = [(b"content-type", media_type.encode()), (b"cache-control", b"no-cache, private")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        ends = {asyncio.create_task(_disconnected(receive)), asyncio.create_task(self._closing.wait())}
        async with aclosing(chunks) as source:  # type: ignore[type-var]
            while True:
                step = asyncio.ensure_future(anext(source, None))
                await asyncio.wait({step, *ends}, return_when=asyncio.FIRST_COMPLETED)
                chunk = step.result() if step.done() else None
                if chunk is None:
                    step.cancel()
                    with suppress(asyncio.CancelledError):
                        await step
                    break
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        for task in ends:
            task.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, plan: WatchPlan) -> AsyncIterator[bytes]:
        frames, loop, signal = Frames(plan, self._clock), asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closing and needs no wake-up
                loop.call_soon_threadsafe(signal.set)

        deadline = loop.time() + plan.timeout_s
        try:
            changes = self._store.watch(
                [plan.target.kind], since=plan.since, namespace=plan.target.namespace, wake=wake
            )
        except GoneError as error:
            yield frames.gone(error)
            return
        with changes:
            if plan.send_initial_events:
                first = frames.of(changes.take_all())
                yield first + (frames.bookmark(changes.started_at, initial_end=True) if plan.bookmarks else b"")
            while (left := deadline - loop.time()) > 0:
                signal.clear()
                try:
                    revision = self._store.revision
                    lines = frames.of(changes.take_all())
                except GoneError as error:
                    yield frames.gone(error)
                    return
                if lines:
                    yield lines
                    continue
                try:
                    # Not wait_for: up to Python 3.11 it can lose a cancellation that arrives together with the signal.
                    async with asyncio.timeout(min(left, BOOKMARK_INTERVAL_S)):
                        await signal.wait()
                except TimeoutError:
                    if plan.bookmarks and left > BOOKMARK_INTERVAL_S:
                        yield frames.bookmark(revision)

    async def _log(self, plan: LogPlan) -> AsyncIterator[bytes]:
        where = (plan.target.namespace, plan.target.name, plan.container)
        lines = self._store.logs.read(*where)
        yield log_text(lines, plan, self._clock)
        seen = lines[-1] if lines else None
        while plan.follow:
            over = is_over(self._store, plan)
            lines = self._store.logs.read(*where)
            at = next((at for at in range(len(lines) - 1, -1, -1) if lines[at] is seen), -1)
            if fresh := lines[at + 1 :]:
                seen = fresh[-1]
                yield log_text(fresh, plan, self._clock)
            if over:
                return
            await asyncio.sleep(LOG_POLL_S)


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            text = f"Request entity too large: limit is {MAX_BODY_BYTES}"
            raise status_error(413, "RequestEntityTooLarge", text, {})
        parts.append(part)
    return b"".join(parts)


def _respond(reply: Reply) -> Response:
    response = Response(reply.body, status_code=reply.status, media_type=None)
    response.headers["content-type"] = reply.media_type
    for text in reply.warnings:
        quoted = dump(text).decode()
        response.headers.append("warning", f"299 - {quoted}")
    return response


async def _disconnected(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


ADDRESS = "127.0.0.1"
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
ABORT_AFTER_S = 0.3
NAMESPACE_DELAY_S = 1.0


class ApiServer:
    """The embedded cluster's API server. Start it once, stop it once; ``store`` outlives it. ``port`` 0 chooses a free
    port. ``check_cel`` returns None if a CEL expression compiles, else the compiler's message. ``successor_of`` is a
    stopped server, whose store, port, token and certificate this one uses: a restart."""

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
        self.token: str = before.token if before else secrets.token_urlsafe(32)
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
    def certificate(self) -> str:
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
            "users": [{"name": "embedded-admin", "user": {"token": self.token}}],
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
        self._application = ApiApplication(self.store, self.token, self._clock)
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
