"""TLS and HTTP for the API server, with limits that hold against every pod of the cluster.

Anyone who reaches the port may connect. So connections are counted before their handshake, each step has a time, and
when all are taken, the oldest that is not being answered makes room. What comes after that costs the API server no
more than its own timeout.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from dra_driver.webhook import http_message
from dra_driver.webhook.http_message import Head

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 64
"""Python keeps 256 KiB for each."""
HANDSHAKE_S: Final = 2.0
REQUEST_S: Final = 2.0
"""For the body of a request, and for the client to take the answer."""
KEPT_S: Final = 90.0
"""For the next request. Go's client, which the API server is, closes idle connections after 90 s."""
_PAUSE_S: Final = 0.2

Answer = Callable[[bytes], Awaitable[tuple[HTTPStatus, bytes]]]
"""The body of a review to a status and the body of its answer."""


class Server:
    """Serves ``listener``. ``context`` gives the certificate of each new connection, None while there is none."""

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext | None],
        answer: Answer,
        *,
        connections: int = MAX_CONNECTIONS,
        handshake_s: float = HANDSHAKE_S,
        request_s: float = REQUEST_S,
    ) -> None:
        listener.setblocking(False)
        self._listener, self._context, self._answer = listener, context, answer
        self._most, self._handshake_s, self._request_s = connections, handshake_s, request_s
        self._open: dict[asyncio.Task[None], bool] = {}
        """Connections, oldest first, and whether each is being answered."""

    async def run(self) -> None:
        """Accept until cancelled; then end all connections."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    client, _ = await loop.sock_accept(self._listener)
                except OSError as error:  # no descriptor is left, or the client has gone
                    log.warning("cannot accept a connection", extra={"reason": error.strerror})
                    await asyncio.sleep(_PAUSE_S)
                    continue
                self._take(client)
        finally:
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def _take(self, client: socket.socket) -> None:
        context = self._context()
        if context is None or not self._has_room():
            client.close()
            return
        task = asyncio.get_running_loop().create_task(self._connection(client, context))
        self._open[task] = False
        task.add_done_callback(lambda done: self._open.pop(done, None))

    def _has_room(self) -> bool:
        if len(self._open) < self._most:
            return True
        oldest = next((task for task, answering in self._open.items() if not answering), None)
        if oldest is None:
            return False
        self._open.pop(oldest)
        oldest.cancel()
        return True

    async def _connection(self, client: socket.socket, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=http_message.MAX_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, client, ssl=context, ssl_handshake_timeout=self._handshake_s, ssl_shutdown_timeout=1.0
            )
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError
            client.close()
            return
        except asyncio.CancelledError:
            client.close()
            raise
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            while await self._request(reader, writer):
                pass
            writer.close()
        except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            transport.abort()
        except BaseException:
            transport.abort()
            raise

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection is kept."""
        async with asyncio.timeout(KEPT_S):
            head = http_message.parse(await reader.readuntil(b"\r\n\r\n"))
        if head.refused is not None:
            return await self._send(writer, head, head.refused, b"")
        async with asyncio.timeout(self._request_s):
            body = await reader.readexactly(head.length)
        if head.path == http_message.HEALTH:
            return await self._send(writer, head, HTTPStatus.OK, b"ok\n")
        task = asyncio.current_task()
        if task in self._open:
            self._open[task] = True
        try:
            return await self._send(writer, head, *await self._answer(body))
        finally:
            if task in self._open:
                self._open[task] = False

    async def _send(self, writer: asyncio.StreamWriter, head: Head, status: HTTPStatus, body: bytes) -> bool:
        keeps = head.keeps and head.refused is None
        json = status is HTTPStatus.OK and head.path == http_message.REVIEWS
        writer.write(http_message.render(status, body, keeps=keeps, json=json))
        async with asyncio.timeout(self._request_s):
            await writer.drain()
        return keeps
