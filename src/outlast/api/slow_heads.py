"""Connections whose request head does not arrive: given up, as each holds a file of the process.

In: bytes of a client. Out: what uvicorn makes of them, or a closed connection. Bodies and answers
have their bounds in the guard; an idle connection has uvicorn's.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""How long a request line and its headers may take, from the connection or the first byte on."""


class HeadInTime(H11Protocol):
    """HTTP/1.1 for clients that say what they want."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Nothing has come yet."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Some of a head, or what follows one: a slow head has no more time for each byte."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._arrived()
        elif self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is waited for any more."""
        self._arrived()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
