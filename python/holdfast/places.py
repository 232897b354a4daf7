"""Places other than this machine's files where jobs read and write: a Holdfast node, and objects over S3. Each has
paths, and what jobs do with them; nobody else needs to know which it is.

    holdfast://NODE:PORT/PATH       a node's files
    s3://BUCKET/KEY                 objects, of Holdfast or any other S3, by the package `s3fs`

Files of a node are written whole or not at all, and a directory gets its name in one step. An object is whole
or not there, but no prefix has a name of its own: so an output in S3 is whole once `_SUCCESS` is in it.
"""

import contextlib
import functools
import time
from dataclasses import dataclass, field

from .errors import DeniedError, InvalidError, NotFoundError, RetryError, UnsupportedError

HOLDFAST, S3 = "holdfast://", "s3://"
#: For so long a job that has begun waits for a node that is away, in a worker that has no connection yet, and
#: between two looks: as the client does that has one.
PATIENCE_S = 20.0
PAUSE_S = 0.2
#: Bytes of an object that are asked for at once, and of a part of an upload, of which there are 10,000 at most.
READ_BYTES = 4 << 20
UPLOAD_BYTES = 16 << 20
#: What an output in S3 has once it is whole. Spark and Hadoop write it, and readers of theirs skip it.
SUCCESS = "_SUCCESS"
#: What `s3` of a job may say, by the names that s3fs has for it.
_S3_OPTIONS = {"endpoint": "endpoint_url", "key": "key", "secret": "secret", "profile": "profile"}


@dataclass(frozen=True)
class Access:
    """How places are reached from each node: the file with a Holdfast node's secret, and of S3 pairs of option
    and value. What is not said of S3 each node finds as Amazon's own tools do."""

    secret: str = None
    #: Seconds for which a node that nobody answers at is asked again: of a job that has begun, as it was there then.
    patience_s: float = 0.0
    #: Keys among them, which nothing prints.
    s3: tuple = field(default=(), repr=False)


def access_of(secret, s3):
    """What a job's call says of the places that it reads and writes."""
    unknown = sorted(set(s3 or ()) - {*_S3_OPTIONS, "region"})
    if unknown:
        raise InvalidError(f"run a job with s3={{{unknown[0]!r}: ...}}: give {', '.join(map(repr, (*_S3_OPTIONS, 'region')))}")
    return Access(secret, s3=tuple(sorted((s3 or {}).items())))


def is_remote(path):
    """Whether a path is in such a place."""
    return path.startswith((HOLDFAST, S3))


def remote(path, access):
    """The place that a path is in, and its name there."""
    if path.startswith(S3):
        return _objects(access.s3), path[len(S3) :]
    node, _, name = path[len(HOLDFAST) :].partition("/")
    return _node(node, access.secret, access.patience_s), "/" + name


def files_of(path, access):
    """The files that are read where a job's input is this path: one, or those of one of Holdfast's multifiles."""
    if not is_remote(path):
        return [path]
    place, name = remote(path, access)
    return [path[: len(path) - len(name)] + file for file in place.files_of(name)]


def open_file(path, mode, access):
    """A file or an object, to be read or written; one that is written is there once it is closed."""
    place, name = remote(path, access)
    return place.open(name, mode)


@functools.lru_cache(maxsize=None)
def _node(node, secret, patience_s):
    """This process's way to a node."""
    return Node(node, secret, patience_s)


@functools.lru_cache(maxsize=None)
def _objects(options):
    return Objects(dict(options))


