"""The client for asyncio: every call is awaited, any number of them over one connection.

    client = await holdfast.aio.connect("127.0.0.1:7400", secret="data/secret")
    parts = await asyncio.gather(*(client.get(path) for path in paths))

A call that is cancelled gives up its answer; what it asked for may still be carried out. Loops may come
and go: a client serves whichever calls it, from one process.
"""

from __future__ import annotations

import asyncio
import collections
from typing import AsyncIterator, Optional

from . import _holdfast
from .client import connect as _connect
from .errors import NotFoundError

#: What an `async for` over a file gives at once, and how much of it is asked for ahead: slices of the node.
PIECE_BYTES = 512 << 10
PIECES_AHEAD = 4


def _deliver(waiting, value, error) -> None:
    """Called in the loop of whoever waits."""
    if waiting.cancelled():
        return
    if error is None:
        waiting.set_result(value)
    else:
        waiting.set_exception(error)


async def connect(servers=None, **options) -> AsyncClient:
    """As :func:`holdfast.connect`, which blocks for as long as it looks for the first server that answers."""
    with _connect(servers, **options) as found:
        return AsyncClient(await found._client.asynchronous())


class AsyncClient:
    """One connection to a node; made by :func:`connect`. Its calls are those of `holdfast.Client`."""

    def __init__(self, client: _holdfast.AsyncClient):
        self._client = client
        self.get = client.get
        self.get_ranges = client.get_ranges
        self.put = client.put
        self.stat = client.stat
        self.usage = client.usage
        self.log = AsyncLog(client)
        self.make_dir = client.make_dir
        self.rename = client.rename
        self.delete = client.delete
        self.close = client.close

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def open(self, path: str) -> AsyncFile:
        """A file to be read: a stream, or from anywhere."""
        return AsyncFile(await self._client.open_reader(path))

    def create(self, path: str, **options) -> AsyncFileWriter:
        """A file to be written, of any length: it appears when it is closed, whole, or when its `async with`
        is over; one whose block raises is forgotten. Options as those of `put`."""
        return AsyncFileWriter(self._client.create(path, **options))

    async def exists(self, path: str) -> bool:
        """Whether there is something of that name."""
        try:
            await self._client.stat(path)
            return True
        except NotFoundError:
            return False

    async def list(self, path: str) -> AsyncIterator[_holdfast.Entry]:
        """The entries of a directory in the order of their names, a page at a time."""
        after, more = "", True
        while more:
            entries, more = await self._client.list_page(path, after)
            for entry in entries:
                yield entry
            if entries:
                after = entries[-1].name


class AsyncFile:
    """A file that is read; made by `AsyncClient.open`. `async for` gives its bytes from where it is, asked
    for ahead. A read that is cancelled has read nothing."""

    def __init__(self, reader: _holdfast.AsyncReader):
        self._reader = reader
        self.position = 0

    @property
    def info(self) -> _holdfast.FileInfo:
        """What was opened."""
        return self._reader.info

    @property
    def size(self) -> int:
        """In bytes."""
        return self._reader.info.size

    async def read(self, size: int = -1) -> bytes:
        """So many bytes, or all that are left: fewer only at the end."""
        data = await self.read_at(self.position, self.size if size < 0 else size)
        self.position += len(data)
        return data

    async def read_at(self, position: int, size: int) -> bytes:
        """Bytes from any place, up to the end; any number of such reads may be under way."""
        return await self._reader.read_at(position, size)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        asked, ahead = collections.deque(), self.position
        while True:
            while len(asked) < PIECES_AHEAD and ahead < self.size:
                asked.append(self._reader.read_at(ahead, PIECE_BYTES))
                ahead += PIECE_BYTES
            if not asked:
                return
            piece = await asked.popleft()
            self.position += len(piece)
            yield piece


class AsyncFileWriter:
    """A file that is written, front to back; made by `AsyncClient.create`. A call that is cancelled is carried
    out all the same, and the next one waits for it."""

    def __init__(self, writer: _holdfast.AsyncWriter):
        self._writer = writer
        self._last = None
        self._closed = False
        #: The file's id, once it is closed.
        self.id = None

    async def write(self, data) -> int:
        """Takes all of the bytes, and returns before they are acknowledged."""
        return await self._one(lambda: self._writer.write(data))

    async def flush(self) -> None:
        """Returns when every byte so far is acknowledged."""
        await self._one(self._writer.flush)

    async def close(self) -> None:
        """Names the file: everything is acknowledged. Closed twice is closed."""
        if not self._closed:
            self._closed = True
            self.id = await self._one(self._writer.close)

    async def abandon(self) -> None:
        """Forgets the file."""
        if not self._closed:
            self._closed = True
            await self._one(self._writer.abandon)

    async def _one(self, call):
        while self._last is not None and not self._last.done():
            await asyncio.wait([self._last])
        self._last = call()
        return await asyncio.shield(self._last)

    async def __aenter__(self) -> AsyncFileWriter:
        return self

    async def __aexit__(self, kind, *_) -> None:
        await (self.close() if kind is None else self.abandon())


class AsyncLog:
    """Topics of entries, as `holdfast.Log`'s; `AsyncClient.log`."""

    def __init__(self, client: _holdfast.AsyncClient):
        self._client = client
        self.info = client.log_info

    async def append(self, topic: str, *entries) -> list:
        """Appends entries in their order, and returns the index of each, once they are synced. RetryError
        after a broken connection means unknown: read the topic's end."""
        return await self._client.log_append(topic, list(entries))

    async def read(self, topic: str, start: Optional[int] = None) -> AsyncIterator[tuple]:
        """Entries as `(index, bytes)` from an index on, or from the first that there is, up to the end as it
        is when it is reached. What a writer sent twice comes once."""
        info = await self.info(topic)
        reader = await self._client.log_reader(topic, info.first if start is None else start, info.first)
        while (entries := await reader.read(False)) is not None:
            for entry in entries:
                yield entry

    async def tail(self, topic: str, start: Optional[int] = None) -> AsyncIterator[tuple]:
        """As `read`, of entries from an index on, or of those that are still to come, without end."""
        info = await self.info(topic)
        reader = await self._client.log_reader(topic, info.next if start is None else start, info.first)
        while True:
            for entry in await reader.read(True) or ():
                yield entry
