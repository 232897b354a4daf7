"""Categories of log messages, read once and in the order of each machine: `docs/scribe.md`. What is here reads;
messages come by Scribe's protocol, from an agent beside the application."""

from __future__ import annotations

from typing import AsyncIterator, Iterator, Optional

from . import _holdfast

#: So long a tail waits in one call: in between, an interrupt is taken.
_WAIT_S = 1.0


class Scribe:
    """Categories, whose messages are read; `Client.scribe`.

    Every message comes as `(index, bytes)`, the bytes as they were sent, mostly with a line's end. The index is that
    of an entry, which many messages share, and which is taken whole: who keeps an entry's index with what was made of
    *all* its messages, and begins with one more, has each message once.

    With `reader`, a name, the place is kept in the cluster. It moves behind a page of messages when the first one
    behind them is asked for, so who ends before has the page again: each message at least once. A name that is
    new begins with the oldest message.
    """

    def __init__(self, scribe: _holdfast.Scribe):
        self._scribe = scribe

    def read(self, category: str, start: Optional[int] = None, *, reader: Optional[str] = None) -> Iterator[tuple]:
        """Messages from an entry on, or from where the reader is, or from the oldest, up to the end as it is when it
        is reached."""
        messages = self._scribe.reader(category, start, reader, False)
        while (page := messages.read()) is not None:
            yield from page
            messages.taken()

    def tail(self, category: str, start: Optional[int] = None, *, reader: Optional[str] = None) -> Iterator[tuple]:
        """As `read`, of messages from an entry on, or from where the reader is, or of those that are still to come,
        without end."""
        messages = self._scribe.reader(category, start, reader, True)
        while True:
            yield from messages.read(_WAIT_S) or ()
            messages.taken()

    def forget(self, category: str, reader: str) -> None:
        """Forgets where a reader is; it holds nothing any more, and would begin with the oldest message."""
        self._scribe.forget(category, reader)

    def categories(self) -> list:
        """The categories that there are: a `CategoryInfo` of each."""
        return self._scribe.categories()


class AsyncScribe:
    """Categories, as `holdfast.Scribe`'s; `AsyncClient.scribe`."""

    def __init__(self, scribe: _holdfast.Scribe, threads):
        self._scribe = scribe
        self._threads = threads

    async def read(self, category: str, start: Optional[int] = None, *, reader: Optional[str] = None) -> AsyncIterator[tuple]:
        """Messages from an entry on, or from where the reader is, or from the oldest, up to the end as it is when it
        is reached."""
        messages = await self._threads(self._scribe.reader, category, start, reader, False)
        while (page := await self._threads(messages.read)) is not None:
            for message in page:
                yield message
            await self._threads(messages.taken)

    async def tail(self, category: str, start: Optional[int] = None, *, reader: Optional[str] = None) -> AsyncIterator[tuple]:
        """As `read`, of messages from an entry on, or from where the reader is, or of those that are still to come,
        without end."""
        messages = await self._threads(self._scribe.reader, category, start, reader, True)
        while True:
            for message in await self._threads(messages.read, _WAIT_S) or ():
                yield message
            await self._threads(messages.taken)

    async def forget(self, category: str, reader: str) -> None:
        """Forgets where a reader is; it holds nothing any more, and would begin with the oldest message."""
        await self._threads(self._scribe.forget, category, reader)

    async def categories(self) -> list:
        """The categories that there are: a `CategoryInfo` of each."""
        return await self._threads(self._scribe.categories)


__all__ = ["AsyncScribe", "Scribe"]