class Node:
    """Files of a Holdfast node."""

    #: A directory of parts gets the output's name in one step.
    renames = True

    def __init__(self, node, secret, patience_s=0.0):
        from .client import connect

        until = time.monotonic() + patience_s
        while True:
            try:
                self.client = connect(node or None, secret=secret)
                return
            except RetryError:
                # What is connected already sees to it itself when a node ends and comes back.
                if time.monotonic() >= until:
                    raise
                time.sleep(PAUSE_S)

    def stamp(self, name):
        """Length, and what changes when somebody writes; None where there is no file."""
        info = self.client.stat(name, follow=True)
        return (info.size, info.mtime_ns, info.id) if info.is_file() else None

    def open(self, name, mode):
        """A file; one that is written is there once it is closed, and `abandon` leaves nothing."""
        return self.client.open(name, mode)

    def exists(self, name):
        return self.client.exists(name)

    def make_directory(self, name, in_one):
        """For parts; with `in_one`, one that is read as one file."""
        self.client.make_dir(name, kind="multifile" if in_one else "directory", parents=True)

    def files_of(self, name):
        """The files that a multifile has, in their order; of all else itself."""
        info = self.client.stat(name, follow=True)
        return [f"{name}/{e.name}" for e in self.client.list(name)] if info.kind == "multifile" else [name]

    def list(self, directory):
        """Name, length and time of what is in a directory; nothing where it is not."""
        with contextlib.suppress(NotFoundError):
            return [(e.name, e.info.size, e.info.mtime_ns) for e in self.client.list(directory)]
        return []

    def get(self, name):
        return self.client.get(name)

    def put(self, name, data):
        self.client.put(name, data, replace=True)

    def remove(self, name):
        with contextlib.suppress(NotFoundError):
            self.client.delete(name, recursive=True)

    def rename(self, old, new):
        self.client.rename(old, new)


class Upload:
    """An object that is written: there once it is closed, and not if its `with` block raises."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.file.close() if kind is None else self.abandon()

    def abandon(self):
        # What was sent so far is no object; a store that is away forgets it by its own rules.
        with contextlib.suppress(Exception):
            self.file.discard()
        self.file.closed = True


class Objects:
    """Objects over S3. A name is a bucket and a key."""

    renames = False

    def __init__(self, options):
        try:
            import s3fs
            from botocore.exceptions import BotoCoreError
        except ImportError as e:
            raise UnsupportedError(
                "read or write s3://: the package `s3fs` is not installed: pip install s3fs, for a job on every node"
            ) from e
        region = options.pop("region", None)
        named = {_S3_OPTIONS[name]: value for name, value in options.items()}
        if region:
            named["client_kwargs"] = {"region_name": region}
        # Others write there, too: what was listed once says nothing of now.
        self.fs = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True, **named)
        self.away = BotoCoreError

    @contextlib.contextmanager
    def doing(self, what, name):
        try:
            yield
        except FileNotFoundError as e:
            raise NotFoundError(f"{what} `{S3}{name}`: it does not exist") from e
        except PermissionError as e:
            raise DeniedError(f"{what} `{S3}{name}`: {e}: look at the keys that this node has for it") from e
        except (OSError, self.away) as e:
            raise RetryError(f"{what} `{S3}{name}`: {e}: look at the endpoint, and try again") from e

    def stamp(self, name):
        with self.doing("read", name):
            info = self.fs.info(name)
        if info["type"] != "file":
            return None
        return (info["size"], info.get("ETag", ""), str(info["LastModified"]))

    def open(self, name, mode):
        if mode == "rb":
            with self.doing("read", name):
                return self.fs.open(name, mode, block_size=READ_BYTES, cache_type="readahead")
        with self.doing("write", name):
            return Upload(self.fs.open(name, mode, block_size=UPLOAD_BYTES))

    def exists(self, name):
        with self.doing("look for", name):
            return self.fs.exists(name)

    def files_of(self, name):
        return [name]

    def make_directory(self, name, in_one):
        """There are none; but a bucket that is not there is said before the work and not behind it."""
        bucket = name.partition("/")[0]
        if not self.exists(bucket):
            raise NotFoundError(f"write `{S3}{name}`: there is no bucket `{bucket}`: make it first")

    def list(self, directory):
        with self.doing("list", directory):
            found = self.fs.find(directory, maxdepth=1, detail=True)
        return [
            (name.rpartition("/")[2], info["size"], int(info["LastModified"].timestamp() * 1e9))
            for name, info in found.items()
        ]

    def get(self, name):
        with self.doing("read", name):
            return self.fs.cat_file(name)

    def put(self, name, data):
        with self.doing("write", name):
            self.fs.pipe_file(name, data)

    def remove(self, name):
        with self.doing("remove", name), contextlib.suppress(FileNotFoundError):
            self.fs.rm(name, recursive=True)
