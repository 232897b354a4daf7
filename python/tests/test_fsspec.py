"""`holdfast://`: fsspec's own suite, and what it does not ask."""

import posixpath

import pytest

fsspec = pytest.importorskip("fsspec")
from fsspec.tests import abstract

from holdfast.fs import HoldfastFileSystem


class HoldfastFixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, node):
        return HoldfastFileSystem(node.server, skip_instance_cache=True)

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


@pytest.fixture
def fs(node):
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


def test_a_transaction_names_all_files_or_none(fs, client, place):
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
