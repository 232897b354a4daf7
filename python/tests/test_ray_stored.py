"""Jobs that read from and write to a Holdfast node, over its own protocol with its secret."""

import collections
import socket
import sys

import pytest

import holdfast
from holdfast import errors
from holdfast.sort import Order

ray = pytest.importorskip("ray", reason="jobs over many machines are not tried: `make python-ray` installs Ray")

from conftest import Node  # noqa: E402
from test_ray import MEMORY, lines, start, stop, table, total, words  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    cluster = start(2)
    ray.cloudpickle.register_pickle_by_value(sys.modules["test_ray"])
    yield cluster
    stop(cluster)


@pytest.fixture
def stored(node, place):
    """Where a test's files are, as a job's paths, and the options that a job needs for them."""
    options = {"ray": "auto", "memory": MEMORY, "split_bytes": 300_000, "secret": str(node.directory / "secret")}
    return f"holdfast://{node.ready['native']}{place}", options


def parts(client, directory):
    names = sorted(entry.name for entry in client.list(directory))
    return b"".join(client.get(f"{directory}/{name}") for name in names)


@pytest.fixture
def text():
    return lines(4, 30_000)


def test_a_sort_reads_from_a_node_and_writes_to_it(cluster, client, place, stored, text, tmp_path):
    where, options = stored
    client.put(f"{place}/in", text)
    stats = holdfast.sort([f"{where}/in"], f"{where}/out", temp=[str(tmp_path)], **options)
    in_order = b"".join(sorted(text.splitlines(keepends=True)))
    assert parts(client, f"{place}/out") == in_order
    assert stats.splits > 3 and stats.bytes == len(text)
    # It is read as one file, and so it is an input.
    with client.open(f"{place}/out") as file:
        assert b"".join(iter(lambda: file.read(1 << 20), b"")) == in_order
    order = Order(letters="r")
    holdfast.sort([f"{where}/out"], f"{where}/back", order=order, parts=True, temp=[str(tmp_path)], **options)
    assert parts(client, f"{place}/back") == b"".join(sorted(text.splitlines(keepends=True), reverse=True))
    assert [client.stat(f"{place}/{name}").kind for name in ("out", "back")] == ["multifile", "directory"]
    client.delete(f"{place}/back", recursive=True)
    # Nothing else is left there.
    assert sorted(entry.name for entry in client.list(place)) == ["in", "out"]
    with pytest.raises(errors.ExistsError, match="out`: it exists"):
        holdfast.sort([f"{where}/in"], f"{where}/out", temp=[str(tmp_path)], **options)
    holdfast.sort([f"{where}/in"], f"{where}/out", replace=True, temp=[str(tmp_path)], **options)
    assert parts(client, f"{place}/out") == b"".join(sorted(text.splitlines(keepends=True)))


def test_words_are_counted_from_a_node_to_it(cluster, client, place, stored, text, tmp_path):
    where, options = stored
    client.put(f"{place}/in", text)
    job = {"map": words, "combine": total, "reduce": total, "temp": [str(tmp_path)]}
    holdfast.mapreduce([f"{where}/in"], f"{where}/out", **job, **options)
    found = dict(line.split("\t") for line in parts(client, f"{place}/out").decode().splitlines())
    assert found == {word: str(n) for word, n in collections.Counter(text.decode().split()).items()}

    def fails(word, counts):
        raise ValueError(word)

    with pytest.raises(errors.HoldfastError, match="reduce key"):
        holdfast.mapreduce([f"{where}/in"], f"{where}/none", **{**job, "reduce": fails}, **options)
    assert sorted(entry.name for entry in client.list(place)) == ["in", "out"]


def test_a_job_into_a_node_goes_on_where_it_was_interrupted(cluster, client, place, stored, text, tmp_path):
    where, options = stored
    client.put(f"{place}/in", text)
    options = {**options, "memory": 4 << 20, "resume": True, "temp": [str(tmp_path)]}
    begun, left = [], [2]

    def interrupts(kind, what, _):
        if kind == "finish":
            begun.append(what)
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        holdfast.sort([f"{where}/in"], f"{where}/out", observe=interrupts, **options)
    assert not client.exists(f"{place}/out")
    del begun[:]
    stats = holdfast.sort([f"{where}/in"], f"{where}/out", observe=interrupts, **options)
    assert parts(client, f"{place}/out") == b"".join(sorted(text.splitlines(keepends=True)))
    assert stats.resumed_partitions == stats.partitions - len(begun) >= 1
    assert sorted(entry.name for entry in client.list(place)) == ["in", "out"]


