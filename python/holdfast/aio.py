"""The client for asyncio: every call is awaited, any number of them over one connection.

    client = await holdfast.aio.connect("127.0.0.1:7400", secret="data/secret")
    parts = await asyncio.gather(*(client.get(path) for path in paths))

A call that is cancelled gives up its answer; what it asked for may still be carried out. Loops may come
and go: a client serves whichever calls it, from one process.

Names, files and the log are asynchronous down to the socket. Topics of items, rides, tables of records and what
else waits there for a blocking client does so in threads of this client, up to `connections` at once.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import AsyncIterator, Iterable, Iterator, Optional

from . import _holdfast
from .client import Client, Log, is_name, named
from .client import connect as _connect
from .errors import ExistsError, InvalidError, NotFoundError
from .items import BATCH_ITEMS, Item, Items, Ride, batch_of, schema
from .records import Branch, Record, Records, Row
from .scribe import AsyncScribe

#: What an `async for` over a file gives at once, and how much of it is asked for ahead: slices of the node.
PIECE_BYTES = 512 << 10
PIECES_AHEAD = 4
#: What is taken at once from an iterator that blocks: a page of items or records.
_PAGE = 1000
#: Says that no default was given.
_NONE = object()
#: So long a ride waits in one call: in between, one that was closed ends.
_WAIT_S = 1.0


def _deliver(waiting, value, error) -> None:
    """Called in the loop of whoever waits."""
    if waiting.cancelled():
        return
    if error is None:
        waiting.set_result(value)
    else:
        waiting.set_exception(error)


class _Threads:
    """Where calls wait that block. They are started when they are needed."""

    def __init__(self, most: int, what: str = "a client"):
        self._executor = ThreadPoolExecutor(most, thread_name_prefix="holdfast")
        self._process = os.getpid()
        self._what = what
        self._closed = False

    def begin(self, call, *arguments, **options):
        """A `concurrent.futures.Future` of what a call comes to."""
        if os.getpid() != self._process:
            # A child has none of its parent's threads.
            raise InvalidError("use a client of asyncio from before a fork: make another one in this process")
        if self._closed:
            raise InvalidError(f"use {self._what}: it was closed")
        return self._executor.submit(functools.partial(call, *arguments, **options))

    async def __call__(self, call, *arguments, **options):
        return await asyncio.wrap_future(self.begin(call, *arguments, **options))

    async def each(self, iterator: Iterator) -> AsyncIterator:
        """What an iterator gives, a page at a time."""
        while some := await self(list, itertools.islice(iterator, _PAGE)):
            for one in some:
                yield one

    def close(self) -> None:
        """Calls that wait are carried out."""
        self._closed = True
        self._executor.shutdown(wait=False)


async def connect(servers=None, **options) -> AsyncClient:
    """As :func:`holdfast.connect`, which blocks for as long as it looks for the first server that answers."""
    blocking = _connect(servers, **options)
    try:
        return AsyncClient(await blocking._client.asynchronous(), blocking, options.get("connections", 16))
    except BaseException:
        blocking.close()
        raise


class AsyncClient:
    """One connection to a node; made by :func:`connect`. Its calls are those of `holdfast.Client`."""

    def __init__(self, client: _holdfast.AsyncClient, blocking: Client, threads: int = 16):
        self._client = client
        self._blocking = blocking
        self._threads = _Threads(threads)
        self._closed = False
        #: Topics of the node's log.
        self.log = AsyncLog(client, blocking.log, self._threads)
        #: Scribe's categories of log messages.
        self.scribe = AsyncScribe(blocking._client.scribe, self._threads)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session and the connections. Closed twice is closed."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._client.close()
        finally:
            await self._threads(self._blocking.close)
            self._threads.close()

    async def ping(self) -> None:
        """One round trip that does nothing."""
        await self._threads(self._blocking.ping)

    def get(self, path: str):
        """The whole of a file, verified."""
        return self._client.get(path)

    def get_ranges(self, ranges):
        """Bytes of files, each `(path, start, end)`; an end of None is the file's. All are asked for at once."""
        return self._client.get_ranges(list(ranges))

    async def buffer(self, path: str, start: int = 0, end: Optional[int] = None) -> memoryview:
        """As `holdfast.Client.buffer`: a read-only buffer that others wrap without a copy."""
        return await self._threads(self._blocking.buffer, path, start, end)

    def put(self, path: str, data, **options):
        """Stores a whole file of any size, and returns its id. Options as `holdfast.Client.put`."""
        return self._client.put(path, data, **options)

    async def open(self, path: str) -> AsyncFile:
        """A file to be read: a stream, or from anywhere."""
        return AsyncFile(await self._client.open_reader(path))

    def create(self, path: str, **options) -> AsyncFileWriter:
        """A file to be written, of any length: it appears when it is closed, whole, or when its `async with`
        is over; one whose block raises is forgotten. Options as those of `put`."""
        return AsyncFileWriter(self._client.create(path, **options))

    def stat(self, path: str, *, follow: bool = False):
        """What is known of a name; of a symbolic link, of the link itself unless it is followed."""
        return self._client.stat(path, follow=follow)

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

    def usage(self, path: str):
        """Bytes, files and directories below a path, all together."""
        return self._client.usage(path)

    def make_dir(self, path: str, **options):
        """Makes a directory, or with `kind` a "table" or "multifile". Options: kind, parents, mode,
        storage_class."""
        return self._client.make_dir(path, **options)

    def rename(self, old: str, new: str, *, replace: bool = False):
        """Moves a name with all that is below it, in one step."""
        return self._client.rename(old, new, replace=replace)

    def delete(self, path: str, *, recursive: bool = False):
        """Removes a name; a directory with entries only if `recursive`."""
        return self._client.delete(path, recursive=recursive)

    def symlink(self, target: str, path: str):
        """Makes a name that stands for `target`, which need not be there."""
        return self._client.symlink(target, path)

    def set_attributes(self, path: str, **attributes):
        """Changes mode, mtime_ns or metadata; what is not named stays."""
        return self._client.set_attributes(path, **attributes)

    async def table(self, path: str) -> AsyncTable:
        """A table of key-values, made if it is not there."""
        table = AsyncTable(self, path)
        try:
            await self.make_dir(table._path, kind="table")
        except ExistsError:
            if (await self.stat(table._path, follow=True)).kind != "table":
                raise
        return table

    def items(self, topic: str) -> AsyncItems:
        """A topic of items, and a session on it: changes, reads, and rides over views."""
        return AsyncItems(self._blocking.items(topic), self._threads)

    def records(self, table: str) -> AsyncRecords:
        """A table of records, which may be in several regions, and a session on it."""
        return AsyncRecords(self._blocking.records(table), self._threads)

    async def record_tables(self) -> list:
        """The tables of records that there are: a `RecordsInfo` of each."""
        return await self._threads(self._blocking.record_tables)


