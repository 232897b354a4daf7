"""`holdfast://`: fsspec's own suite, and what it does not ask."""

import asyncio
import io
import posixpath
import random

import pytest

fsspec = pytest.importorskip("fsspec")
from fsspec.tests import abstract

from conftest import Node
from holdfast import errors
from holdfast.fs import HoldfastFileSystem

#: Blocking calls of ours that have a coroutine beside them.
_BOTH = ["cat_file", "cat_ranges", "cp_file", "info", "ls", "makedirs", "mkdir", "pipe_file", "rm", "rm_file"]


class MirroredFileSystem(HoldfastFileSystem):
    """Without our blocking calls: fsspec makes them of the coroutines, and so its suite asks those."""

    protocol = "holdfast-mirrored"
    mirror_sync_methods = True

    def mv_file(self, path1, path2, **options):
        return fsspec.asyn.sync(self.loop, self._mv_file, path1, path2, **options)


for name in _BOTH:
    setattr(MirroredFileSystem, name, getattr(fsspec.AbstractFileSystem, name))


class HoldfastFixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class", params=[HoldfastFileSystem, MirroredFileSystem])
    def fs(self, node, request):
        return request.param(node.server, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self):
        return "/fsspec"

    @pytest.fixture
    def fs_join(self):
        return posixpath.join

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(abstract.AbstractCopyTests, HoldfastFixtures):
    pass


class TestGet(abstract.AbstractGetTests, HoldfastFixtures):
    pass


class TestPut(abstract.AbstractPutTests, HoldfastFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, HoldfastFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, HoldfastFixtures):
    pass


@pytest.fixture(params=[HoldfastFileSystem, MirroredFileSystem])
def fs(node, request):
    return request.param(node.server, skip_instance_cache=True)


@pytest.fixture
def blocking_fs(node):
    return HoldfastFileSystem(node.server, skip_instance_cache=True)


def test_a_url_names_a_node_and_a_path(node):
    secret = str(node.directory / "secret")
    url = f"holdfast://{node.ready['native']}/fsspec-url/a"
    with fsspec.open(url, "wb", secret=secret) as file:
        file.write(b"by url")
    fs, path = fsspec.core.url_to_fs(url, secret=secret)
    assert (path, fs.cat(path)) == ("/fsspec-url/a", b"by url")
    assert fsspec.core.url_to_fs(url, secret=secret)[0] is fs, "one client for one cluster"
    fs.rm("/fsspec-url", recursive=True)


def test_listings_are_kept_until_something_changes(fs, client, place):
    fs.pipe(f"{place}/d/a", b"1")
    assert fs.ls(f"{place}/d", detail=False) == [f"{place}/d/a"]
    client.put(f"{place}/d/b", b"2")
    assert fs.ls(f"{place}/d", detail=False) == [f"{place}/d/a"], "somebody else changed it"
    assert len(fs.ls(f"{place}/d", refresh=True)) == 2
    for change in (
        lambda: fs.pipe(f"{place}/d/c", b"3"),
        lambda: fs.rm(f"{place}/d/a"),
        lambda: fs.mv(f"{place}/d/b", f"{place}/d/z"),
        lambda: fs.mkdir(f"{place}/d/e"),
        lambda: fs.touch(f"{place}/d/t"),
        lambda: fs.cp_file(f"{place}/d/z", f"{place}/d/y"),
    ):
        change()
        there = sorted(entry.name for entry in client.list(f"{place}/d"))
        assert [posixpath.basename(p) for p in fs.ls(f"{place}/d", detail=False)] == there


def test_a_transaction_names_all_files_or_none(blocking_fs, client, place):
    fs = blocking_fs
    with fs.transaction:
        for name in "ab":
            with fs.open(f"{place}/{name}", "wb") as file:
                file.write(name.encode() * 3_000_000)
        fs.pipe(f"{place}/c", b"small")
        assert list(client.list(place)) == [], "nothing is seen before the end"
    assert [entry.name for entry in client.list(place)] == ["a", "b", "c"]
    assert client.get(f"{place}/b") == b"b" * 3_000_000
    with pytest.raises(RuntimeError):
        with fs.transaction:
            with fs.open(f"{place}/d", "wb") as file:
                file.write(b"x")
            raise RuntimeError
    assert not client.exists(f"{place}/d")
    fs.pipe(f"{place}/e", b"after it")
    assert client.get(f"{place}/e") == b"after it"


