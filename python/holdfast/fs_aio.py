"""The coroutines of `holdfast://` in fsspec: what has `asynchronous=True`, and whoever awaits fsspec's file systems.

    fs = fsspec.filesystem("holdfast", servers="127.0.0.1:7400", secret="data/secret", asynchronous=True)
    parts = await fs._cat_ranges(["/a", "/a", "/b"], [0, 4096, 0], [4096, 8192, 100])
    async with await fs.open_async("/c", "wb") as file:
        await file.write(b"...")

They go to a client of asyncio (:mod:`holdfast.aio`), which any loop may use. What is not here, fsspec makes of what is.
"""

from __future__ import annotations

import os

from . import aio
from .errors import ExistsError, HoldfastError, InvalidError, NotFoundError, RetryError

#: Options of a file that is written which are passed on.
WRITE_OPTIONS = ("mode", "mtime_ns", "storage_class", "metadata")
#: Bytes of one step of a copy.
COPY_BYTES = 1 << 20


def checked_ranges(fs, paths, starts, ends, max_gap):
    """What `cat_ranges` was given as `(path, start, end)`, and whether none of them is counted from an end."""
    if max_gap is not None:
        raise NotImplementedError
    if not isinstance(paths, list):
        raise TypeError("read ranges: give a list of paths")
    starts = list(starts) if hasattr(starts, "__iter__") else [starts] * len(paths)
    ends = list(ends) if hasattr(ends, "__iter__") else [ends] * len(paths)
    if not len(paths) == len(starts) == len(ends):
        raise ValueError("read ranges: there are not as many starts and ends as paths")
    ranges = [(fs._strip_protocol(p), s or 0, e) for p, s, e in zip(paths, starts, ends)]
    return ranges, all(s >= 0 and (e is None or e >= 0) for _, s, e in ranges)


class WriteFile(aio.AsyncFileWriter):
    """A file that is written; listings of its directory are forgotten when it appears."""

    def __init__(self, fs, path, writer):
        super().__init__(writer)
        self.fs, self.path = fs, path

    async def close(self) -> None:
        await super().close()
        self.fs.invalidate_cache(self.path)