class AsyncTable:
    """Key-values, from text to bytes, with the calls of `holdfast.Table`; made by `AsyncClient.table`. To read a
    key, `await table[key]`; whatever changes one is a call."""

    def __init__(self, client: AsyncClient, path: str):
        self._client = client
        self._path = path.rstrip("/")

    def _of(self, key: str) -> str:
        return f"{self._path}/{named(key)}"

    async def __getitem__(self, key: str) -> bytes:
        try:
            return await self._client.get(self._of(key))
        except NotFoundError:
            raise KeyError(key) from None

    async def __aiter__(self) -> AsyncIterator[str]:
        async for entry in self._client.list(self._path):
            yield entry.name

    async def get(self, key: str, default=None):
        """A key's value, or the default."""
        try:
            return await self[key]
        except KeyError:
            return default

    async def put(self, key: str, value) -> None:
        """Gives a key a value: the last put wins."""
        await self._client.put(self._of(key), value)

    async def delete(self, key: str) -> None:
        """Removes a key. KeyError if it is not there."""
        try:
            await self._client.delete(self._of(key))
        except NotFoundError:
            raise KeyError(key) from None

    async def exists(self, key: str) -> bool:
        """Whether there is such a key."""
        return is_name(key) and await self._client.exists(self._of(key))

    async def count(self) -> int:
        """How many keys there are."""
        return (await self._client.stat(self._path, follow=True)).size

    def keys(self) -> AsyncIterator[str]:
        """As `async for key in table`."""
        return self.__aiter__()

    async def items(self) -> AsyncIterator[tuple]:
        """Keys with their values. One that goes meanwhile is left out."""
        async for key in self:
            try:
                yield key, await self[key]
            except KeyError:
                pass

    async def values(self) -> AsyncIterator[bytes]:
        """The values, in the order of their keys."""
        async for _, value in self.items():
            yield value

    async def pop(self, key: str, default=_NONE):
        """Removes a key, and answers its value; or the default, if one is given."""
        try:
            value = await self[key]
            await self.delete(key)
            return value
        except KeyError:
            if default is _NONE:
                raise
            return default

    async def popitem(self) -> tuple:
        """Removes the first key, and answers it with its value. KeyError if there is none."""
        async for key in self:
            return key, await self.pop(key)
        raise KeyError(f"take a key of `{self._path}`: there is none")

    async def setdefault(self, key: str, default=None):
        """A key's value; if it is not there, it is given the default first."""
        try:
            return await self[key]
        except KeyError:
            await self.put(key, default)
            return default

    async def update(self, other=(), /, **kwds) -> None:
        """Puts all keys of a mapping, or pairs."""
        for key, value in dict(other, **kwds).items():
            await self.put(key, value)

    async def clear(self) -> None:
        """Removes all keys."""
        async for key in self:
            await self.pop(key, None)