def test_ranges_are_as_those_of_python(fs, place):
    data = bytes(range(256)) * 5000
    fs.pipe(f"{place}/a", data)
    for start, end in [(None, None), (3, None), (None, 7), (-5, None), (-9, -3), (100, 2_000_000), (5, 5)]:
        assert fs.cat_file(f"{place}/a", start, end) == data[start:end], (start, end)
    paths = [f"{place}/a"] * 3 + [f"{place}/no"]
    got = fs.cat_ranges(paths, [0, 10, -4, 0], [3, 1_000_000, None, 1], on_error="return")
    assert got[:3] == [data[0:3], data[10:1_000_000], data[-4:]]
    assert isinstance(got[3], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, 0, 1, on_error="raise")


@pytest.mark.parametrize("kind", [HoldfastFileSystem, MirroredFileSystem])
def test_ranges_of_a_node_that_is_gone_are_errors_and_not_raised(tmp_path, kind):
    node = Node(tmp_path / "data")
    fs = kind(node.server, skip_instance_cache=True, patience=0.1)
    fs.pipe("/a", b"bytes")
    assert fs.cat_ranges(["/a"], 0, 2) == [b"by"]
    node.kill()
    got = fs.cat_ranges(["/a", "/b"], 0, 2, on_error="return")
    assert [type(error) for error in got] == [errors.RetryError] * 2
    with pytest.raises(errors.RetryError):
        fs.cat_ranges(["/a", "/b"], 0, 2, on_error="raise")


def test_a_directory_that_moves_is_one_step(fs, client, place):
    fs.pipe({f"{place}/d/{name}": b"x" for name in "abc"})
    ids = [entry.info.id for entry in client.list(f"{place}/d")]
    fs.mv(f"{place}/d", f"{place}/e", recursive=True)
    assert [entry.info.id for entry in client.list(f"{place}/e")] == ids, "no byte was copied"
    fs.mkdir(f"{place}/f")
    fs.mv(f"{place}/e/a", f"{place}/f/")
    assert fs.find(place) == [f"{place}/e/b", f"{place}/e/c", f"{place}/f/a"]


def test_a_pickled_one_is_the_same(fs, place):
    import pickle

    fs.pipe(f"{place}/a", b"1")
    assert pickle.loads(pickle.dumps(fs)).cat(f"{place}/a") == b"1"


def test_coroutines_are_those_that_fsspec_asks_for(node, client, place):
    data = bytes(range(256)) * 12_000

    async def story():
        fs = fsspec.filesystem("holdfast", servers=node.server, asynchronous=True, skip_instance_cache=True)
        await asyncio.gather(*(fs._pipe_file(f"{place}/d/{name}", data) for name in "abc"))
        assert await fs._ls(f"{place}/d", detail=False) == [f"{place}/d/{name}" for name in "abc"]
        for start, end in [(None, None), (3, None), (None, 7), (-5, None), (-9, -3), (100, 9_000_000), (5, 5), (9, 3)]:
            assert await fs._cat_file(f"{place}/d/a", start, end) == data[start:end], (start, end)
        got = await fs._cat_ranges([f"{place}/d/a", f"{place}/d/b", f"{place}/no"], [0, -4, 0], [3, None, 1])
        assert got[:2] == [data[:3], data[-4:]] and isinstance(got[2], FileNotFoundError)
        async with await fs.open_async(f"{place}/d/x", "xb") as file:
            for _ in range(3):
                await file.write(data)
            assert not await fs._exists(f"{place}/d/x"), "it appears whole"
            assert len(await fs._ls(f"{place}/d")) == 3
        assert len(await fs._ls(f"{place}/d")) == 4, "what was listed before it appeared is forgotten"
        with pytest.raises(FileExistsError):
            await fs.open_async(f"{place}/d/x", "xb")
        with pytest.raises(RuntimeError):
            async with await fs.open_async(f"{place}/d/y", "wb") as file:
                await file.write(data)
                raise RuntimeError
        async with await fs.open_async(f"{place}/d/x") as file:
            assert [await file.read(5), await file.read()] == [data[:5], (data * 3)[5:]]
        await fs._mv_file(f"{place}/d/x", f"{place}/d/z")
        assert sorted(await fs._find(f"{place}")) == [f"{place}/d/{name}" for name in "abcz"]
        await fs._rm(f"{place}/d", recursive=True)
        assert not await fs._exists(f"{place}/d")
        with fs.transaction:
            with pytest.raises(errors.InvalidError, match="in a transaction: those are of the blocking calls"):
                await fs._pipe_file(f"{place}/t", b"")

    asyncio.run(story())