class Awaited:
    """What :class:`holdfast.fs.HoldfastFileSystem` does for coroutines."""

    async def _client(self):
        """The client, which is made by the first call."""
        if self._awaited is None:
            made = aio.AsyncClient(await self.client._client.asynchronous(), self.client)
            # Another call may have made one meanwhile; of this one nobody has heard.
            self._awaited = self._awaited or made
        return self._awaited

    def _refuse_transaction(self, doing, path):
        if self._intrans:
            raise InvalidError(f"{doing} `{path}` in a transaction: those are of the blocking calls")

    async def _info(self, path, **_):
        path = self._strip_protocol(path)
        for entry in self._kept(self._parent(path)) or []:
            if entry["name"] == path and entry["type"] != "link":
                return entry
        return self._described(path, await (await self._client()).stat(path, follow=True))

    async def _ls(self, path, detail=True, refresh=False, **_):
        path = self._strip_protocol(path)
        entries = None if refresh else self._kept(path)
        if entries is None:
            client = await self._client()
            info = await client.stat(path, follow=True)
            if not info.is_dir():
                entries = [self._described(path, info)]
            else:
                base = path.rstrip("/")
                entries = [self._described(f"{base}/{one.name}", one.info) async for one in client.list(path)]
                self.dircache[path] = entries
        return entries if detail else sorted(entry["name"] for entry in entries)

    async def _mkdir(self, path, create_parents=True, **options):
        path = self._strip_protocol(path)
        await (await self._client()).make_dir(path, parents=create_parents, **options)
        self.invalidate_cache(path)

    async def _makedirs(self, path, exist_ok=False):
        path = self._strip_protocol(path)
        try:
            await self._mkdir(path, create_parents=True)
        except ExistsError:
            if not exist_ok or not await self._isdir(path):
                raise

    async def _rm_file(self, path, **_):
        path = self._strip_protocol(path)
        await (await self._client()).delete(path)
        self.invalidate_cache(path)

    async def _rm(self, path, recursive=False, maxdepth=None, batch_size=None, **options):
        if maxdepth is not None:
            await super()._rm(path, recursive=recursive, maxdepth=maxdepth, batch_size=batch_size, **options)
            return
        # What lies below another one comes first, or it would be gone with that.
        for one in reversed(await self._expand_path(path, recursive=False)):
            await (await self._client()).delete(one, recursive=recursive)
            self._invalidate_below(one)

    async def _mv_file(self, path1, path2, **_):
        old, new, client = self._strip_protocol(path1), self._strip_protocol(path2), await self._client()
        if old == new:
            return
        try:
            await client.rename(old, new, replace=True)
        except NotFoundError:
            parent = self._parent(new)
            if not self.auto_mkdir or await client.exists(parent) or not await client.exists(old):
                raise
            await self._makedirs(parent, exist_ok=True)
            await client.rename(old, new, replace=True)
        self._invalidate_below(old)
        self._invalidate_below(new)

    async def _cp_file(self, path1, path2, **_):
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        if await self._isdir(old):
            await self._makedirs(new, exist_ok=True)
            return
        source = await self.open_async(old)
        async with await self.open_async(new, "wb") as target:
            async for piece in source:
                await target.write(piece)

    async def _cat_file(self, path, start=None, end=None, **_):
        path, client = self._strip_protocol(path), await self._client()
        if start is None and end is None:
            return await client.get(path)
        if (start or 0) < 0 or (end is not None and end < 0):
            size = (await client.stat(path, follow=True)).size
            start, end, _ = slice(start, end).indices(size)
        return (await client.get_ranges([(path, start or 0, end)]))[0]

    async def _cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **options):
        ranges, plain = checked_ranges(self, paths, starts, ends, max_gap)
        if plain:
            try:
                return await (await self._client()).get_ranges(ranges)
            except (HoldfastError, OSError) as error:
                if on_error == "raise":
                    raise
                if isinstance(error, RetryError):
                    # Nobody answers: asked one by one, each would wait as long.
                    return [error] * len(ranges)
        # One by one, so that each has an answer of its own.
        return await super()._cat_ranges(paths, starts, ends, on_error=on_error, **options)

    async def _pipe_file(self, path, value, mode="overwrite", **options):
        path = self._strip_protocol(path)
        self._refuse_transaction("write", path)
        options = {k: v for k, v in options.items() if k in WRITE_OPTIONS}
        await (await self._client()).put(path, value, replace=mode == "overwrite", parents=self.auto_mkdir, **options)
        self.invalidate_cache(path)

    async def _get_file(self, rpath, lpath, **_):
        path = self._strip_protocol(rpath)
        if await self._isdir(path):
            os.makedirs(lpath, exist_ok=True)
            return
        source = await (await self._client()).open(path)
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        with open(lpath, "wb") as target:
            async for piece in source:
                target.write(piece)

    async def _put_file(self, lpath, rpath, mode="overwrite", **options):
        path = self._strip_protocol(rpath)
        self._refuse_transaction("write", path)
        if os.path.isdir(lpath):
            await self._makedirs(path, exist_ok=True)
            return
        options = {k: v for k, v in options.items() if k in WRITE_OPTIONS}
        with open(lpath, "rb") as source:
            async with await self.open_async(path, "wb" if mode == "overwrite" else "xb", **options) as target:
                while piece := source.read(COPY_BYTES):
                    await target.write(piece)

    async def open_async(self, path, mode="rb", **options):
        """A file to be read (``rb``), :class:`holdfast.aio.AsyncFile`, or written (``wb``, ``xb``), a
        :class:`WriteFile`."""
        path, client = self._strip_protocol(path), await self._client()
        if mode == "rb":
            return await client.open(path)
        if mode not in ("wb", "xb"):
            raise NotImplementedError(f"open `{path}` as `{mode}`: choose rb, wb or xb")
        self._refuse_transaction("write", path)
        if mode == "xb" and await client.exists(path):
            raise ExistsError(f"open `{path}` as a new file: the name is taken")
        options = {k: v for k, v in options.items() if k in WRITE_OPTIONS}
        return WriteFile(self, path, client._client.create(path, replace=mode == "wb", parents=self.auto_mkdir, **options))
