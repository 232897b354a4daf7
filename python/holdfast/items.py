"""Topics of items, over a node's views: a session's changes and reads, and rides. See docs/views.md.

    orders = client.items("orders")
    orders.make("nodes", hashed="until=/", json=True)
    orders.run_view("disk")
    orders.put("nodes", b"a", b'{"name": "first"}')
    orders.get("nodes", b"a")
    with orders.ride(follow=True) as ride:
        for item in ride:
            ...
"""

from __future__ import annotations

import collections
from typing import Iterable, Iterator, NamedTuple, Optional, Union

from . import _holdfast
from .errors import NotFoundError

#: Keys of a page.
_PAGE_KEYS = 1000
#: So long a ride that follows waits in one call: in between, signals are seen.
_WAIT_S = 1.0
#: Items of a batch, at least, unless the ride is over.
BATCH_ITEMS = 64 << 10


class Item(NamedTuple):
    """One version of one key."""

    collection: str
    key: bytes
    #: Of the log's entry that made it.
    index: int
    #: None if the entry deleted the key; empty where keys alone were asked for.
    value: Optional[bytes]


class Items:
    """A topic of items, and a session on it; made by `Client.items`. Any number of threads may use it.

    What was changed by this object it reads, also where another node answers: `reached` is the last entry
    that it made, and reads wait for a view that has it. Handed on, others see the changes, too:
    `other.get(..., reached=orders.reached)`. A change is numbered, so one that is sent again after a broken
    connection is made once.
    """

    def __init__(self, client: _holdfast.Client, topic: str):
        self._items = client.items(topic)
        self._numbers: dict = {}
        self.topic = topic
        #: The last entry that this object has made: reads wait for it.
        self.reached = 0

    def __enter__(self) -> Items:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Gives the session's connection back. The next change begins another session."""
        self._items.close()

    def make(self, collection: str, *, hashed: str = "all", json: bool = False) -> None:
        """Makes a collection, and the topic if there is none. Made twice is made.

        hashed   which part of a key says where it lies: "all", a number of its first bytes, or "until=C",
                 what is in front of a character; keys that agree in it lie side by side
        json     values are JSON, of which fields can be indexed
        """
        self._made(self._items.make(collection, hashed, json))

    def run_view(self, kind: str = "disk", *, part: int = 0, of: int = 1, index: Optional[tuple] = None) -> None:
        """Has the node run a view from now on: "disk", "memory", or "index" with a collection and a field."""
        self._items.run_view(kind, part=part, of=of, index=index)

    @property
    def collections(self) -> list:
        """Of each collection its name, what of a key is hashed, and whether values are JSON."""
        return self._items.catalog()[0]

    @property
    def horizon(self) -> int:
        """Below it no version can be read."""
        return self._items.catalog()[1]

    def put(self, collection: str, key, value) -> int:
        """Gives a key a value, both bytes; answers the index at which readers see it."""
        return self.change([(collection, key, value)])

    def delete(self, collection: str, key) -> int:
        """Deletes a key, whether it is there or not."""
        return self.change([(collection, key, None)])

    def change(self, changes: Iterable[tuple]) -> int:
        """Changes keys, all or none: each is `(collection, key, value)`, and a value of None deletes. Of a
        key that comes twice, the later one counts. Answers the index at which readers see them."""
        given = [(self._number(collection), key, value) for collection, key, value in changes]
        return self._made(self._items.change(given))

    def trim(self, index: int) -> int:
        """Gives up versions that are older than those of an entry; answers from where on they are kept, which
        is not so far where rides are in front of it."""
        made, horizon = self._items.trim(index)
        self._made(made)
        return horizon

    def mark(self) -> int:
        """Asks for an image of every disk view; answers the entry as of which it can be ridden later."""
        return self._made(self._items.mark())

    def get(self, collection: str, key, *, at: Optional[int] = None, reached: int = 0) -> Optional[bytes]:
        """A key's value, or None: the latest, or as of the entry `at`; not before a view has `reached` an
        entry and the last one of this session."""
        item = self.get_many([(collection, key)], at=at, reached=reached)[0]
        return None if item is None else item.value

    def get_many(self, keys: Iterable[tuple], *, at: Optional[int] = None, reached: int = 0) -> list:
        """As `get` of keys `(collection, key)`, all as of one entry: an :class:`Item` or None for each."""
        keys = [(collection, bytes(key)) for collection, key in keys]
        numbered = [(self._number(collection), key) for collection, key in keys]
        found = self._items.get(numbered, at, max(reached, self.reached))
        return [None if one is None else Item(*key, *one) for key, one in zip(keys, found)]

    def scan(self, collection: str, prefix, *, at: Optional[int] = None, reached: int = 0) -> Iterator[Item]:
        """Keys that begin so, in their order, a page at a time, each page as of its own entry unless `at` says
        one. The prefix has at least the part that is hashed."""
        number, after, more = self._number(collection), None, True
        while more:
            behind = max(reached, self.reached)
            rows, more = self._items.scan(number, bytes(prefix), after, _PAGE_KEYS, at, behind)
            for key, index, value in rows:
                yield Item(collection, key, index, value)
            after = rows[-1][0] if rows else after

    def find(self, collection: str, field: str, value: str, *, reached: int = 0) -> Iterator[bytes]:
        """Keys whose value has this in a field now, in their order, by an index that the node runs."""
        after, more = None, True
        while more:
            behind = max(reached, self.reached)
            keys, more = self._items.find(collection, field, value.encode(), after, _PAGE_KEYS, behind)
            yield from keys
            after = keys[-1] if keys else after

    def ride(
        self,
        part: int = 0,
        of: int = 1,
        *,
        follow: bool = False,
        collections: Optional[Iterable[str]] = None,
        keys_only: bool = False,
        versions: bool = False,
        since: int = 0,
        below: Optional[int] = None,
        fields: Optional[Iterable[str]] = None,
        reached: int = 0,
        at: Optional[int] = None,
        token: Optional[str] = None,
        servers: Union[str, Iterable[str], None] = None,
        leave_out: Union[str, Iterable[str]] = (),
        apart: Union[str, Iterable[str]] = (),
        dedicated: bool = False,
    ) -> Ride:
        """Everything that disk views hold of a part of the keys, of each view as of one entry: the newest value of
        each key, in no order but that of a key's versions.

        follow       behind that, every change as it comes, deletions among them, without end, or with `below` up
                     to that entry
        collections  of these alone
        keys_only    without values
        versions     every version down to the horizon, with deletions
        since, below only what this entry or a later one has made, and what earlier ones have
        fields       of values, which are JSON, objects of these fields alone
        reached      not before a view has this entry, or the last one of this session
        at           as of this entry, of which there are images (`mark`): where a node breaks off, it goes on at
                     the others
        token        what an earlier ride of `at` has left, by its `token`; with the other options that it had
        servers      the nodes whose views are ridden, all at once: HOST:PORT or unix:/path, with commas or a list.
                     Without them this client's node alone; of `at` and `token` all that it was connected with
        leave_out    these not
        apart        these rather than others: they are set apart for rides, so that others stay free
        dedicated    with a pass over the rows of its own, which nobody shares
        """
        collections = None if collections is None else list(collections)
        numbers = None if collections is None else [self._number(name) for name in collections]
        is_of_images = at is not None or token is not None
        return Ride(
            self._items.ride(
                part=part,
                of=of,
                collections=numbers,
                names=None if collections is None else ",".join(collections),
                keys_only=keys_only,
                versions=versions,
                since=since,
                below=below,
                fields=None if fields is None else list(fields),
                # An image is as of its mark, whatever came since.
                reached=reached if is_of_images else max(reached, self.reached),
                at=at,
                follow=follow,
                dedicated=dedicated,
                servers=None if servers is None else _listed(servers),
                leave_out=_listed(leave_out),
                apart=_listed(apart),
                token=token,
            )
        )

    def _made(self, index: int) -> int:
        self.reached = max(self.reached, index)
        return index

    def _number(self, collection: str) -> int:
        if collection not in self._numbers:
            names = [name for name, _, _ in self._items.catalog()[0]]
            # Collections are never removed.
            self._numbers = {name: number for number, name in enumerate(names, 1)}
            if collection not in self._numbers:
                has = ", ".join(names) or "none"
                raise NotFoundError(f"find collection `{collection}` of topic `{self.topic}`: it has {has}: `make` it")
        return self._numbers[collection]


