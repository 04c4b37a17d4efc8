"""Serves HTTP connections in one thread, without blocking on any client; answers are made in short-lived threads.

Any pod can connect to the port, and the kubelet's liveness probe comes through it as well. So clients cannot hold it:

- A connection costs a descriptor and a few bytes, no thread, until its request is complete.
- The request line has to arrive within ``LINE_TIMEOUT_S``, the whole request within ``REQUEST_TIMEOUT_S``, and an
  answer has to be taken within the same time.
- One connection more than allowed closes the oldest that waits for its client, no matter which address it has. A limit
  per address would be an attack itself: pods in the host network share the kubelet's.
- Answers to one question are made by few threads at a time, and requests of a flood share them (`http_question`).
"""

import errno
import logging
import resource
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final

from dra_driver.core.telemetry import http_request
from dra_driver.core.telemetry.http_question import HttpQuestion
from dra_driver.core.telemetry.http_request import Request

log = logging.getLogger(__name__)

LINE_TIMEOUT_S: Final = 1.0
REQUEST_TIMEOUT_S: Final = 5.0
MAX_CONNECTIONS: Final = 2048
"""Open connections. Also how many a flood must open before it closes that of a probe, which sends its request within
1 ms. At most a quarter of the descriptors that the process may have: the others are for its files and sockets."""
MAX_ANSWERING: Final = 32
"""Threads that make answers. Further complete requests wait."""
MAX_SAME: Final = 3
"""Those of them that answer the same question. The ten questions of an endpoint never need all threads."""
MAX_WRITING: Final = 32
"""Answers, of up to some 100 KiB, that are in memory because their clients do not take them."""
BACKLOG: Final = 4096
"""Connections that the kernel keeps until they are accepted, if net.core.somaxconn allows it. One that finds the queue
full tries again after a second."""
_ACCEPTED_AT_ONCE: Final = 16
"""Then requests are read, so that new connections do not close one whose request is there already."""
_SWEEP_S: Final = 0.1
_PIECE: Final = 64 * 1024
_NO_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class _Connection:
    """One connection. ``since`` is when its present phase began."""

    __slots__ = ("data", "left", "since", "socket")

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.socket = connection
        self.since = now
        self.data = bytearray()  # of the request
        self.left: memoryview | None = None  # of the answer, once there is one

    def deadline(self) -> float:
        is_short = self.left is None and not http_request.has_line(self.data)
        return self.since + (LINE_TIMEOUT_S if is_short else REQUEST_TIMEOUT_S)


_Questions = dict[Hashable, HttpQuestion[tuple[_Connection, Request]]]


