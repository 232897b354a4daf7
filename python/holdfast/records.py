"""Tables of records, which are in several regions at once. See docs/tables.md.

    users = client.records("users")
    users.make(mode="strong", tablets=4)
    version = users.put(b"alice", b"1", if_absent=True)
    users.put(b"alice", b"2", if_version=version)          # or a VersionError
    users.get(b"alice", level="latest")
    elsewhere.records("users").go_on(users.session)        # is shown nothing older
"""

from __future__ import annotations

from typing import Iterable, Iterator, NamedTuple, Optional

from . import _holdfast
from .errors import InvalidError, NotFoundError, VersionError

#: Records of a page.
_PAGE_ROWS = 1000


class Record(NamedTuple):
    """A record as it shows."""

    #: It grows with each write, from 1 on.
    version: int
    value: bytes


class Row(NamedTuple):
    """A record of a scan."""

    key: bytes
    version: int
    value: bytes


class Written(NamedTuple):
    """What came of one write of several."""

    #: Whether it was made; else nothing was changed by it.
    made: bool
    #: The version that the record has then; None if there is no such record.
    version: Optional[int]


class Branch(NamedTuple):
    """What a key came to in a region that was sealed off; it changes no record."""

    key: bytes
    #: Which of the key's: home, epoch, number, as in "2.3.17".
    place: str
    #: The version that it began behind; 0 where there was no record.
    after: int
    #: The version that it came to.
    version: int
    #: None where the record was deleted.
    value: Optional[bytes]