class AsyncItems:
    """A topic of items, and a session on it, with the calls of `holdfast.Items`; made by `AsyncClient.items`. What
    is a property there is awaited here."""

    def __init__(self, items: Items, threads: _Threads):
        self._items = items
        self._threads = threads
        self.topic = items.topic

    async def __aenter__(self) -> AsyncItems:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def close(self) -> None:
        """Gives the session's connection back. The next change begins another session."""
        await self._threads(self._items.close)

    @property
    def reached(self) -> int:
        """The last entry that this object has made: reads wait for it."""
        return self._items.reached

    @reached.setter
    def reached(self, index: int) -> None:
        self._items.reached = index

    async def make(self, collection: str, *, hashed: str = "all", json: bool = False) -> None:
        """Makes a collection, and the topic if there is none. Made twice is made."""
        await self._threads(self._items.make, collection, hashed=hashed, json=json)

    async def run_view(self, kind: str = "disk", *, part: int = 0, of: int = 1, index: Optional[tuple] = None) -> None:
        """Has the node run a view from now on."""
        await self._threads(self._items.run_view, kind, part=part, of=of, index=index)

    @property
    def collections(self):
        """Of each collection its name, what of a key is hashed, and whether values are JSON; to be awaited."""
        return self._threads(lambda: self._items.collections)

    @property
    def horizon(self):
        """Below it no version can be read; to be awaited."""
        return self._threads(lambda: self._items.horizon)

    async def put(self, collection: str, key, value) -> int:
        """Gives a key a value, both bytes; answers the index at which readers see it."""
        return await self._threads(self._items.put, collection, key, value)

    async def delete(self, collection: str, key) -> int:
        """Deletes a key, whether it is there or not."""
        return await self._threads(self._items.delete, collection, key)

    async def change(self, changes: Iterable[tuple]) -> int:
        """Changes keys, all or none: each is `(collection, key, value)`, and a value of None deletes."""
        return await self._threads(self._items.change, list(changes))

    async def trim(self, index: int) -> int:
        """Gives up versions that are older than those of an entry; answers from where on they are kept."""
        return await self._threads(self._items.trim, index)

    async def mark(self) -> int:
        """Asks for an image of every disk view; answers the entry as of which it can be ridden later."""
        return await self._threads(self._items.mark)

    async def get(self, collection: str, key, *, at: Optional[int] = None, reached: int = 0) -> Optional[bytes]:
        """A key's value, or None."""
        return await self._threads(self._items.get, collection, key, at=at, reached=reached)

    async def get_many(self, keys: Iterable[tuple], *, at: Optional[int] = None, reached: int = 0) -> list:
        """As `get` of keys `(collection, key)`, all as of one entry: an `Item` or None for each."""
        return await self._threads(self._items.get_many, list(keys), at=at, reached=reached)

    def scan(self, collection: str, prefix, *, at: Optional[int] = None, reached: int = 0) -> AsyncIterator[Item]:
        """Keys that begin so, in their order, a page at a time."""
        return self._threads.each(self._items.scan(collection, prefix, at=at, reached=reached))

    def find(self, collection: str, field: str, value: str, *, reached: int = 0) -> AsyncIterator[bytes]:
        """Keys whose value has this in a field now, in their order, by an index that the node runs."""
        return self._threads.each(self._items.find(collection, field, value, reached=reached))

    async def ride(self, part: int = 0, of: int = 1, **options) -> AsyncRide:
        """Everything that disk views hold of a part of the keys, and behind it, with `follow`, every change as it
        comes. Options as those of `holdfast.Items.ride`."""
        return AsyncRide(await self._threads(self._items.ride, part, of, **options))


