"""Pods that reach the webhook's port cannot keep the API server from it."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.webhook.server import MAX_CONNECTIONS
from tests.contract.webhook.webhook import Client, Webhook
from tests.unit.webhook.reviews import claim, review


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Webhook, bytes]]:
    process = Webhook(tmp_path_factory.mktemp("webhook"), workers="1")
    pair = process.hand_over()
    process.start().until_serving()
    yield process, pair.ca
    process.kill()


def rss_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def test_connections_that_say_nothing_make_room(webhook: tuple[Webhook, bytes]) -> None:
    """Before their handshake, so that they cost nothing."""
    process, ca = webhook
    silent = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(4 * MAX_CONNECTIONS)]
    try:
        assert process.ask(ca, review(claim()))[0] == 200
        assert process.process is not None
        assert rss_mib(process.process.pid) < 100
    finally:
        for each in silent:
            each.close()


def test_connections_that_do_not_go_on_make_room(webhook: tuple[Webhook, bytes]) -> None:
    """After their handshake, and after half a request."""
    process, ca = webhook
    begun = []
    for _ in range(2 * MAX_CONNECTIONS):
        client = Client(process.port, ca)
        client.connect()
        client.sock.sendall(b"POST /validate HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
        begun.append(client)
    assert process.ask(ca, review(claim()))[0] == 200
    for client in begun:
        client.close()


def test_more_reviews_than_can_be_judged_are_told_to_pass(webhook: tuple[Webhook, bytes]) -> None:
    """Each is answered in time, one way or the other."""
    process, ca = webhook

    def one() -> int:
        status: int = process.ask(ca, review(claim()), once=True)[0]
        return status

    async def all_at_once() -> list[int]:
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(loop.run_in_executor(None, one) for _ in range(60))))

    statuses = asyncio.run(all_at_once())
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 1
