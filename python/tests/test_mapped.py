"""Buffers of files' bytes, and reads out of the node's memory: they are as they were when they were verified,
whatever becomes of the file, the node and the client."""

import gc
import os
import random
import signal
import threading
import time

import pytest

from conftest import Node
from holdfast import errors

BLOCK = 64 << 10


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """One with room for what was replaced seconds ago."""
    node = Node(tmp_path_factory.mktemp("mapped") / "data", dram="256MiB")
    yield node
    node.stop()


@pytest.fixture(scope="module")
def mapped(node):
    with node.connect(mapped=True) as client:
        client.make_dir("/mapped", storage_class="dram,disk")
        yield client
        client.delete("/mapped", recursive=True)


def stored(client, path, size, seed=0):
    """A file of whole chunks, which is what is mapped: one whose size is known is packed with others. Again where
    there is no room before those that were replaced have had their grace."""
    data = random.Random(seed).randbytes(size)
    while True:
        try:
            with client.open(path, "wb") as file:
                file.write(data)
            return data
        except errors.FullError:
            pass


# Around blocks, slices, and what comes with its description.
SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, (1 << 20) - 1, (1 << 20) + 1, (5 << 20) + 12345]


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_has_the_bytes_of_its_range(mapped, client, size):
    path = f"/mapped/{size}"
    data = stored(mapped, path, size)
    borders = [0, 1, BLOCK - 1, BLOCK, 8 * BLOCK - 1, 8 * BLOCK, size - 1, size, size + 1, 1 << 40]
    borders = sorted({border for border in borders if border >= 0})
    for user in (mapped, client):
        for start in borders:
            for end in [None, start, start + 1, *borders]:
                buffer = user.buffer(path, start, end)
                assert buffer == data[start:end], (size, start, end)
                assert buffer.readonly and buffer.format == "B" and buffer.contiguous
        assert user.get(path) == data
        with user.open(path) as file:
            assert file.read() == data
    mapped.delete(path)


def test_a_buffer_cannot_be_written_and_is_wrapped_without_a_copy(mapped):
    data = stored(mapped, "/mapped/a", 3 << 20)
    buffer = mapped.buffer("/mapped/a", 5, 1 << 20)
    with pytest.raises(TypeError):
        buffer[0] = 1
    numpy = pytest.importorskip("numpy")
    array = numpy.frombuffer(buffer, numpy.uint8)
    assert not array.flags.writeable and not array.flags.owndata
    assert array.__array_interface__["data"][0] == numpy.frombuffer(buffer, numpy.int8).__array_interface__["data"][0]
    whole = numpy.frombuffer(mapped.buffer("/mapped/a"), numpy.int64)
    del buffer
    gc.collect()
    assert bytes(array) == data[5 : 1 << 20] and whole.tobytes() == data


def test_mapped_reads_need_no_answer_of_the_node(mapped, node):
    """They are copied out of its memory: it may as well be stopped."""
    data = stored(mapped, "/mapped/still", 4 << 20)
    with mapped.open("/mapped/still", buffering=0) as file:
        # Where the chunk lies is asked for once.
        assert file.read(BLOCK) == data[:BLOCK]
        node.process.send_signal(signal.SIGSTOP)
        try:
            assert file.read((3 << 20) - BLOCK) == data[BLOCK : 3 << 20]
        finally:
            node.process.send_signal(signal.SIGCONT)


def test_a_file_that_is_deleted_leaves_buffers_as_they_are(mapped):
    """And reads of it give the old bytes for a while, then none, never others'."""
    data = stored(mapped, "/mapped/gone", 4 << 20, 1)
    buffer = mapped.buffer("/mapped/gone")
    until = time.monotonic() + 60
    with mapped.open("/mapped/gone", buffering=0) as file:
        assert file.read(BLOCK) == data[:BLOCK]
        mapped.delete("/mapped/gone")
        with pytest.raises(errors.NotFoundError):
            mapped.buffer("/mapped/gone")
        with pytest.raises(errors.NotFoundError):
            # Its frames are used again by these.
            for n in range(1 << 20):
                stored(mapped, "/mapped/other", 4 << 20, 2)
                file.seek(BLOCK * (n % 60))
                at = file.tell()
                assert file.read(4 * BLOCK) == data[at : at + 4 * BLOCK]
                assert time.monotonic() < until
    assert buffer == data


def test_a_file_that_is_replaced_while_it_is_read_gives_one_or_the_other(mapped):
    versions = [stored(mapped, "/mapped/v", 2 << 20, n) for n in range(3)]
    stop, wrong = threading.Event(), []

    def read():
        while not stop.is_set():
            try:
                if mapped.buffer("/mapped/v") not in versions:
                    wrong.append("a mixture")
            except BaseException as e:
                wrong.append(e)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for n in range(3):
        stored(mapped, "/mapped/v", 2 << 20, n % 3)
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_a_node_that_restarts_is_mapped_anew_and_old_buffers_stay(tmp_path):
    node = Node(tmp_path / "data")
    try:
        with node.connect(mapped=True) as client:
            client.make_dir("/d", storage_class="dram")
            data = stored(client, "/d/a", 3 << 20)
            buffer = client.buffer("/d/a")
            file = client.open("/d/a", buffering=0)
            assert file.read(BLOCK) == data[:BLOCK]
            node.kill()
            # What it was given the place of, it reads of the memory that was the node's.
            assert buffer == data and file.read(BLOCK) == data[BLOCK : 2 * BLOCK]
            node.start()
            with pytest.raises(errors.NotFoundError, match="keeps nothing over a restart"):
                client.buffer("/d/a")
            assert buffer == data
            other = stored(client, "/d/b", 3 << 20, 7)
            assert client.buffer("/d/b", 1, (3 << 20) - 1) == other[1:-1]
        # Behind the end of the client, too.
        with pytest.raises(ValueError, match="closed"):
            client.buffer("/d/a")
        assert buffer == data
    finally:
        node.stop()
    assert buffer == data


def test_a_child_maps_for_itself(mapped):
    data = stored(mapped, "/mapped/fork", 3 << 20)
    buffer = mapped.buffer("/mapped/fork")
    child = os.fork()
    if child == 0:
        right = False
        try:
            right = buffer == data and mapped.buffer("/mapped/fork", 7) == data[7:]
        finally:
            os._exit(0 if right else 1)
    assert mapped.buffer("/mapped/fork", 7) == data[7:]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_cannot_be_mapped_says_so(node, mapped):
    with pytest.raises((errors.UnsupportedError, errors.InvalidError), match="map|region|memory"):
        node_over_tcp(node, mapped=True)
    with pytest.raises(errors.InvalidError, match="from -1"):
        mapped.buffer("/mapped", -1)
    with pytest.raises(errors.InvalidError, match="up to -2"):
        mapped.buffer("/mapped", 0, -2)
    with pytest.raises(errors.HoldfastError):
        mapped.buffer("/mapped")
    mapped.make_dir("/mapped/bag", kind="multifile")
    with pytest.raises(errors.InvalidError, match="one of its files"):
        mapped.buffer("/mapped/bag")
    name = "/mapped/a\nb\t\u202e"
    data = stored(mapped, name, BLOCK + 1)
    assert mapped.buffer(name) == data
    with pytest.raises(UnicodeEncodeError):
        # What is not UTF-8 is no name here.
        mapped.buffer(os.fsdecode(b"/mapped/\xff"))


def node_over_tcp(node, **options):
    import holdfast

    return holdfast.connect(node.ready["native"], secret=str(node.directory / "secret"), **options)
