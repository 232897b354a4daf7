"""What jobs read: splits of files, and the records that begin in each. Used by all that is of jobs; it knows
neither Ray nor what records mean.
"""

import dataclasses
import errno
import os
import stat
from dataclasses import dataclass

from . import places
from .errors import FullError, HoldfastError, InvalidError, NotFoundError, RetryError

#: Bytes of a split: enough that a mapper's start is little beside it, few enough that one is no loss.
SPLIT_BYTES = 64 << 20
#: What is read of a split for the sample, and of how many splits.
SAMPLE_BYTES = 256 << 10
SAMPLE_SPLITS = 64
READ_BYTES = 1 << 20


def paths_of(given):
    """One path, or several, as text. Those of files are absolute: workers are in other directories than the driver."""
    one = isinstance(given, (str, os.PathLike))
    paths = [os.fspath(path) for path in ([given] if one else given)]
    return [path if places.is_remote(path) else os.path.join(os.getcwd(), path) for path in paths]


class ChangedError(RetryError):
    """An input is not what it was when the job began: another attempt would end the same."""


@dataclass(frozen=True)
class Split:
    """Part of an input: the records that begin in bytes ``start`` to ``end``."""

    number: int
    path: str
    start: int
    end: int
    #: Of the file when the job was planned.
    stamp: tuple
    #: What else a reader of tables has to know: see :mod:`holdfast.tables`.
    detail: tuple = ()


@dataclass(frozen=True)
class Framing:
    """How an input is cut into records: `record` bytes each, `prefixed` by their length, or ended by
    `delimiter`."""

    record: int = None
    prefixed: bool = False
    delimiter: int = 10

    def __post_init__(self):
        if self.record is not None and (not isinstance(self.record, int) or self.record < 1):
            raise InvalidError(f"cut records of {self.record!r:.60} bytes: one has at least one byte")
        if self.record is not None and self.prefixed:
            raise InvalidError("cut records: they have one length, or each has its own in front: choose one")
        if not isinstance(self.delimiter, int) or not 0 <= self.delimiter < 256:
            raise InvalidError(f"cut records at {self.delimiter!r:.60}: give one byte, a number from 0 to 255, as ord(',')")


def unseen(path):
    """The error of a node that has no directory to write a part into, where the driver made one."""
    return NotFoundError(
        f"write `{path}` on node {os.uname().nodename}: it does not see the output's directory: every node must, by "
        "a file system that all share or as holdfast:// or s3:// paths"
    )


def unwritten(path, e):
    """The error for a part that the system, or Holdfast, did not take."""
    if isinstance(e, HoldfastError):
        return e
    where = f"write `{path}` on node {os.uname().nodename}: {e.strerror or e}"
    if e.errno == errno.ENOSPC:
        return FullError(f"{where}: make room, and make the same call, with `resume=True` if this one had it")
    return HoldfastError(where)


def stamp(path, access):
    """Length, and what changes when somebody writes."""
    if places.is_remote(path):
        place, name = places.remote(path, access)
        mark = place.stamp(name)
        if mark is None:
            raise InvalidError(f"read `{path}`: it is no file: give files")
        return mark
    try:
        info = os.stat(path)
    except FileNotFoundError as e:
        raise NotFoundError(f"read `{path}`: it does not exist") from e
    if not stat.S_ISREG(info.st_mode):
        raise InvalidError(f"read `{path}`: it is no file: give files, which every node sees")
    return (info.st_size, info.st_mtime_ns, info.st_ino)


def splits_of(inputs, framing, split_bytes, access=places.Access()):
    """Cuts inputs into splits, at the borders of records where these are known beforehand."""
    splits = []
    for path in (file for given in inputs for file in places.files_of(given, access)):
        mark = stamp(path, access)
        size = mark[0]
        if framing.record and size % framing.record:
            raise InvalidError(
                f"read `{path}`: its {size} bytes are no whole number of records of {framing.record}: "
                "give the right length of a record"
            )
        step = max(1, split_bytes)
        if framing.record:
            step = max(1, step // framing.record) * framing.record
        if framing.prefixed:
            # Nothing says where a record begins.
            step = max(1, size)
        for start in range(0, size, step):
            splits.append(Split(len(splits), path, start, min(size, start + step), mark))
    return splits


def check_stamp(split, access):
    if stamp(split.path, access) != split.stamp:
        raise ChangedError(f"read `{split.path}`: it changed since the job began: nobody may write to the input")


def chunks(file, split, framing):
    """The bytes of the records that begin in a split, from a file that is open, in pieces of any size. A
    last line without its end has none here either."""
    delimiter = None if framing.record or framing.prefixed else bytes([framing.delimiter])
    at = split.start
    skipping = delimiter is not None and at > 0
    if skipping:
        at -= 1
    file.seek(at)
    while at < split.end:
        piece = file.read(min(READ_BYTES, split.end - at))
        if not piece:
            raise RetryError(f"read `{split.path}`: it became shorter meanwhile")
        at += len(piece)
        if skipping:
            found = piece.find(delimiter)
            if found < 0:
                continue
            piece, skipping = piece[found + 1 :], False
        if piece:
            last = piece[-1:]
            yield piece
            if at >= split.end and delimiter is not None and last != delimiter:
                # The record that ends beyond.
                while True:
                    piece = file.read(64 << 10)
                    found = piece.find(delimiter)
                    if found >= 0 or not piece:
                        yield piece[: found + 1]
                        return
                    yield piece


def open_split(split, access):
    if not places.is_remote(split.path):
        return open(split.path, "rb")
    return places.open_file(split.path, "rb", access)


def sampled(splits):
    """Splits of which the fronts are a sample, spread over them."""
    return splits[:: max(1, len(splits) // SAMPLE_SPLITS)]


def front(split, framing, access):
    """Whole records from a split's front, for the sample."""
    length = min(split.end - split.start, SAMPLE_BYTES)
    if framing.record:
        length -= length % framing.record
    short = dataclasses.replace(split, end=split.start + length)
    with open_split(split, access) as file:
        return b"".join(chunks(file, short, framing))
