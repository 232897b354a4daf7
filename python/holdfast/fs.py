"""`holdfast://` for fsspec, and so for pandas, Polars, PyArrow, Dask, DuckDB and others that take its file
systems.

    fsspec.open("holdfast://127.0.0.1:7400/data/a.csv", secret="data/secret")
    pandas.read_parquet("holdfast:///data/a.parquet")      # the node that `holdfast.connect()` finds

What stands in front of the path is a node; others can be named by the option `servers`. The other options
are those of :func:`holdfast.connect`. With `asynchronous=True` its calls are coroutines, as fsspec has them
(:mod:`holdfast.fs_aio`).
"""

from __future__ import annotations

import io
import weakref
from datetime import datetime, timezone

from fsspec.asyn import AsyncFileSystem
from fsspec.utils import tokenize

from .client import BUFFER_BYTES, connect
from .errors import ExistsError, HoldfastError, NotFoundError, RetryError
from .files import RawReader, RawWriter, refuse_taken
from .fs_aio import COPY_BYTES, WRITE_OPTIONS, Awaited, checked_ranges

class HoldfastFileSystem(Awaited, AsyncFileSystem):
    """Files of a Holdfast cluster.

    A file that is written appears when it is closed; within a `transaction`, when that ends. Listings are
    kept, as fsspec does, until something below them changes through this object: `use_listings_cache`,
    `listings_expiry_time` and `max_paths` say how, `invalidate_cache` forgets them.
    """

    protocol = "holdfast"
    root_marker = "/"
    # One file system object has one client, whichever thread made it.
    cachable = True
    # Blocking calls go to the blocking client, and not through fsspec's own loop.
    mirror_sync_methods = False

    def __init__(
        self,
        servers=None,
        *,
        secret=None,
        token=None,
        ca=None,
        certificate=None,
        key=None,
        connections=16,
        patience=20.0,
        mapped=False,
        **options,
    ):
        super().__init__(**options)
        self.client = connect(
            servers,
            secret=secret,
            token=token,
            ca=ca,
            certificate=certificate,
            key=key,
            connections=connections,
            patience=patience,
            mapped=mapped,
        )
        weakref.finalize(self, self.client.close)
        #: The client of coroutines, once there was one.
        self._awaited = None

    # Names.

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = str(path)
        if path.startswith("holdfast://"):
            path = "/" + path[len("holdfast://") :].partition("/")[2]
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path):
        if not path.startswith("holdfast://"):
            return {}
        server = path[len("holdfast://") :].partition("/")[0]
        return {"servers": server} if server else {}

    @classmethod
    def _parent(cls, path):
        return cls._strip_protocol(path).rpartition("/")[0] or "/"

    def _described(self, path, info):
        kinds = {"symlink": "link"}
        is_dir = info.is_dir()
        return {
            "name": path,
            "size": 0 if is_dir else info.size,
            "type": "directory" if is_dir else kinds.get(info.kind, "file"),
            "kind": info.kind,
            "id": info.id,
            "mode": info.mode,
            "mtime": info.mtime_ns / 1e9,
            "mtime_ns": info.mtime_ns,
            "storage_class": info.storage_class,
            "destination": info.target,
        }

    def _kept(self, path):
        """The listing of a directory, if it is kept: `_ls_from_cache` would also give the directory's
        own entry in its parent's."""
        try:
            return self.dircache[path]
        except KeyError:
            return None

    def info(self, path, **_):
        path = self._strip_protocol(path)
        for entry in self._kept(self._parent(path)) or []:
            if entry["name"] == path and entry["type"] != "link":
                return entry
        return self._described(path, self.client.stat(path, follow=True))

    def ls(self, path, detail=True, refresh=False, **_):
        path = self._strip_protocol(path)
        entries = None if refresh else self._kept(path)
        if entries is None:
            info = self.client.stat(path, follow=True)
            if not info.is_dir():
                entries = [self._described(path, info)]
            else:
                base = path.rstrip("/")
                listed = self.client.list(path)
                entries = [self._described(f"{base}/{one.name}", one.info) for one in listed]
                self.dircache[path] = entries
        return entries if detail else sorted(entry["name"] for entry in entries)

    def invalidate_cache(self, path=None):
        if path is None:
            self.dircache.clear()
            return
        path = self._strip_protocol(path)
        while True:
            self.dircache.pop(path, None)
            if path == "/":
                return
            path = self._parent(path)

    def _invalidate_below(self, path):
        """Forgets also what is known of the directories below one that went, or became another."""
        below = path.rstrip("/") + "/"
        for kept in list(self.dircache):
            if kept.startswith(below):
                self.dircache.pop(kept, None)
        self.invalidate_cache(path)

    def ukey(self, path):
        info = self.client.stat(self._strip_protocol(path), follow=True)
        return tokenize(info.id, info.size, info.mtime_ns)

    def checksum(self, path):
        return int(self.ukey(path), 16)

    def modified(self, path):
        info = self.client.stat(self._strip_protocol(path), follow=True)
        return datetime.fromtimestamp(info.mtime_ns / 1e9, tz=timezone.utc)

    # Changes of names.

    def mkdir(self, path, create_parents=True, **options):
        path = self._strip_protocol(path)
        self.client.make_dir(path, parents=create_parents, **options)
        self.invalidate_cache(path)

    def makedirs(self, path, exist_ok=False):
        path = self._strip_protocol(path)
        try:
            self.mkdir(path, create_parents=True)
        except ExistsError:
            if not exist_ok or not self.isdir(path):
                raise

    def rmdir(self, path):
        path = self._strip_protocol(path)
        if not self.client.stat(path).is_dir():
            raise NotADirectoryError(f"remove the directory `{path}`: it is a file")
        self.client.delete(path)
        self.invalidate_cache(path)

    def rm_file(self, path):
        path = self._strip_protocol(path)
        self.client.delete(path)
        self.invalidate_cache(path)

    def rm(self, path, recursive=False, maxdepth=None):
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        # What lies below another one comes first, or it would be gone with that.
        for one in reversed(self.expand_path(path, recursive=False)):
            self.client.delete(one, recursive=recursive)
            self._invalidate_below(one)

    def mv_file(self, path1, path2, **_):
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        if old == new:
            return
        try:
            self.client.rename(old, new, replace=True)
        except NotFoundError:
            parent = self._parent(new)
            if not self.auto_mkdir or self.client.exists(parent) or not self.client.exists(old):
                raise
            self.makedirs(parent, exist_ok=True)
            self.client.rename(old, new, replace=True)
        self._invalidate_below(old)
        self._invalidate_below(new)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **options):
        # One that names a place for one file, or a directory as a whole, is one step.
        if isinstance(path1, str) and isinstance(path2, str) and not any(c in path1 for c in "*?["):
            old, new = self._strip_protocol(path1), self._strip_protocol(path2)
            into = path2.endswith("/") or self.isdir(new)
            if old == new or (not into and (recursive or not self.isdir(old))):
                self.mv_file(old, new)
                return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)

    def cp_file(self, path1, path2, **_):
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(old):
            self.makedirs(new, exist_ok=True)
            return
        with self.open(old, "rb", block_size=COPY_BYTES) as source:
            with self.open(new, "wb", block_size=COPY_BYTES, size=source.size) as target:
                while block := source.read(COPY_BYTES):
                    target.write(block)

    def touch(self, path, truncate=True, **_):
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")
            return
        now = int(datetime.now(timezone.utc).timestamp() * 1e9)
        self.client.set_attributes(path, mtime_ns=now)
        self.invalidate_cache(path)

    # Bytes.

    def _open(self, path, mode="rb", block_size=None, autocommit=True, size=None, **options):
        path = self._strip_protocol(path)
        buffer_bytes = block_size if isinstance(block_size, int) else BUFFER_BYTES
        raw_client = self.client._client
        if mode == "rb":
            return ReadFile(self, path, RawReader(raw_client.open_reader(path), path), buffer_bytes)
        if mode not in ("wb", "xb"):
            raise NotImplementedError(f"open `{path}` as `{mode}`: choose rb, wb or xb")
        if mode == "xb":
            refuse_taken(raw_client, path)
        options = {k: v for k, v in options.items() if k in WRITE_OPTIONS}
        writer = raw_client.open_writer(
            path, size=size, replace=mode == "wb", parents=self.auto_mkdir, **options
        )
        return WriteFile(self, path, RawWriter(writer, path), buffer_bytes, autocommit)

    #: As in other object stores, a file may be written whose directory is not there yet.
    auto_mkdir = True

    def cat_file(self, path, start=None, end=None, **_):
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.client.get(path)
        if (start or 0) >= 0 and (end is None or end >= 0):
            return self.client.get_ranges([(path, start or 0, end)])[0]
        return super().cat_file(path, start, end)

    def cat_ranges(
        self, paths, starts, ends, max_gap=None, on_error="return", **options
    ):
        ranges, plain = checked_ranges(self, paths, starts, ends, max_gap)
        if plain:
            try:
                return self.client.get_ranges(ranges)
            except (HoldfastError, OSError) as error:
                if on_error == "raise":
                    raise
                if isinstance(error, RetryError):
                    # Nobody answers: asked one by one, each would wait as long.
                    return [error] * len(ranges)
        # One by one, so that each has an answer of its own.
        return super().cat_ranges(paths, starts, ends, on_error=on_error, **options)

    def pipe_file(self, path, value, mode="overwrite", **options):
        path = self._strip_protocol(path)
        if self._intrans:
            super().pipe_file(path, value, mode=mode, **options)
            return
        options = {k: v for k, v in options.items() if k in WRITE_OPTIONS}
        replace = mode == "overwrite"
        self.client.put(path, value, replace=replace, parents=self.auto_mkdir, **options)
        self.invalidate_cache(path)


