"""One connection of a browser: as uvicorn has it, and closed when nothing is asked on it.

The page has a bounded number of connections, and every user of the machine may open some: without an end, those on
which nothing was ever asked, or a request was begun and not ended, would keep all others out.
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedConnection(H11Protocol):
    """Ends when no request was complete and none is being answered for ``idle_s`` to twice that time."""

    idle_s: ClassVar[float] = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(self.idle_s, self.look, None)

    def look(self, former: Any) -> None:
        """``former`` is the request that there was at the look before."""
        if self.transport.is_closing():
            return
        if self.cycle is former and (former is None or former.response_complete):
            self.transport.close()
            return
        self.loop.call_later(self.idle_s, self.look, self.cycle)