class AsyncRide:
    """Items as they come, for `async for`; made by `AsyncItems.ride`. A step that is cancelled takes nothing: what
    comes meanwhile is the next one's. It waits in a thread of its own."""

    def __init__(self, ride: Ride):
        self._ride = ride
        self._threads = _Threads(1, "a ride")
        self._closed = False
        #: What is being asked for.
        self._asked = None

    @property
    def index(self) -> int:
        """As of which entry: that of the first view, where several are ridden."""
        return self._ride.index

    @property
    def follows(self) -> bool:
        """Whether what came last was heard of from the log, in its order."""
        return self._ride.follows

    @property
    def token(self) -> Optional[str]:
        """Of a ride of `at`, what is left of it, as `holdfast.Ride.token`."""
        # Not while it waits for more, which would wait, too.
        return self._ride.token if self._asked is None else self._ride._ride.token

    @property
    def left_out(self) -> list:
        """Why nodes are not ridden any more: a sentence each."""
        return self._ride.left_out

    async def __aenter__(self) -> AsyncRide:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends it, wherever it is. Closed twice is closed."""
        if not self._closed:
            self._closed = True
            await self._threads(self._ride.close)
            self._threads.close()

    def __aiter__(self) -> AsyncRide:
        return self

    async def __anext__(self) -> Item:
        while True:
            item = self._ride._take()
            if item is not None:
                return item
            if not await self._come():
                raise StopAsyncIteration

    async def batches(self) -> AsyncIterator:
        """The same as batches of Arrow, as `holdfast.Ride.batches`."""
        kept = schema()
        waiting, more = [], True
        while more:
            more = await self._come()
            while (item := self._ride._take()) is not None:
                waiting.append(item)
            if waiting and (not more or len(waiting) >= BATCH_ITEMS or self.follows):
                yield batch_of(waiting, kept)
                waiting = []

    async def _come(self) -> bool:
        """Asks for more; False at the end. Nothing may have come."""
        if self._closed:
            return False
        asked = self._asked
        if asked is None:
            asked = self._asked = self._threads.begin(self._ride._come, _WAIT_S)
        try:
            return await asyncio.shield(asyncio.wrap_future(asked))
        finally:
            # Whoever waits for it after one that was cancelled, takes it.
            if asked.done() and self._asked is asked:
                self._asked = None


class AsyncRecords:
    """A table of records, and a session on it, with the calls of `holdfast.Records`; made by
    `AsyncClient.records`. What is a property there is awaited here."""

    def __init__(self, records: Records, threads: _Threads):
        self._records = records
        self._threads = threads
        self.table = records.table

    async def __aenter__(self) -> AsyncRecords:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def close(self) -> None:
        """Gives the session's connection back. The next call begins another session, which has seen nothing."""
        await self._threads(self._records.close)

    async def make(self, *, mode: str = "timeline", tablets: int = 1, here: bool = False) -> _holdfast.RecordsInfo:
        """Makes the table. Made twice with the same words is made."""
        return await self._threads(self._records.make, mode=mode, tablets=tablets, here=here)

    async def split(self, tablet: int, *, at: Optional[int] = None) -> _holdfast.RecordsInfo:
        """Cuts a tablet in two at this hash, or in its middle, while the table is used; answered once both are
        served."""
        return await self._threads(self._records.split, tablet, at=at)

    async def describe(self) -> _holdfast.RecordsInfo:
        """How the table is doing."""
        return await self._threads(self._records.describe)

    async def put(self, key, value, *, if_absent: bool = False, if_version: Optional[int] = None) -> int:
        """Gives a record a value; answers its version."""
        return await self._threads(self._records.put, key, value, if_absent=if_absent, if_version=if_version)

    async def delete(self, key, *, if_version: Optional[int] = None) -> int:
        """Deletes a record; answers the version of that."""
        return await self._threads(self._records.delete, key, if_version=if_version)

    async def write(self, writes: Iterable[tuple]) -> list:
        """Writes many at once, each decided by itself: a `Written` for each."""
        return await self._threads(self._records.write, list(writes))

    async def write_together(self, writes: Iterable[tuple]) -> list:
        """Writes records that stand or fall together: the version of each."""
        return await self._threads(self._records.write_together, list(writes))

    async def get_together(self, keys: Iterable, *, level: str = "session") -> list:
        """As `get_many`, of keys of one tablet, as they show at one moment."""
        return await self._threads(self._records.get_together, list(keys), level=level)

    async def get(self, key, *, level: str = "session", at_least: Optional[int] = None) -> Optional[Record]:
        """A record, or None."""
        return await self._threads(self._records.get, key, level=level, at_least=at_least)

    async def get_many(self, keys: Iterable, *, level: str = "session", at_least: Optional[int] = None) -> list:
        """As `get`, a `Record` or None for each key."""
        return await self._threads(self._records.get_many, list(keys), level=level, at_least=at_least)

    def scan(self, prefix=None, *, start=b"", end=None, backwards: bool = False) -> AsyncIterator[Row]:
        """Records in order of their keys, a page at a time."""
        return self._threads.each(self._records.scan(prefix, start=start, end=end, backwards=backwards))

    async def seal(self, lost: int) -> None:
        """Goes on without a region that is lost."""
        await self._threads(self._records.seal, lost)

    def branches(self) -> AsyncIterator[Branch]:
        """What sealed regions had alone, in order of tablets and keys."""
        return self._threads.each(self._records.branches())

    async def resolve(self, key, *, keep: str, place: Optional[str] = None) -> None:
        """Sees to a key's branch, by keeping the "record" as it is, or the "branch"."""
        await self._threads(self._records.resolve, key, keep=keep, place=place)

    @property
    def session(self):
        """What this object has seen, as a line of text; to be awaited."""
        return self._threads(lambda: self._records.session)

    async def go_on(self, session: str) -> None:
        """Goes on with what a `session` has seen, here or elsewhere."""
        await self._threads(self._records.go_on, session)


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

    async def close(self) -> None:
        """Nothing: a file that is read holds nothing of the node's."""

    async def __aenter__(self) -> AsyncFile:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

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

    def __init__(self, client: _holdfast.AsyncClient, log: Log, threads: _Threads):
        self._client = client
        self._log = log
        self._threads = threads

    async def append(self, topic: str, *entries, synced: bool = True) -> list:
        """Appends entries in their order, and returns the index of each, once they are synced; with
        `synced=False` once they have their place, which a power cut may take from them. RetryError after a broken
        connection means unknown: read the topic's end."""
        if synced:
            return await self._client.log_append(topic, list(entries))
        return await self._threads(self._log.append, topic, *entries, synced=False)

    def info(self, topic: str):
        """How far a topic reaches."""
        return self._client.log_info(topic)

    async def topics(self) -> list:
        """The same of every topic."""
        return await self._threads(self._log.topics)

    async def trim(self, topic: str, before: int) -> None:
        """Gives up the entries before an index."""
        await self._threads(self._log.trim, topic, before)

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
