"""The client as Python's users expect one: directories that are iterated, files that are `io` objects,
tables that are mappings, topics that are followed."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Iterable, Iterator, Optional, Union

from . import _holdfast
from .errors import ExistsError, InvalidError, NotFoundError
from .files import BUFFER_BYTES, open_file
from .items import Items
from .records import Records
from .scribe import Scribe

#: Seconds that one wait for an entry takes, so that an interrupt is noticed.
_WAIT_S = 1.0


def connect(
    servers: Union[str, Iterable[str], None] = None,
    *,
    secret: Optional[str] = None,
    token: Optional[str] = None,
    ca: Optional[str] = None,
    certificate: Optional[str] = None,
    key: Optional[str] = None,
    connections: int = 16,
    patience: float = 20.0,
    mapped: bool = False,
) -> Client:
    """Connects to a node, or to the first that answers of several.

    servers      HOST:PORT or unix:/path; several with commas, or a list. Without one, what the
                 environment's HOLDFAST_SERVER says, then `unix:data/holdfast.sock`, then 127.0.0.1:7400
    secret       the file `secret` of a node's data directory, for nodes over TCP [HOLDFAST_SECRET_FILE]
    token        a file with a token, to be a client with rights of its own [HOLDFAST_TOKEN_FILE]
    ca           the authority of the nodes' certificates, as PEM: talk TLS [HOLDFAST_CA_FILE]
    certificate, key   what the client shows of itself over TLS
    connections  that calls may use at once; files that are open have their own
    patience     seconds for which a request is made again that its node refuses for now
    mapped       reads of `dram` are copied out of the node's memory, which each connection maps: the node is
                 on this host, and named by its socket

    Raises DeniedError if the node does not know the secret, RetryError if no node answers, UnsupportedError or
    InvalidError if its memory cannot be mapped.
    """
    environment = os.environ.get
    if servers is None:
        socket = "data/holdfast.sock"
        local = f"unix:{socket}" if os.path.exists(socket) else "127.0.0.1:7400"
        servers = environment("HOLDFAST_SERVER") or local
    if isinstance(servers, str):
        servers = servers.split(",")
    nodes = list(servers)
    secret = secret or environment("HOLDFAST_SECRET_FILE")
    if secret is None:
        secret = _secret_beside(nodes)
    client = _holdfast.Client(
        nodes,
        secret=secret,
        token=token or environment("HOLDFAST_TOKEN_FILE"),
        ca=ca or environment("HOLDFAST_CA_FILE"),
        certificate=certificate,
        key=key,
        connections=connections,
        patience_s=patience,
        mapped=mapped,
    )
    return Client(client)


def _secret_beside(nodes: list) -> Optional[str]:
    """The secret of the usual places, if it is ours to read."""
    beside = [os.path.dirname(node[len("unix:") :]) for node in nodes if node.startswith("unix:")]
    for directory in [*beside, "data", "dev"]:
        file = os.path.join(directory, "secret")
        if os.access(file, os.R_OK):
            return file
    return None


class Client:
    """Connections to a node; made by :func:`connect`. Any number of threads may use it at once."""

    def __init__(self, client: _holdfast.Client):
        self._client = client

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections. Files that are open go on until they are closed."""
        self._client.close()

    def ping(self) -> None:
        """One round trip that does nothing."""
        self._client.ping()

    def get(self, path: str) -> bytes:
        """The whole of a file, verified."""
        return self._client.get(path)

    def get_ranges(self, ranges) -> list:
        """Bytes of files, each `(path, start, end)`; an end of None is the file's. All are asked for at
        once."""
        return self._client.get_ranges(list(ranges))

    def buffer(self, path: str, start: int = 0, end: Optional[int] = None) -> memoryview:
        """Bytes of a file from `start` up to `end` or the file's, verified, as a read-only buffer that others
        wrap without a copy: `numpy.frombuffer(client.buffer(path), dtype)`.

        It is memory of this process, into which the bytes were received, or copied once out of the node's
        memory, if the client is `mapped`. So it stays as it is, whatever becomes of the file, the node and the
        client.
        """
        if start < 0 or (end is not None and end < 0):
            raise InvalidError(f"read `{path}` from {start} up to {end}: count both from the front of the file")
        return self._client.buffer(path, start, end)

    def put(self, path: str, data, **options) -> int:
        """Stores a whole file of any size, and returns its id, a number that no other file has.

        data           bytes, or what can be seen as bytes
        replace        over a file that is there, which is an ExistsError otherwise
        parents        make missing directories
        mode, mtime_ns, metadata   kept with the name; the time is the node's without one
        storage_class  "disk", "disk:memory", "dram" or "dram,disk"; the directory's without one
        """
        return self._client.put(path, data, **options)

    def open(self, path: str, mode: str = "rb", **options):
        """Opens a file, as Python's own `open`: "rb", "wb", "xb", or text without the "b".

        A file that is written appears when it is closed, whole; one whose `with` block raises is
        forgotten, as is one that is `abandon`ed. Appending and updating in place are not there.

        buffering  bytes, 0 for a raw file [default: 128 KiB]
        encoding, errors, newline   of text
        size       of a file to be written, if it is known: its end is packed with other small files
        parents, file_mode, mtime_ns, metadata, storage_class   as `put`
        """
        return open_file(self._client, path, mode, **options)

    def stat(self, path: str, *, follow: bool = False) -> _holdfast.FileInfo:
        """What is known of a name; of a symbolic link, of the link itself unless it is followed."""
        return self._client.stat(path, follow=follow)

    def exists(self, path: str) -> bool:
        """Whether there is something of that name."""
        try:
            self._client.stat(path)
            return True
        except NotFoundError:
            return False

    def list(self, path: str) -> Iterator[_holdfast.Entry]:
        """The entries of a directory, table or multifile in the order of their names, a page at a time."""
        after, more = "", True
        while more:
            entries, more = self._client.list_page(path, after)
            yield from entries
            if entries:
                after = entries[-1].name

    def usage(self, path: str) -> _holdfast.Usage:
        """Bytes, files and directories below a path, all together."""
        return self._client.usage(path)

    def make_dir(self, path: str, **options) -> None:
        """Makes a directory, or with `kind` a "table" or "multifile". Options: kind, parents, mode,
        storage_class."""
        self._client.make_dir(path, **options)

    def rename(self, old: str, new: str, *, replace: bool = False) -> None:
        """Moves a name with all that is below it, in one step."""
        self._client.rename(old, new, replace=replace)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Removes a name; a directory with entries only if `recursive`."""
        self._client.delete(path, recursive=recursive)

    def symlink(self, target: str, path: str) -> None:
        """Makes a name that stands for `target`, which need not be there."""
        self._client.symlink(target, path)

    def set_attributes(self, path: str, **attributes) -> None:
        """Changes mode, mtime_ns or metadata; what is not named stays."""
        self._client.set_attributes(path, **attributes)

    def table(self, path: str) -> Table:
        """A table of key-values, made if it is not there."""
        return Table(self, path)

    def records(self, table: str) -> Records:
        """A table of records, which may be in several regions, and a session on it: writes with conditions,
        reads as new as is asked for. `Records.make` makes one that is not there."""
        return Records(self._client, table)

    def record_tables(self) -> list:
        """The tables of records that there are: a `RecordsInfo` of each."""
        return self._client.record_tables()

    def items(self, topic: str) -> Items:
        """A topic of items, and a session on it: changes, reads, and rides over views."""
        return Items(self._client, topic)

    @property
    def scribe(self) -> Scribe:
        """Scribe's categories of log messages."""
        return Scribe(self._client.scribe)

    @property
    def log(self) -> Log:
        """Topics of the node's log."""
        return Log(self._client.log)