def test_tables_are_read_from_a_node(cluster, client, place, stored, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.csv
    import pyarrow.parquet

    where, options = stored
    rows = pyarrow.table({"k": [n % 5 for n in range(9000)], "v": list(range(9000))})
    with client.open(f"{place}/a.parquet", "wb") as file:
        pyarrow.parquet.write_table(rows, file, row_group_size=1000)
    with client.open(f"{place}/a.csv", "wb") as file:
        pyarrow.csv.write_csv(rows, file)
    expected = {str(k): str(sum(range(k, 9000, 5))) for k in range(5)}
    for format in ("parquet", "csv"):
        small = {**options, "split_bytes": 20_000}
        job = {"format": format, "key": "k", "reduce": total, "temp": [str(tmp_path / "tmp")]}
        holdfast.mapreduce([f"{where}/a.{format}"], tmp_path / format, **job, **small)
        assert table(tmp_path / format) == expected


def test_rows_are_written_to_a_node(cluster, client, place, stored, text, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    where, options = stored
    client.put(f"{place}/in", text)
    row = lambda word, counts: {"word": word, "n": sum(counts)}  # noqa: E731
    job = {"map": words, "combine": total, "reduce": row, "output_format": "parquet", "temp": [str(tmp_path)]}
    holdfast.mapreduce([f"{where}/in"], f"{where}/new/out", **job, **options)
    found = {}
    for entry in client.list(f"{place}/new/out"):
        with client.open(f"{place}/new/out/{entry.name}") as file:
            found.update((one["word"], one["n"]) for one in pyarrow.parquet.read_table(file).to_pylist())
    assert found == collections.Counter(text.decode().split())

    def late(word, counts):
        # The part is begun, and none of it stays.
        return pyarrow.table({"n": [1]}) if word < "word3" else pyarrow.table({"s": [1]})

    with pytest.raises(errors.InvalidError, match="columns"):
        holdfast.mapreduce([f"{where}/in"], f"{where}/none", **{**job, "reduce": late}, **options)
    assert sorted(entry.name for entry in client.list(place)) == ["in", "new"]


@pytest.mark.parametrize("phase", ["map", "finish"])
@pytest.mark.parametrize("job", ["sort", "words"])
def test_a_node_that_restarts_costs_no_job(cluster, text, tmp_path, job, phase):
    """Who came while it was away was refused, and that ended the job as if a function had failed."""
    node = Node(tmp_path / "data")
    port = int(node.ready["native"].rpartition(":")[2])
    begun = []

    def restarts(kind, *_):
        begun.append(kind)
        if kind == phase and begun.count(phase) == 2:
            node.kill()
            # The first one that comes meanwhile is turned away.
            with socket.create_server(("127.0.0.1", port)) as listener:
                listener.settimeout(60)
                listener.accept()[0].close()
            node.start()

    with node.connect() as client:
        client.put("/in", text)
        where, secret = f"holdfast://{node.ready['native']}", str(node.directory / "secret")
        options = {"ray": "auto", "memory": 4 << 20, "split_bytes": 300_000, "secret": secret, "temp": [str(tmp_path / "tmp")]}
        if job == "sort":
            holdfast.sort([f"{where}/in"], f"{where}/out", observe=restarts, **options)
            assert parts(client, "/out") == b"".join(sorted(text.splitlines(keepends=True)))
        else:
            holdfast.mapreduce([f"{where}/in"], f"{where}/out", map=words, reduce="sum", observe=restarts, **options)
            found = dict(line.split("\t") for line in parts(client, "/out").decode().splitlines())
            assert found == {word: str(n) for word, n in collections.Counter(text.decode().split()).items()}
        assert begun.count(phase) >= 2
        assert sorted(entry.name for entry in client.list("/")) == ["in", "out"]
    node.stop()


def test_an_input_that_is_replaced_while_it_is_read_ends_the_job(cluster, client, place, stored, text, tmp_path):
    where, options = stored
    client.put(f"{place}/in", text)

    def replaces(*_):
        # Of the same length.
        client.put(f"{place}/in", text[::-1], replace=True)

    with pytest.raises(errors.RetryError, match="changed since the job began"):
        holdfast.sort([f"{where}/in"], f"{where}/out", temp=[str(tmp_path)], observe=replaces, **options)
    with pytest.raises(errors.NotFoundError):
        holdfast.sort([f"{where}/nowhere"], f"{where}/out", temp=[str(tmp_path)], **options)