class ReadFile(io.BufferedReader):
    """A file that is read, with what fsspec's users ask one."""

    def __init__(self, fs, path, raw, buffer_bytes):
        super().__init__(raw, max(buffer_bytes, 1))
        self.fs = fs
        self.path = path
        #: In bytes; None of a multifile, which is only read from its front.
        self.size = raw.info.size if raw.seekable() else None
        self.details = fs._described(path, raw.info)
        self._buffer_bytes = buffer_bytes

    def read(self, size=-1):
        # Python's own would copy what it reads once more; readers of columns ask for megabytes at a time.
        if size is None or 0 <= size <= self._buffer_bytes or not self.seekable():
            return super().read(size)
        at = self.tell()
        self.raw.seek(at)
        data = self.raw.read(size)
        self.seek(at + len(data))
        return data


class WriteFile(io.BufferedWriter):
    """A file that is written. Within a transaction it appears when that ends, whole or not at all."""

    def __init__(self, fs, path, raw, buffer_bytes, autocommit):
        super().__init__(raw, max(buffer_bytes, 1))
        self.fs = fs
        self.path = path
        self.autocommit = autocommit

    def close(self):
        if self.closed:
            return
        if self.autocommit:
            super().close()
            self.fs.invalidate_cache(self.path)
        else:
            # The transaction has the rest.
            self.flush()

    def commit(self):
        """Names the file."""
        self.autocommit = True
        self.close()

    def discard(self):
        """Forgets the file."""
        self.autocommit = True
        self.raw.abandon()
        try:
            super().close()
        except ValueError:
            # What is buffered has nowhere to go.
            pass

    def __exit__(self, kind, *_):
        self.close() if kind is None else self.discard()