class Records:
    """A table of records, and a session on it; made by `Client.records`. Threads may share it, and their calls
    follow one on another: each may have its own.

    A key is 1 to 6144 bytes, a value up to 900 KiB. Each write is durable when it is answered, and made once,
    however often it is sent. What this object has seen, by its reads and writes, it is shown from then on, in
    whichever region it reads (`level="session"`); `session` says that as a line of text, for `go_on`.
    """

    def __init__(self, client: _holdfast.Client, table: str):
        self._records = client.records(table)
        self.table = table

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Gives the session's connection back. The next call begins another session, which has seen nothing."""
        self._records.close()

    def make(self, *, mode: str = "timeline", tablets: int = 1, here: bool = False) -> _holdfast.RecordsInfo:
        """Makes the table. Made twice with the same words is made; with others an ExistsError.

        mode     what the answer to a write waits for: "timeline", the log of the record's home, or "strong",
                 those of a majority of regions
        tablets  into how many it is cut; more come by `split`, fewer never
        here     in this region alone, though the cluster knows of others
        """
        return self._records.make(mode, tablets, not here)

    def describe(self) -> _holdfast.RecordsInfo:
        """How the table is doing. NotFoundError if there is none."""
        return self._records.describe()

    def split(self, tablet: int, *, at: Optional[int] = None) -> _holdfast.RecordsInfo:
        """Cuts a tablet of a table of one region in two, while it is used; answered once both are served, with what
        `describe` says then: `hashes` has each tablet's. What has begun goes on after an error, too; said again with
        the same `at`, nothing is split twice.

        tablet  which one, from 0
        at      the first hash of the upper half, which another tablet gets; else the one in the middle

        NotFoundError if there is no such table or tablet, InvalidError where one of its halves would have no hash.
        """
        return self._records.split(tablet, at)

    def put(self, key, value, *, if_absent: bool = False, if_version: Optional[int] = None) -> int:
        """Gives a record a value; answers its version.

        if_absent   only if there is no such record
        if_version  only if the record has this version: of all who replace one version, one wins

        VersionError otherwise, which says the version that there is.
        """
        return self._one(key, value, _expected(if_absent, if_version))

    def delete(self, key, *, if_version: Optional[int] = None) -> int:
        """Deletes a record; answers the version of that. NotFoundError if there is no such record,
        or a VersionError where a version was expected."""
        return self._one(key, None, _expected(False, if_version))

    def write(self, writes: Iterable[tuple]) -> list:
        """Writes many at once, each decided by itself: `(key, value)`, where a value of None deletes, or
        `(key, value, version)`, only if the record has this version, or with 0 if there is no such record. A
        :class:`Written` for each; none of them raises."""
        return [Written(*written) for written in self._records.write(_given(writes))]

    def write_together(self, writes: Iterable[tuple]) -> list:
        """Writes up to 128 records that stand or fall together, each given as to `write`, or with `...` for its value:
        then the record is only looked at. The versions that they have then, in order; 0 for one that was to be absent
        and is.

        All keys have to lie in one tablet, none twice, and all records to be at home in one region: InvalidError
        otherwise. VersionError where one is not as expected, which says its version. Nothing was written then.
        """
        given = _given(writes)
        rows = [((key, None if value is ... else value, version), value is ...) for key, value, version in given]
        what, versions, at, version = self._records.write_together(rows)
        if what == "written":
            return versions
        told = f"write to table `{self.table}`: the record {bytes(given[at][0])!r:.100}"
        if what == "unexpected":
            found = "is not there" if version is None else f"has version {version}"
            raise VersionError(f"{told} {found}: nothing was written: read it, and decide anew", version)
        where = "is at home in another region" if what == "home" else "lies in another tablet"
        raise InvalidError(f"{told} {where} than the first one: nothing was written: write them one by one")

    def get(self, key, *, level: str = "session", at_least: Optional[int] = None) -> Optional[Record]:
        """A record, or None.

        level     how new: "any" is whatever shows; "session" nothing older than what this object has seen, in
                  whichever region; "latest" as new as the record's home shows; "strong" as new as anything that
                  anybody was told of
        at_least  this version or a later one, instead
        """
        return self.get_many([key], level=level, at_least=at_least)[0]

    def get_many(self, keys: Iterable, *, level: str = "session", at_least: Optional[int] = None) -> list:
        """As `get`, a :class:`Record` or None for each key."""
        found = self._records.get(list(keys), level, at_least)
        return [None if one is None else Record(*one) for one in found]

    def get_together(self, keys: Iterable, *, level: str = "session") -> list:
        """As `get_many`, of keys of one tablet, as they show at one moment: no half of what was written together.
        InvalidError where one lies in another tablet."""
        found = self._records.get(list(keys), level, None, True)
        return [None if one is None else Record(*one) for one in found]

    def scan(self, prefix=None, *, start=b"", end=None, backwards: bool = False) -> Iterator[Row]:
        """Records whose keys begin so, or from `start` on and below `end`, in order of their keys, a page at a
        time, as they show."""
        if prefix is not None:
            if bytes(start) or end is not None:
                raise InvalidError("scan a table: name a prefix, or where to start and end")
            start, end = prefix, _behind(bytes(prefix))
        start, end, more = bytes(start), None if end is None else bytes(end), True
        while more:
            rows, next_key = self._records.scan(start, end, backwards, _PAGE_ROWS)
            yield from (Row(*row) for row in rows)
            more = next_key is not None
            if backwards:
                end = next_key
            else:
                start = next_key

    def seal(self, lost: int) -> None:
        """Goes on without a region that is lost, in a timeline table: what is at home there can be written again,
        from where the furthest of the other regions has followed. Waits until it is so, half a minute at most; a
        RetryError where another region cannot be reached, or this one was heard within five seconds: to be said
        again. See docs/tables.md, "Losing a region"."""
        self._records.seal(lost)

    def branches(self) -> Iterator[Branch]:
        """What sealed regions had alone, in order of tablets and keys."""
        for tablet in range(self.describe().tablets):
            after = None
            while page := [Branch(*branch) for branch in self._records.branches(tablet, after)]:
                yield from page
                after = page[-1][:2]

    def resolve(self, key, *, keep: str, place: Optional[str] = None) -> None:
        """Sees to a key's branch: it is one no more, in no region.

        keep   "record" leaves the record as it is; "branch" makes what the branch has its next version
        place  which one, where the key has several

        One step: NotFoundError if there is no such branch, or somebody else has seen to it; with "branch" an
        ExistsError where somebody wrote the record meanwhile, and the branch is as it was.
        """
        self._records.resolve(key, keep, place)

    @property
    def session(self) -> str:
        """What this object has seen, as a line of text: whoever goes on with it is shown nothing older."""
        return self._records.session()

    def go_on(self, session: str) -> None:
        """Goes on with what a `session` has seen, here or elsewhere, beside what this one has. InvalidError if the
        text is none, or another table's."""
        self._records.go_on(session)

    def _one(self, key, value, expected: Optional[int]) -> int:
        made, version = self._records.write([(key, value, expected)])[0]
        if made:
            return version
        told = f"write to table `{self.table}`: the record {bytes(key)!r:.100}"
        if version is not None:
            raise VersionError(f"{told} has version {version}: nothing was written: read it, and decide anew", version)
        if expected is None:
            raise NotFoundError(f"{told} is not there")
        raise VersionError(f"{told} is not there: nothing was written: read it, and decide anew")


def _given(writes: Iterable[tuple]) -> list:
    """Each as key, value and what version is expected."""
    given = []
    for write in map(tuple, writes):
        if len(write) not in (2, 3):
            raise InvalidError(f"write records: give each as `(key, value)` or `(key, value, version)`: one has {len(write)}")
        version = write[2] if len(write) == 3 else None
        if version is not None and version < 0:
            raise InvalidError(f"write a record if its version is {version}: they count from 1, and 0 is for none")
        given.append((*write[:2], version))
    return given


def _expected(if_absent: bool, if_version: Optional[int]) -> Optional[int]:
    """As the Rust client's binding has it: 0 for no record."""
    if if_absent and if_version is not None:
        raise InvalidError("write a record: it cannot be absent and have a version: choose one")
    if if_version is not None and if_version <= 0:
        raise InvalidError(f"write a record if its version is {if_version}: they count from 1: or say `if_absent`")
    return 0 if if_absent else if_version


def _behind(prefix: bytes) -> Optional[bytes]:
    """The first key behind all that begin so; none if there is no such key."""
    front = prefix.rstrip(b"\xff")
    return front[:-1] + bytes([front[-1] + 1]) if front else None


__all__ = ["Branch", "Record", "Records", "Row", "Written"]