def _listed(servers: Union[str, Iterable[str]]) -> list:
    return servers.split(",") if isinstance(servers, str) else list(servers)


class Ride:
    """Items as they come; made by `Items.ride`. One that follows has no end: a RetryError says that nobody
    answers for now, and the next call goes on where it was. Any other error ends it."""

    def __init__(self, ride: _holdfast.Ride):
        self._ride = ride
        self._ready: collections.deque = collections.deque()

    @property
    def index(self) -> int:
        """As of which entry: that of the first view, where several are ridden."""
        return self._ride.index

    @property
    def follows(self) -> bool:
        """Whether what came last was heard of from the log, in its order: the views were received."""
        return self._ride.follows

    @property
    def token(self) -> Optional[str]:
        """Of a ride of `at`, what is left of it, for `Items.ride(token=...)` at any nodes with images of that mark;
        None of the present. What came at once counts as received when the last item of it was taken: of what is
        half taken, all comes again."""
        if not self._ready:
            self._ride.taken()
        return self._ride.token

    @property
    def left_out(self) -> list:
        """Why nodes are not ridden any more: a sentence each. What is left of their parts comes from others."""
        return self._ride.left_out

    def __enter__(self) -> Ride:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, wherever it is."""
        self._ride.close()
        self._ready.clear()

    def __iter__(self) -> Ride:
        return self

    def __next__(self) -> Item:
        while True:
            item = self._take()
            if item is not None:
                return item
            if not self._come(_WAIT_S):
                raise StopIteration

    def batches(self) -> Iterator:
        """The same as batches of Arrow, with columns `collection`, `key`, `index` and `value`; it needs
        `pyarrow`. One that follows gives what has come at once."""
        kept = schema()
        waiting, more = [], True
        while more:
            more = self._come(_WAIT_S)
            while (item := self._take()) is not None:
                waiting.append(item)
            # A slab has 64 KiB and more; what is followed comes as it is.
            if waiting and (not more or len(waiting) >= BATCH_ITEMS or self.follows):
                yield batch_of(waiting, kept)
                waiting = []

    def _take(self) -> Optional[Item]:
        """The next one of those that have come."""
        try:
            return Item._make(self._ready.popleft())
        except IndexError:
            return None

    def _come(self, wait_s: float) -> bool:
        """Asks for more; False at the end. Nothing may have come."""
        come = self._ride.next(wait_s)
        self._ready.extend(come or ())
        return come is not None


def schema():
    """Of batches of items; it needs `pyarrow`."""
    from .tables import arrow

    pyarrow = arrow("ride in batches")
    kinds = {
        "collection": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        "key": pyarrow.binary(),
        "index": pyarrow.uint64(),
        "value": pyarrow.binary(),
    }
    return pyarrow.schema(list(kinds.items()))


def batch_of(items: list, kept):
    """Items as a batch of Arrow of that schema."""
    import pyarrow

    arrays = [pyarrow.array(column, kind) for column, kind in zip(zip(*items), kept.types)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=kept)


__all__ = ["BATCH_ITEMS", "Item", "Items", "Ride"]
