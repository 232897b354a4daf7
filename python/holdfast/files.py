"""Files as `io` objects: raw ones over the Rust client's streams, and Python's own buffers over them."""

from __future__ import annotations

import io

from .errors import ExistsError, NotFoundError

#: A buffer's bytes, unless said otherwise: a slice's quarter.
BUFFER_BYTES = 128 << 10


class RawReader(io.RawIOBase):
    """A file that is read, from any place. What is read on from where the last read ended is a stream,
    and read ahead; anything else is asked for by itself."""

    def __init__(self, reader, name: str):
        self._reader = reader
        self._size = None if reader.info.kind == "multifile" else reader.info.size
        self._position = 0
        # Where the stream is, and where the last read from elsewhere ended.
        self._stream = 0
        self._ended = None
        self.name = name
        self.mode = "rb"

    @property
    def info(self):
        """What was opened: a `FileInfo`."""
        return self._reader.info

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._size is not None

    def tell(self) -> int:
        self._checkClosed()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._checkClosed()
        if self._size is None:
            raise io.UnsupportedOperation("seek in a multifile: open one of its files")
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        if whence not in start:
            raise ValueError(f"seek from {whence}: choose 0, 1 or 2")
        if start[whence] + offset < 0:
            raise ValueError(f"seek to {start[whence] + offset}: it is in front of the file")
        self._position = start[whence] + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or all that are left: fewer only at the end; of a multifile, at the end of one
        of its files, too."""
        self._checkClosed()
        size = -1 if size is None else size
        if self._size is None:
            data = self._reader.read(size)
        else:
            left = max(self._size - self._position, 0)
            size = left if size < 0 else min(size, left)
            if self._position != self._stream and self._position == self._ended:
                self._reader.seek(self._position)
                self._stream = self._position
            if self._position == self._stream:
                data = self._reader.read(size)
                self._stream += len(data)
            else:
                data = self._reader.read_at(self._position, size)
                self._ended = self._position + len(data)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, buffer) -> int:
        target = memoryview(buffer)
        if target.nbytes == 0:
            # Of several dimensions it cannot be seen as bytes.
            return 0
        target = target.cast("B")
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._reader.close()


class RawWriter(io.RawIOBase):
    """A file that is written, front to back. It appears when it is closed."""

    def __init__(self, writer, name: str):
        self._writer = writer
        self._written = 0
        self.name = name
        self.mode = "wb"
        #: The file's id, once it is closed.
        self.id = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        self._checkClosed()
        return self._written

    def write(self, data) -> int:
        self._checkClosed()
        written = self._writer.write(data)
        self._written += written
        return written

    def sync(self) -> None:
        """Returns when every byte so far is acknowledged, which a flush does not wait for."""
        self._checkClosed()
        self._writer.flush()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.id = self._writer.close()

    def abandon(self) -> None:
        """Forgets the file."""
        if not self.closed:
            super().close()
            self._writer.abandon()

    def __exit__(self, kind, *_) -> None:
        self.close() if kind is None else self.abandon()


class BufferedWriter(io.BufferedWriter):
    """As Python's own, but that an error in its `with` block leaves no file."""

    def abandon(self) -> None:
        """Forgets the file."""
        self.raw.abandon()
        try:
            self.close()
        except ValueError:
            # What is buffered has nowhere to go.
            pass

    def __exit__(self, kind, *_) -> None:
        self.close() if kind is None else self.abandon()


class TextWriter(io.TextIOWrapper):
    """As Python's own, but that an error in its `with` block leaves no file."""

    def abandon(self) -> None:
        """Forgets the file."""
        self.buffer.abandon()

    def __exit__(self, kind, *_) -> None:
        self.close() if kind is None else self.abandon()


def refuse_taken(client, path: str) -> None:
    """So that nobody writes a new file in vain; whether its name is free is asked again when it appears."""
    try:
        client.stat(path)
    except NotFoundError:
        return
    raise ExistsError(f"open `{path}` as a new file: the name is taken")


def open_file(
    client,
    path: str,
    mode: str = "rb",
    *,
    buffering: int = -1,
    encoding=None,
    errors=None,
    newline=None,
    file_mode: int = 0o644,
    **options,
):
    """See `Client.open`."""
    kinds, is_text = mode.replace("b", "").replace("t", ""), "b" not in mode
    if kinds not in ("r", "w", "x") or ("b" in mode and "t" in mode):
        raise ValueError(f"open `{path}` as `{mode}`: choose rb, wb, xb, r, w or x")
    if not is_text and (encoding, errors, newline) != (None, None, None):
        raise ValueError(f"open `{path}`: encoding, errors and newline are for text")
    buffered = BUFFER_BYTES if buffering < 0 else buffering
    if is_text and buffered == 0:
        raise ValueError(f"open `{path}`: text has a buffer")
    text = {"encoding": encoding or "utf-8", "errors": errors, "newline": newline}
    if kinds == "r":
        if options:
            raise TypeError(f"open `{path}` to read: {sorted(options)} are for files that are written")
        raw = RawReader(client.open_reader(path), path)
        if buffered == 0:
            return raw
        reader = io.BufferedReader(raw, buffered)
        return io.TextIOWrapper(reader, **text) if is_text else reader
    if kinds == "x":
        refuse_taken(client, path)
    writer = client.open_writer(path, replace=kinds == "w", mode=file_mode, **options)
    raw = RawWriter(writer, path)
    if buffered == 0:
        return raw
    writer = BufferedWriter(raw, buffered)
    return TextWriter(writer, **text) if is_text else writer