def is_name(key) -> bool:
    """Whether a table may have such a key."""
    return isinstance(key, str) and key != "" and "/" not in key


def named(key: str) -> str:
    """A key of a table; in a path, one that is empty or ends with a slash would be the table itself, or another key."""
    if not isinstance(key, str):
        raise TypeError(f"use a table's key {key!r:.100}: it is {type(key).__name__}: a key is text")
    if not is_name(key):
        raise InvalidError(f"use a table's key {key!r:.100}: it is a name in a directory: not empty, and without `/`")
    return key


class Table(MutableMapping):
    """Key-values, as a mapping from text to bytes: the last put of a key wins. A key is a name in a
    directory: no "/", and up to 255 bytes."""

    def __init__(self, client: Client, path: str):
        self._client = client
        self._path = path.rstrip("/")
        try:
            client.make_dir(self._path, kind="table")
        except ExistsError:
            if client.stat(self._path, follow=True).kind != "table":
                raise

    def _of(self, key: str) -> str:
        return f"{self._path}/{named(key)}"

    def put(self, key: str, value) -> None:
        """As `table[key] = value`."""
        self[key] = value

    def delete(self, key: str) -> None:
        """As `del table[key]`."""
        del self[key]

    def exists(self, key: str) -> bool:
        """As `key in table`."""
        return key in self

    def count(self) -> int:
        """As `len(table)`."""
        return len(self)

    def __getitem__(self, key: str) -> bytes:
        try:
            return self._client.get(self._of(key))
        except NotFoundError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value) -> None:
        self._client.put(self._of(key), value)

    def __delitem__(self, key: str) -> None:
        try:
            self._client.delete(self._of(key))
        except NotFoundError:
            raise KeyError(key) from None

    def __contains__(self, key) -> bool:
        return is_name(key) and self._client.exists(self._of(key))

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entry in self._client.list(self._path))

    def __len__(self) -> int:
        return self._client.stat(self._path, follow=True).size


class Log:
    """Topics of entries, appended, read and followed."""

    def __init__(self, log: _holdfast.Log):
        self._log = log

    def append(self, topic: str, *entries, synced: bool = True) -> list:
        """Appends entries in their order, and returns the index of each; others' entries and gaps may lie
        between them, so what must stand together is one entry. Makes the topic if there is none.

        Returns once they are synced; with `synced=False` once they have their place, which a power cut
        may take from them. RetryError after a broken connection means unknown: read the topic's end.
        """
        return self._log.append(topic, list(entries), synced=synced)

    def read(self, topic: str, start: Optional[int] = None) -> Iterator[tuple]:
        """Entries as `(index, bytes)` from an index on, or from the first that there is, up to the end as
        it is when it is reached. What a writer sent twice comes once."""
        start = self._log.info(topic).first if start is None else start
        reader = self._log.reader(topic, start)
        while (entries := reader.read()) is not None:
            yield from entries

    def tail(self, topic: str, start: Optional[int] = None) -> Iterator[tuple]:
        """As `read`, of entries from an index on, or of those that are still to come, without end."""
        start = self._log.info(topic).next if start is None else start
        reader = self._log.reader(topic, start)
        while True:
            yield from reader.read(_WAIT_S) or ()

    def trim(self, topic: str, before: int) -> None:
        """Gives up the entries before an index."""
        self._log.trim(topic, before)

    def info(self, topic: str) -> _holdfast.TopicInfo:
        """How far a topic reaches."""
        return self._log.info(topic)

    def topics(self) -> list:
        """The same of every topic."""
        return self._log.topics()


__all__ = ["BUFFER_BYTES", "Client", "Log", "Table", "connect"]