class HttpLoop:
    """Serves the connections of ``listener``, which listens already, until ``stop``.

    ``answer`` makes the bytes of an answer; it is called in threads, may block, and must not raise. ``question`` is
    equal for requests that the same answer serves; there must be few.
    """

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[Request], bytes],
        connections: int,
        *,
        question: Callable[[Request], Hashable],
    ) -> None:
        self._listener = listener
        self._answer, self._question = answer, question
        self._most = min(connections, max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._selector = selectors.DefaultSelector()
        self._waiting: dict[_Connection, None] = {}  # for their clients, oldest first
        self._writing: dict[_Connection, None] = {}  # those of them that have not taken their answer
        self._questions: _Questions = {}  # with the requests that wait for an answer
        self._answering = 0
        self._answered: deque[tuple[_Connection, Hashable, float, bytes]] = deque()  # filled by the threads
        self._over = threading.Event()
        self._woken, self._waker = socket.socketpair()
        for each in (listener, self._woken, self._waker):
            each.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._sweep_at = 0.0

    def run(self) -> None:
        """Serve until ``stop``; for one thread. Closes everything at its end."""
        try:
            while not self._over.is_set():
                idle = not self._waiting and not self._complete()
                self._handle(self._selector.select(None if idle else _SWEEP_S))
                self._start_answers()
                self._sweep()
        finally:
            for connection in self._waiting:
                connection.socket.close()
            while self._drop_complete():
                pass
            self._drop_answered()
            for each in (self._listener, self._woken, self._waker):
                each.close()
            self._selector.close()

    def stop(self) -> None:
        """End ``run``; answers that are being made are lost. From any thread, repeatable."""
        self._over.set()
        self._wake()

    def close(self) -> None:
        """In place of ``run``, for a loop that never ran."""
        self._over.set()
        self.run()

    def _handle(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        for key, _ in events:
            if key.fileobj is self._woken:
                self._collect()
            elif key.data in self._waiting:  # an earlier event of this round may have closed it
                self._progress(key.data)
        if any(key.fileobj is self._listener for key, _ in events):
            self._accept()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the client has gone, or there are no descriptors
                if error.errno in _NO_DESCRIPTORS and not self._close_oldest():
                    time.sleep(_SWEEP_S)
                return
            accepted.setblocking(False)
            if len(self._waiting) + self._complete() + self._answering >= self._most and not self._close_oldest():
                accepted.close()
                continue
            connection = _Connection(accepted, time.monotonic())
            self._waiting[connection] = None
            self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _progress(self, connection: _Connection) -> None:
        try:
            if connection.left is None:
                self._read(connection)
            else:
                self._write(connection)
        except BlockingIOError:
            return
        except OSError:  # the client has gone
            self._close(connection)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(http_request.MAX_HEAD)
        if not data:
            self._close(connection)
            return
        connection.data += data
        request = http_request.parse(connection.data)
        if request is not None:
            self._selector.unregister(connection.socket)
            del self._waiting[connection]
            connection.since = time.monotonic()
            question = self._questions.setdefault(self._question(request), HttpQuestion())
            question.ask((connection, request), connection.since)

    def _complete(self) -> int:
        return sum(map(len, self._questions.values()))

    def _start_answers(self) -> None:
        now = time.monotonic()
        for question in self._questions.values():
            while question:
                if answer := question.shared(now):
                    self._send(question.take()[0], answer)
                elif question.making >= MAX_SAME or self._answering >= MAX_ANSWERING:
                    break
                elif not self._start(*question.first):
                    return
                else:
                    question.take()

    def _start(self, connection: _Connection, request: Request) -> bool:
        """Make an answer in a thread; False when this process gets no more threads: it is tried again."""
        thread = threading.Thread(target=self._make, args=(connection, request), name="http-request", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._questions[self._question(request)].making += 1
        self._answering += 1
        return True

    def _make(self, connection: _Connection, request: Request) -> None:
        begun = time.monotonic()
        try:
            answer = self._answer(request)
        except Exception:  # thread boundary: the client sees a closed connection
            log.exception("HTTP request failed", extra={"path": request.path})
            answer = b""
        self._answered.append((connection, self._question(request), begun, answer))
        self._wake()
        if self._over.is_set():
            self._drop_answered()

    def _collect(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(_PIECE)
        while not self._over.is_set() and self._answered:  # once it is over, other threads empty it as well
            connection, question, begun, answer = self._answered.popleft()
            self._answering -= 1
            self._questions[question].answered(answer, begun)
            self._send(connection, answer)

    def _send(self, connection: _Connection, answer: bytes) -> None:
        if len(self._writing) >= MAX_WRITING:
            self._close(next(iter(self._writing)))
        connection.since, connection.left = time.monotonic(), memoryview(answer)
        self._waiting[connection] = self._writing[connection] = None
        self._selector.register(connection.socket, selectors.EVENT_WRITE, connection)
        self._progress(connection)  # nearly every answer fits into the kernel's buffer

    def _write(self, connection: _Connection) -> None:
        assert connection.left is not None  # noqa: S101 - for the type checker
        while connection.left:
            connection.left = connection.left[connection.socket.send(connection.left[:_PIECE]) :]
        with suppress(OSError):
            connection.socket.recv(_PIECE)  # closing with unread bytes would take the answer back (RFC 9293, 3.6.1)
        self._close(connection)

    def _sweep(self) -> None:
        """Close connections whose time is over."""
        now = time.monotonic()
        if now < self._sweep_at:
            return
        self._sweep_at = now + _SWEEP_S
        for connection in [each for each in self._waiting if each.deadline() <= now]:
            self._close(connection)
        for question in self._questions.values():
            while question.first_at + REQUEST_TIMEOUT_S <= now:
                question.take()[0].socket.close()

    def _close_oldest(self) -> bool:
        """Close the oldest connection that waits for its client, or for an answer; False when there is none."""
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return self._drop_complete()
        self._close(oldest)
        return True

    def _drop_complete(self) -> bool:
        """Close the oldest connection that asks what most of them ask; False when none waits for an answer."""
        longest = max(self._questions.values(), key=len, default=None)
        if not longest:
            return False
        longest.take()[0].socket.close()
        return True

    def _drop_answered(self) -> None:
        """Close connections whose answers come too late, because the loop ends; from any thread."""
        with suppress(IndexError):
            while True:
                self._answered.popleft()[0].socket.close()

    def _close(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        del self._waiting[connection]
        self._writing.pop(connection, None)
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.socket.close()

    def _wake(self) -> None:
        with suppress(OSError):  # a full buffer wakes as well; a closed one means that the loop is over
            self._waker.send(b"\0")
