"""Reads of one's own writes, where a region reads a replica that is behind.

Whoever writes gives the user a cookie, and while that says so, the user's reads go to the region that is written
to::

    from holdfast.cookie import Cookie

    # Behind the commit of a write; the position is of `SELECT @@last_gtid`.
    response.set_cookie("wrote", str(Cookie.written(position="0-1-100")), max_age=20)

    # Before a read.
    cookie = Cookie.parse(request.cookies.get("wrote", ""))
    if cookie is not None and cookie.detours(lifetime_s=20, replica=position_of_replica()):
        database = master

It is not signed: whoever forges one sends reads of their own elsewhere, for at most twice the lifetime. The Rust
crate ``holdfast-cache-client`` makes and reads the same texts.
"""

import re
import time

__all__ = ["Cookie"]

_VERSION = "1"
_TEXT_BYTES_MAX = 512
_GTID = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)")
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_DECIMAL = re.compile(r"[0-9]+")
_U32_MAX = (1 << 32) - 1
_U64_MAX = (1 << 64) - 1


def _position(text, separator):
    """A position as the database says it: the number of a place in PostgreSQL's log, or of MariaDB's the last
    transaction of each domain, as ``{domain: (server, sequence)}``. ``None`` of what is none."""
    if "/" in text:
        match = _LSN.fullmatch(text)
        return match and (int(match[1], 16) << 32 | int(match[2], 16))
    domains = {}
    for one in text.split(separator):
        match = _GTID.fullmatch(one.strip())
        if match is None:
            return None
        domain, server, sequence = (int(number) for number in match.groups())
        if domain > _U32_MAX or server > _U32_MAX or sequence > _U64_MAX or domain in domains:
            return None
        domains[domain] = (server, sequence)
    return domains


def _covers(reached, written):
    if isinstance(reached, int) != isinstance(written, int):
        return False
    if isinstance(reached, int):
        return reached >= written
    return all(
        domain in reached and reached[domain][1] >= sequence
        for domain, (_, sequence) in written.items()
    )


class Cookie:
    """What a user carries after a write. ``str`` of it is a cookie's value: ``1.SECONDS``, or
    ``1.SECONDS.POSITION``."""

    __slots__ = ("_position", "_written_s")

    def __init__(self, written_s, position=None):
        self._written_s, self._position = written_s, position

    @classmethod
    def written(cls, *, position=None, now_s=None):
        """Something was written now, in seconds since 1970, at a position as the database says it, or none: of
        MariaDB ``@@last_gtid``, or several such with commas, of PostgreSQL ``pg_current_wal_insert_lsn()``, asked
        behind the commit. The detour ends when the replica is there.

        Raises ``ValueError`` of what is no position.
        """
        now_s = int(time.time()) if now_s is None else now_s
        found = None if position is None else _position(position, ",")
        if position is not None and found is None:
            raise ValueError(
                f"make a cookie of position `{position}`: give MariaDB's, 0-1-100, or PostgreSQL's, 16/B374D848"
            )
        cookie = cls(now_s, found)
        if len(str(cookie)) > _TEXT_BYTES_MAX:
            raise ValueError(
                f"make a cookie: it is longer than {_TEXT_BYTES_MAX} bytes: give the transaction that was written, "
                "and not all of the log"
            )
        return cookie

    @classmethod
    def parse(cls, text):
        """Reads a cookie's value; ``None`` of what is none."""
        fields = text.split(".", 2)
        if len(text) > _TEXT_BYTES_MAX or len(fields) < 2 or fields[0] != _VERSION:
            return None
        if not _DECIMAL.fullmatch(fields[1]) or int(fields[1]) > _U64_MAX:
            return None
        position = None
        if len(fields) == 3:
            position = _position(fields[2], "_")
            if position is None:
                return None
        return cls(int(fields[1]), position)

    def behind(self, earlier):
        """What the user carries who also carries an ``earlier`` one, from a write to another domain of MariaDB's
        log: both writes are waited for. In one domain, and in PostgreSQL, the later position says it all."""
        if isinstance(self._position, dict) and isinstance(earlier._position, dict):
            return Cookie(self._written_s, {**earlier._position, **self._position})
        return self

    def detours(self, *, lifetime_s, replica=None, now_s=None):
        """Whether the user's reads go to the region of the writes: for ``lifetime_s`` seconds behind the write,
        and no longer than until the ``replica`` of this region is there. That is its position as it says it,
        MariaDB's ``@@gtid_slave_pos`` or PostgreSQL's ``pg_last_wal_replay_lsn()``, if it was asked."""
        now_s = int(time.time()) if now_s is None else now_s
        # Clocks differ; one that is further ahead than a lifetime is none.
        if abs(now_s - self._written_s) >= lifetime_s:
            return False
        reached = None if replica is None else _position(replica, ",")
        if self._position is None or reached is None:
            return True
        return not _covers(reached, self._position)

    def __str__(self):
        text = f"{_VERSION}.{self._written_s}"
        if isinstance(self._position, int):
            return f"{text}.{self._position >> 32:X}/{self._position & _U32_MAX:X}"
        if self._position is None:
            return text
        # A comma is no part of a cookie.
        gtids = (f"{domain}-{s}-{n}" for domain, (s, n) in sorted(self._position.items()))
        return f"{text}.{'_'.join(gtids)}"

    def __repr__(self):
        return f"Cookie({str(self)!r})"

    def __eq__(self, other):
        return isinstance(other, Cookie) and str(self) == str(other)

    def __hash__(self):
        return hash(str(self))
