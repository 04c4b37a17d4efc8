"""The ASGI application around the router: authentication, the body limit, streaming, and errors as Status bodies.

Runs on the event loop of `server.ApiServer`. Store calls are made on the loop itself: they take less time than starting
a thread per request.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dra_driver.core.errors import GoneError, KubernetesApiError
from dra_driver.sim.apiserver.api_errors import status_body, status_error
from dra_driver.sim.apiserver.jsonvalue import Clock, dump
from dra_driver.sim.apiserver.messages import JSON, ApiRequest, Reply
from dra_driver.sim.apiserver.pod_proxy import ProxyPlan, fetch
from dra_driver.sim.apiserver.pod_subresources import LogPlan, is_over, log_text
from dra_driver.sim.apiserver.router import Router, RouterReply
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.apiserver.watching import BOOKMARK_INTERVAL_S, Frames, WatchPlan

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
        """Send chunks until they end, the client disconnects or the server stops."""
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
        """A container's log, and with ``follow`` the lines added later."""
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
