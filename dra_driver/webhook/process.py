"""The webhook process: wires its parts, starts and stops them, and reports readiness and liveness.

It reads files of one folder and answers the API server. It has no token, keeps nothing, and needs no rights on its
machine.
"""

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

from dra_driver import __version__
from dra_driver.config.webhook_settings import WebhookSettings
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.telemetry import webhook_metrics as metrics
from dra_driver.core.telemetry.http import ObservabilityServer, listen
from dra_driver.webhook.certificate import ServedCertificate
from dra_driver.webhook.frames import ReviewOutcome
from dra_driver.webhook.server import Server
from dra_driver.webhook.workers import NotJudgedError, Workers

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
_LATE_S: Final = 60.0


class WebhookProcess:
    """One process. ``run`` once, in the main thread; ``ready``, ``live`` and ``remarks`` from any thread."""

    def __init__(self, settings: WebhookSettings, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._settings, self._now = settings, now
        folder = Path(settings.webhook_dir)
        self._certificate = ServedCertificate(folder)
        self._workers = Workers([str(folder), str(settings.policy_files).lower()], settings.workers)
        self._lock = threading.Lock()  # guards the next
        self._heartbeat = time.monotonic()
        self._stopping = False

    def ready(self) -> list[str]:
        """Reasons why the API server is not answered, one sentence each."""
        if self._stopping:
            return ["stopping"]
        problem = self._certificate.problem(self._now())
        return [*([problem] if problem else []), *([] if self._workers.ready else ["no worker runs yet"])]

    def live(self) -> list[str]:
        """Reasons why only a restart would help."""
        with self._lock:
            silent_s = time.monotonic() - self._heartbeat
        return [f"the webhook has not moved for {silent_s:.0f} s"] if silent_s > _LATE_S else []

    def remarks(self) -> list[str]:
        """Until when the certificate is good."""
        expires = self._certificate.expires
        return [f"the certificate expires at {expires.isoformat()}"] if expires is not None else []

    async def run(self, over: asyncio.Event) -> None:
        """Serve until ``over``. Raises ConfigurationError when an address cannot be used."""
        endpoint, listener = self._telemetry(), self._listener()
        server = Server(listener, self._certificate.context, self._answer)
        self._certificate.look()
        self._workers.start()
        tasks = [asyncio.create_task(server.run()), asyncio.create_task(self._look(server))]
        log.info("started", extra={"port": listener.getsockname()[1], "workers": self._settings.workers})
        try:
            await over.wait()
        finally:
            self._stopping = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            listener.close()
            await self._workers.stop()
            if endpoint is not None:
                endpoint.stop()

    async def _answer(self, body: bytes) -> tuple[HTTPStatus, bytes]:
        began = time.monotonic()
        try:
            outcome, said = await self._workers.judge(body)
        except NotJudgedError as error:
            metrics.reviews_total.labels(error.why).inc()
            # The API server counts it and applies the object: failurePolicy is Ignore.
            return HTTPStatus.SERVICE_UNAVAILABLE, f"not checked: {error}\n".encode()
        finally:
            metrics.review_seconds.observe(time.monotonic() - began)
        metrics.reviews_total.labels(outcome.name.lower()).inc()
        if outcome is ReviewOutcome.MALFORMED:
            return HTTPStatus.BAD_REQUEST, said + b"\n"
        return HTTPStatus.OK, said

    async def _look(self, server: Server) -> None:
        while True:
            with self._lock:
                self._heartbeat = time.monotonic()
            self._certificate.look()
            expires = self._certificate.expires
            metrics.certificate_expires.set(expires.timestamp() if expires is not None else 0)
            metrics.connections.set(server.connections)
            await asyncio.sleep(LOOK_S)

    def _listener(self) -> socket.socket:
        address = self._settings.webhook_addr
        host, _, port = address.rpartition(":")
        try:
            return listen(host.strip("[]"), int(port))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {address}: {error}: choose another --webhook-addr (WEBHOOK_ADDR)"
            ) from error

    def _telemetry(self) -> ObservabilityServer | None:
        metrics.initialise(__version__)
        address = self._settings.http_addr
        if not address:
            return None
        try:
            server = ObservabilityServer(address, self.ready, self.live, self.remarks, scrape=metrics.render)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"cannot listen on {address}: {error}: choose another --http-addr (HTTP_ADDR)"
            ) from error
        server.start()
        log.info("serving metrics and health", extra={"port": server.port})
        return server


def run(settings: WebhookSettings) -> None:
    """Runs until SIGTERM or SIGINT. Raises ConfigurationError when it cannot start."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_until_signal(WebhookProcess(settings)))


async def _until_signal(process: WebhookProcess) -> None:
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    await process.run(over)
