"""Messages that come by Scribe's protocol, read from Python."""

import asyncio
import socket
import struct

import pytest

from holdfast import aio
from holdfast.errors import HoldfastError, InvalidError


def text(value):
    return struct.pack(">i", len(value)) + value


class Door:
    """A client of Scribe's, by the bytes of Thrift's framed binary protocol without versions."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))

    def log(self, category, *messages):
        entries = b"".join(
            b"\x0b" + struct.pack(">h", 1) + text(category) + b"\x0b" + struct.pack(">h", 2) + text(message) + b"\0"
            for message in messages
        )
        call = text(b"Log") + b"\x01" + struct.pack(">i", 7)
        call += b"\x0f" + struct.pack(">h", 1) + b"\x0c" + struct.pack(">i", len(messages)) + entries + b"\0"
        self.socket.sendall(text(call))
        (length,) = struct.unpack(">i", self.take(4))
        # A reply whose result, an i32 in field 0, is OK.
        assert self.take(length).endswith(b"\x08" + struct.pack(">hi", 0, 0) + b"\0")

    def take(self, length):
        taken = b""
        while len(taken) < length:
            taken += self.socket.recv(length - len(taken))
        return taken


@pytest.fixture(scope="module")
def door(collecting):
    return Door(collecting.scribe_port)


@pytest.fixture(scope="module")
def collecting(tmp_path_factory):
    from conftest import Node, free_port

    port = free_port()
    node = Node(tmp_path_factory.mktemp("collecting") / "data", settings=f"scribe_port = {port}\n")
    node.scribe_port = port
    yield node
    node.stop()


def lines(pairs):
    return [message for _, message in pairs]


def test_messages_are_read_in_their_order(collecting, door):
    sent = [b"one\n", b"", b"two \xff\x00\n"]
    door.log(b"web", *sent)
    door.log(b"web", b"three\n")
    with collecting.connect() as client:
        read = list(client.scribe.read("web"))
        assert lines(read) == [*sent, b"three\n"]
        # An entry is taken whole: behind the first one's index is what came in the second call.
        assert lines(client.scribe.read("web", read[0][0] + 1)) == [b"three\n"]
        (one,) = [one for one in client.scribe.categories() if one.category == "web"]
        assert (one.messages, one.bytes > 0, one.readers, one.lost) == (4, True, {}, 0)
        assert one.first <= read[0][0] < read[-1][0] < one.next


def test_a_name_goes_on_behind_what_was_taken(collecting, door):
    with collecting.connect() as client:
        for n in range(3):
            door.log(b"named", b"%d" % n)
        half = client.scribe.read("named", reader="loader")
        assert next(half)[1] == b"0"
        # It was not asked for what is behind the page: nothing of it is taken.
        half.close()
        assert lines(client.scribe.read("named", reader="loader")) == [b"0", b"1", b"2"]
        assert lines(client.scribe.read("named", reader="loader")) == []
        door.log(b"named", b"3")
        with collecting.connect() as other:
            assert lines(other.scribe.read("named", reader="loader")) == [b"3"]
        (one,) = [one for one in client.scribe.categories() if one.category == "named"]
        assert list(one.readers) == ["loader"]
        client.scribe.forget("named", "loader")
        assert lines(client.scribe.read("named", reader="loader")) == [b"0", b"1", b"2", b"3"]
        # Without a name nothing is kept.
        assert len(lines(client.scribe.read("named"))) == 4


def test_a_tail_waits_for_what_comes(collecting, door):
    door.log(b"live", b"before")
    with collecting.connect() as client:
        first = next(client.scribe.tail("live", 0))
        assert first[1] == b"before"
        tail = client.scribe.tail("live", reader="follower")
        assert next(tail)[1] == b"before"
        door.log(b"live", b"after")
        assert next(tail)[1] == b"after"
        tail.close()
        assert lines(client.scribe.read("live", reader="follower")) == [b"after"]


def test_more_than_a_page_comes_whole(collecting, door):
    big = [bytes([65 + n]) * (400 << 10) for n in range(24)]
    for message in big:
        door.log(b"large", message)
    with collecting.connect() as client:
        assert lines(client.scribe.read("large", reader="pages")) == big
        assert lines(client.scribe.read("large", reader="pages")) == []


def test_asyncio_reads_the_same(collecting, door):
    door.log(b"aio", b"a", b"b")

    async def read():
        async with await aio.connect(collecting.server) as client:
            assert [message async for _, message in client.scribe.read("aio", reader="r")] == [b"a", b"b"]
            assert [message async for _, message in client.scribe.read("aio", reader="r")] == []
            tail = client.scribe.tail("aio", reader="r")
            waits = asyncio.ensure_future(tail.__anext__())
            await asyncio.to_thread(door.log, b"aio", b"c")
            assert (await waits)[1] == b"c"
            await tail.aclose()
            assert {one.category for one in await client.scribe.categories()} >= {"aio"}
            await client.scribe.forget("aio", "r")
            assert [message async for _, message in client.scribe.read("aio", reader="r")] == [b"a", b"b", b"c"]

    asyncio.run(read())


def test_what_is_no_category_or_no_reader_is_said(collecting, door):
    door.log(b"known", b"x")
    with collecting.connect() as client:
        with pytest.raises(InvalidError, match="use category `../etc`"):
            next(client.scribe.read("../etc"))
        with pytest.raises(InvalidError, match="use reader `a b`"):
            next(client.scribe.read("known", reader="a b"))
        with pytest.raises(HoldfastError, match="nothing-here"):
            next(client.scribe.read("nothing-here"))
        # What is not there yet is waited for by a tail, and is the end for who reads what there is.
        assert list(client.scribe.read("known", 1 << 40)) == []
