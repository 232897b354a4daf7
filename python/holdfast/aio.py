"""The client for asyncio: every call is awaited, any number of them over one connection.

    client = await holdfast.aio.connect("127.0.0.1:7400", secret="data/secret")
    parts = await asyncio.gather(*(client.get(path) for path in paths))

A call that is cancelled gives up its answer; what it asked for may still be carried out. Loops may come
and go: a client serves whichever calls it, from one process.
"""

from __future__ import annotations

from typing import AsyncIterator

from . import _holdfast
from .client import connect as _connect
from .errors import NotFoundError


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
        self.make_dir = client.make_dir
        self.rename = client.rename
        self.delete = client.delete
        self.close = client.close

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

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
