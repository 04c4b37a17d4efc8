"""Connections on which nothing is asked, over real sockets: any user of the machine may open them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def talk(sent: bytes, application: Any = app, at_look: Callable[[], None] = lambda: None) -> bytes:
    """What a server answers to these bytes until it ends the connection."""
    import uvicorn
    from uvicorn.server import ServerState

    from dra_driver.kubectl.web.serve import BoundedConnection

    class Quick(BoundedConnection):
        idle_s = 0.02

        def look(self, former: Any) -> None:
            at_look()
            super().look(former)

    async def story() -> bytes:
        config = uvicorn.Config(application, lifespan="off", ws="none", log_level="error", timeout_keep_alive=3600)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Quick(config, ServerState(), {}), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(sent)
            found = await asyncio.wait_for(reader.read(), 30)
            writer.close()
        return found

    return asyncio.run(story())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo", REQUEST[:-2]])
def test_a_connection_on_which_nothing_is_asked_ends(sent: bytes) -> None:
    assert talk(sent) == b""


@pytest.mark.parametrize("more", [b"", b"G"])
def test_a_connection_ends_some_time_after_its_answer(more: bytes) -> None:
    """Also one that began another request."""
    assert talk(REQUEST + more).endswith(b"ok")


def test_an_answer_that_takes_long_is_not_cut_off() -> None:
    """The stream of a page lasts for hours."""
    looks: list[int] = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        while len(looks) < 4:
            await asyncio.sleep(0)
        await app(scope, receive, send)

    assert talk(REQUEST, slow, lambda: looks.append(1)).endswith(b"ok")
