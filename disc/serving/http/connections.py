"""The HTTP connections: how many, how long each may be silent, and request bodies within their limits.

aiohttp bounds none of this: a connection that says nothing stays for ever, and a body that stops arriving keeps what has come of it.
"""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from disc.errors import RequestError
from disc.serving.holding import Holding
from disc.serving.logs import log_seldom
from disc.serving.settings import Limits

LOOK_S = 0.25
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class Connection(web.RequestHandler):
    """One client's. busy: a request of it is being answered. since: when it last did anything that counts. begun: part of a request's
    head has come."""

    def __init__(self, server: web.Server, table: Connections, loop: asyncio.AbstractEventLoop) -> None:
        # Bodies are decompressed by `read_body`, within their limit.
        super().__init__(server, loop=loop, access_log=None, auto_decompress=False)  # pyright: ignore[reportArgumentType]
        self._table = table
        self.busy = self.begun = False
        self.since = time.monotonic()
        self._unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._table.admit(self):
            cast("asyncio.Transport", transport).write(_FULL)
            transport.close()

    def data_received(self, data: bytes) -> None:
        if not self.busy and not self.begun:
            self.begun, self.since = True, time.monotonic()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._table.forget(self)
        super().connection_lost(exc)

    def log_exception(self, *words: object, exc_info: object = None, **_: object) -> None:
        """What aiohttp would print with a traceback; nothing for requests that are not HTTP, since the client gets the error."""
        if not isinstance(exc_info, HttpProcessingError):
            log_seldom("http", message=str(words[0]) if words else "", error=repr(exc_info or sys.exc_info()[1]))

    def begin(self) -> None:
        """The head of a request is here."""
        self.busy = True

    def end(self) -> None:
        """The request has its answer, which may be on its way yet."""
        self.busy = self.begun = False
        self.since = time.monotonic()

    def silent(self, now: float) -> float:
        """Seconds in which nothing of a request came, nor did anything of an answer leave."""
        transport = self.transport
        unsent = 0 if transport is None else cast("asyncio.WriteTransport", transport).get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self.since = unsent, now
        return now - self.since

    def drop(self) -> None:
        if self.transport is not None:
            cast("asyncio.Transport", self.transport).abort()


class Connections:
    """All of a server. Used on its event loop alone."""

    def __init__(self, most: int, limits: Limits) -> None:
        self._most = most
        self._limits = limits
        self._all: dict[Connection, None] = {}

    def admit(self, connection: Connection) -> bool:
        """Takes a connection, in the place of the one that has been silent for longest where there are too many; False: all are busy."""
        if len(self._all) >= self._most:
            now = time.monotonic()
            idle = max((each for each in self._all if not each.busy), key=lambda each: each.silent(now), default=None)
            if idle is None:
                return False
            self.forget(idle)
            idle.drop()
        self._all[connection] = None
        return True

    def forget(self, connection: Connection) -> None:
        self._all.pop(connection, None)

    async def watch(self) -> None:
        """Drops those that are silent for too long, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            for each in list(self._all):
                if not each.busy and each.silent(now) > (self._limits.arrival_s if each.begun else self._limits.idle_s):
                    self.forget(each)
                    each.drop()


class Body:
    """The bytes of a request, which count as held as long as this object lives."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self.data = bytearray()

    def add(self, piece: bytes) -> None:
        """Raises OverloadedError before any of the piece is kept."""
        self._holding.take(len(piece))
        self.data += piece

    def __del__(self) -> None:
        self._holding.give(len(self.data))


async def read_body(request: web.Request, limits: Limits, holding: Holding) -> Body:
    """The body, decompressed. Raises HTTPRequestEntityTooLarge, HTTPRequestTimeout, RequestError, OverloadedError."""
    most = limits.message_bytes
    if request.content_length is not None and request.content_length > most:
        raise web.HTTPRequestEntityTooLarge(most, request.content_length)
    body, unpack = Body(holding), _unpacker(request.headers.get("Content-Encoding", "identity"))
    start, arrived = time.monotonic(), 0
    while piece := await _piece(request, limits.arrival_left(start, arrived)):
        arrived += len(piece)
        while piece:
            if unpack is None:
                content, piece = piece, b""
            else:
                content, piece = unpack.next(piece, most + 1 - len(body.data))
            if len(body.data) + len(content) > most:
                raise web.HTTPRequestEntityTooLarge(most, most + 1)
            body.add(content)
    if unpack is not None:
        unpack.check_end()
    return body


async def _piece(request: web.Request, left: float) -> bytes:
    """What comes next; b"" at the end."""
    try:
        async with asyncio.timeout(left):
            return await request.content.readany()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    except (web.RequestPayloadError, OSError):
        raise RequestError("the body is cut off or malformed") from None


class _Unpacker:
    """Decompresses piece by piece, never more than is requested."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._stream = zlib.decompressobj(_WINDOW_BITS[encoding])

    def next(self, piece: bytes, most: int) -> tuple[bytes, bytes]:
        """Up to `most` bytes, and what is left of the piece. Raises RequestError."""
        if self._stream.eof:
            raise RequestError(f"bytes follow the {self._encoding} stream of the body")
        try:
            content = self._stream.decompress(piece, most)
        except zlib.error:
            raise RequestError(f"the body is not the {self._encoding} stream that its Content-Encoding says") from None
        return content, self._stream.unconsumed_tail or self._stream.unused_data

    def check_end(self) -> None:
        """Raises RequestError for a stream that has not ended."""
        if not self._stream.eof:
            raise RequestError(f"the {self._encoding} stream of the body is cut off")


def _unpacker(encoding: str) -> _Unpacker | None:
    known = encoding.strip().lower()
    if known in ("", "identity"):
        return None
    if known not in _WINDOW_BITS:
        raise RequestError(f"Content-Encoding {encoding[:50]!r}: the encodings are identity, {', '.join(_WINDOW_BITS)}")
    return _Unpacker(known)
