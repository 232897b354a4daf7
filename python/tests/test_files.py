"""Open files, held against Python's own over the same bytes."""

import io
import random

import pytest

import holdfast


@pytest.fixture(params=[0, 5, 700_000, 5 << 20])
def pair(request, client, place):
    """A file here and the same bytes as Python has them."""
    data = random.Random(request.param).randbytes(request.param)
    client.put(f"{place}/a", data)
    return f"{place}/a", data


@pytest.mark.parametrize("buffering", [0, 100, -1])
def test_reads_and_seeks_are_pythons(client, pair, buffering):
    path, data = pair
    draw = random.Random(len(data) + buffering)
    ours, theirs = client.open(path, "rb", buffering=buffering), io.BytesIO(data)
    with ours:
        for _ in range(200):
            step = draw.randrange(6)
            size = draw.choice([0, 1, 7, 4096, 300_000, len(data)])
            if step == 0:
                offset, whence = draw.choice(
                    [(draw.randrange(len(data) + 10), 0), (-min(size, theirs.tell()), 1), (0, 2)]
                )
                assert ours.seek(offset, whence) == theirs.seek(offset, whence)
            elif step == 1:
                mine, its = bytearray(size), bytearray(size)
                assert ours.readinto(mine) == theirs.readinto(its)
                assert mine == its
            elif step == 2 and buffering:
                assert ours.read1(size) == theirs.read(0) + data[theirs.tell() : ours.tell()]
                theirs.seek(ours.tell())
            elif step == 3 and draw.random() < 0.1:
                assert ours.read() == theirs.read()
            else:
                assert ours.read(size) == theirs.read(size)
            assert ours.tell() == theirs.tell()
        with pytest.raises((ValueError, OSError)):
            ours.seek(-1)
    assert ours.closed
    with pytest.raises(ValueError):
        ours.read(1)


@pytest.mark.parametrize("size", [None, 0, 1 << 20])
def test_what_is_written_in_pieces_is_the_file(client, place, size):
    draw = random.Random(3)
    data = draw.randbytes(3 << 20)
    with client.open(f"{place}/a", "wb", size=size) as file:
        at = 0
        while at < len(data):
            step = draw.choice([1, 100, 70_000, 600_000])
            file.write(data[at : at + step])
            at += step
            assert file.tell() == min(at, len(data))
            if draw.random() < 0.1:
                file.flush()
                file.raw.sync()
        assert not client.exists(f"{place}/a"), "it appears when it is closed"
    assert client.get(f"{place}/a") == data
    assert file.raw.id == client.stat(f"{place}/a").id


@pytest.mark.parametrize("how", [dict(mode="wb"), dict(mode="wb", buffering=0), dict(mode="w")])
def test_a_block_that_raises_leaves_no_file(client, place, how):
    text = "b" not in how["mode"]
    for size in (10, 3 << 20):
        with pytest.raises(RuntimeError):
            with client.open(f"{place}/a", **how) as file:
                file.write("x" * size if text else b"x" * size)
                raise RuntimeError("the data came to an end")
        assert file.closed and not client.exists(f"{place}/a")


def test_modes_are_pythons(client, place):
    with client.open(f"{place}/a", "x") as file:
        file.write("zwei\nZeilen ü\n")
    with pytest.raises(FileExistsError):
        client.open(f"{place}/a", "x")
    with pytest.raises(FileExistsError):
        with client.open(f"{place}/b", "x") as file:
            client.put(f"{place}/b", b"somebody else's")
            file.write("late")
    with client.open(f"{place}/a", "r") as file:
        assert list(file) == ["zwei\n", "Zeilen ü\n"]
    with client.open(f"{place}/a", "w", encoding="latin-1", newline="\r\n") as file:
        file.write("ü\n")
    assert client.get(f"{place}/a") == b"\xfc\r\n"
    for wrong in ("a", "r+", "rbt", "", "wr"):
        with pytest.raises(ValueError):
            client.open(f"{place}/a", wrong)
    with pytest.raises(FileNotFoundError):
        client.open(f"{place}/no")
    with pytest.raises(io.UnsupportedOperation):
        client.open(f"{place}/a", "wb").read()


@pytest.mark.parametrize("buffering", [0, -1])
def test_any_buffer_is_read_into(client, place, buffering):
    """One without elements, of several dimensions, was a TypeError where the file has no buffer."""
    numpy = pytest.importorskip("numpy")
    client.put(f"{place}/a", bytes(range(48)))
    with client.open(f"{place}/a", buffering=buffering) as file:
        assert file.readinto(numpy.empty((0, 3))) == 0
        assert file.readinto(numpy.empty((2, 3), "u4")) == 24
        into = numpy.empty((3, 2), "u4")
        assert file.readinto(into) == 24 and into.tobytes() == bytes(range(24, 48))
        assert file.readinto(into) == 0


def test_a_multifile_is_one_stream(client, place):
    client.make_dir(f"{place}/m", kind="multifile")
    parts = {f"{i:02}": random.Random(i).randbytes(i * 100_000) for i in range(12)}
    for name, data in parts.items():
        client.put(f"{place}/m/{name}", data)
    with client.open(f"{place}/m") as file:
        assert file.read() == b"".join(parts.values())
        assert not file.seekable()


def test_a_file_that_is_replaced_is_read_whole_or_not_at_all(client, place):
    old, new = b"a" * (3 << 20), b"b" * (3 << 20)
    client.put(f"{place}/a", old)
    with client.open(f"{place}/a") as file:
        read = file.read(100_000)
        client.put(f"{place}/a", new, replace=True)
        try:
            read += file.read()
            assert read == old
        except holdfast.errors.NotFoundError:
            pass
    assert client.get(f"{place}/a") == new