def test_blocking_calls_and_those_of_several_loops_have_one_listing(blocking_fs, client, place):
    """As a server has them: handlers of its loop, workers in threads, and a loop that ended."""
    fs = blocking_fs
    for round in range(3):
        path = f"{place}/{round}"
        asyncio.run(fs._pipe_file(path, b"by a loop"))
        assert fs.cat_file(path) == b"by a loop"
        fs.pipe_file(path, b"blocking")
        assert asyncio.run(fs._cat_file(path)) == b"blocking"
        assert len(fs.ls(place)) == len(asyncio.run(fs._ls(place))) == round + 1


@pytest.mark.parametrize("seed", range(6))
def test_a_file_is_read_as_one_in_memory_is(fs, place, seed):
    """Reads on both sides of a buffer's length, from anywhere, between lines and peeks."""
    draw = random.Random(seed)
    data = bytes(draw.choices(b"ab\n", k=draw.choice([0, 5, 1000, 50_000])))
    fs.pipe_file(f"{place}/a", data)
    buffer = draw.choice([1, 16, 1000, 128 << 10])
    with fs.open(f"{place}/a", block_size=buffer) as file, io.BytesIO(data) as model:
        for _ in range(300):
            what = draw.randrange(7)
            size = draw.choice([0, 1, buffer - 1, buffer, buffer + 1, 3 * buffer, draw.randrange(1, 60_000)])
            if what == 0:
                assert file.read() == model.read()
            elif what == 1:
                assert file.readline() == model.readline()
            elif what == 2:
                whence = draw.randrange(3)
                offset = draw.randrange(len(data) + 3) if whence == 0 else 0 if whence == 1 else -draw.randrange(len(data) + 1)
                assert file.seek(offset, whence) == model.seek(offset, whence)
            elif what == 3:
                file.peek(1)
            elif what == 4:
                into, told = bytearray(size), bytearray(size)
                assert (file.readinto(into), into) == (model.readinto(told), told)
            else:
                assert file.read(size) == model.read(size)
            assert file.tell() == model.tell()


def test_what_is_known_below_a_directory_goes_with_it(fs, client, place):
    """Listings of the directories below one that was removed or renamed stayed, so that their files still seemed to
    be there."""
    for change in (
        lambda: fs.rm(f"{place}/d", recursive=True),
        lambda: fs.mv(f"{place}/d", f"{place}/z", recursive=True),
    ):
        fs.pipe({f"{place}/d/e/f/a": b"1", f"{place}/dd/e/c": b"3"})
        assert len(fs.find(place)) >= 2, "all is listed"
        change()
        assert not fs.exists(f"{place}/d/e/f/a")
        assert fs.exists(f"{place}/dd/e/c"), "its name only begins alike"
        found = fs.find(place)
        fs.invalidate_cache()
        assert found == fs.find(place)


def test_what_lies_below_another_one_is_removed_with_it(fs, place):
    """The directory went first, and what was below it was an error then."""
    fs.pipe({f"{place}/d/e/a": b"1", f"{place}/d/b": b"2"})
    fs.rm([f"{place}/d", f"{place}/d/e", f"{place}/d/b"], recursive=True)
    assert fs.find(place) == []
    fs.pipe({f"{place}/d/e/a": b"1", f"{place}/d/b": b"2"})
    fs.rm(f"{place}/d/**", recursive=True)
    assert fs.find(place) == []


def test_a_name_that_moves_to_itself_stays(fs, place):
    fs.pipe({f"{place}/a": b"1", f"{place}/d/b": b"2"})
    fs.mv(f"{place}/a", f"{place}/a")
    fs.mv(f"{place}/d", f"{place}/d", recursive=True)
    assert fs.cat(fs.find(place)) == {f"{place}/a": b"1", f"{place}/d/b": b"2"}


def test_what_moves_makes_the_directories_above_it(fs, place):
    """As what is written and copied does."""
    fs.pipe(f"{place}/a", b"1")
    fs.mv(f"{place}/a", f"{place}/new/deep/b")
    assert fs.cat(f"{place}/new/deep/b") == b"1"
    for missing in (f"{place}/no", f"{place}/new/no"):
        with pytest.raises(FileNotFoundError):
            fs.mv(missing, f"{place}/other/b")
    assert not fs.exists(f"{place}/other")


def test_the_size_of_a_multifile_is_no_number_of_bytes(fs, client, place):
    """It was the number of its files."""
    client.make_dir(f"{place}/m", kind="multifile")
    for name in "ab":
        client.put(f"{place}/m/{name}", name.encode() * 100)
    with fs.open(f"{place}/m") as file:
        assert file.size is None and file.read() == b"a" * 100 + b"b" * 100
