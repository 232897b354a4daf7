"""What reads and writes through fsspec, each with the real library: `make python-libraries` installs
them."""

import os
import random

import pytest

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def options(node):
    return {"servers": node.server}


@pytest.fixture
def fs(options):
    return fsspec.filesystem("holdfast", **options)


def url(path):
    return f"holdfast://{path}"


ROWS = 50_000


def columns():
    draw = random.Random(5)
    return {
        "id": list(range(ROWS)),
        "word": [draw.choice(["pear", "apple", "quince"]) for _ in range(ROWS)],
        "weight": [draw.random() for _ in range(ROWS)],
    }


def test_pandas(place, options):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns())
    frame.to_csv(url(f"{place}/a.csv"), index=False, storage_options=options)
    pandas.testing.assert_frame_equal(
        pandas.read_csv(url(f"{place}/a.csv"), storage_options=options), frame
    )
    pytest.importorskip("pyarrow")
    frame.to_parquet(url(f"{place}/a.parquet"), storage_options=options)
    read = pandas.read_parquet(url(f"{place}/a.parquet"), storage_options=options, columns=["word"])
    assert list(read["word"]) == columns()["word"]


def test_pyarrow_datasets(place, fs):
    pyarrow = pytest.importorskip("pyarrow")
    dataset = pytest.importorskip("pyarrow.dataset")
    table = pyarrow.table(columns())
    dataset.write_dataset(
        table, f"{place}/set", format="parquet", partitioning=["word"], filesystem=fs
    )
    read = dataset.dataset(f"{place}/set", format="parquet", partitioning=["word"], filesystem=fs)
    assert read.count_rows() == ROWS
    pears = read.to_table(filter=dataset.field("word") == "pear", columns=["id"])
    assert sorted(pears["id"].to_pylist()) == [
        i for i, word in enumerate(columns()["word"]) if word == "pear"
    ]


def test_polars(place, options, fs):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(columns())
    with fs.open(f"{place}/a.parquet", "wb") as file:
        frame.write_parquet(file)
    with fs.open(f"{place}/a.parquet") as file:
        assert polars.read_parquet(file).equals(frame)
    with fs.open(f"{place}/a.csv", "wb") as file:
        frame.write_csv(file)
    assert polars.read_csv(fs.cat(f"{place}/a.csv")).equals(frame)


def test_duckdb(place, fs):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        made = f"select range as id, range % 7 as day from range({ROWS})"
        connection.execute(f"copy ({made}) to 'holdfast://{place}/a.parquet' (format parquet)")
        asked = f"select day, count(*), sum(id) from 'holdfast://{place}/a.parquet' group by day order by day"
        model = {}
        for i in range(ROWS):
            count, total = model.get(i % 7, (0, 0))
            model[i % 7] = (count + 1, total + i)
        assert {day: (n, int(s)) for day, n, s in connection.execute(asked).fetchall()} == model


def test_dask(place, options):
    dataframe = pytest.importorskip("dask.dataframe")
    pandas = pytest.importorskip("pandas")
    frame = dataframe.from_pandas(pandas.DataFrame(columns()), npartitions=4)
    frame.to_parquet(url(f"{place}/set"), storage_options=options)
    read = dataframe.read_parquet(url(f"{place}/set"), storage_options=options)
    counts = read.groupby("word")["id"].count().compute(scheduler="threads")
    words = columns()["word"]
    assert dict(counts) == {word: words.count(word) for word in set(words)}


def test_zarr(place, options):
    zarr = pytest.importorskip("zarr")
    numpy = pytest.importorskip("numpy")
    data = numpy.arange(300 * 400, dtype="i4").reshape(300, 400)
    group = zarr.open_group(url(f"{place}/z"), mode="w", storage_options=options)
    group.create_array("a", data=data, chunks=(50, 70))
    again = zarr.open_group(url(f"{place}/z"), mode="r", storage_options=options)
    assert (again["a"][37:211, 5:333] == data[37:211, 5:333]).all()


class Files:
    """A data set as PyTorch's loader takes one: whole files, and records of one large file, by a file system that
    was made before the loader's workers."""

    def __init__(self, fs, place):
        self.fs = fs
        self.place = place

    def __len__(self):
        return 60

    def __getitem__(self, i):
        import torch

        whole = self.fs.cat_file(f"{self.place}/{i}")
        with self.fs.open(f"{self.place}/records") as file:
            file.seek(i * 1000)
            record = file.read(1000)
        [part] = self.fs.cat_ranges([f"{self.place}/records"], [i * 1000], [i * 1000 + 3])
        assert part == record[:3]
        return torch.frombuffer(bytearray(whole + record), dtype=torch.uint8), os.getpid()


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_loader_of_torch_with_workers(place, options, fs, start):
    torch = pytest.importorskip("torch")
    import torch.utils.data

    records = random.Random(6).randbytes(60_000)
    fs.pipe_file(f"{place}/records", records)
    for i in range(60):
        fs.pipe_file(f"{place}/{i}", bytes([i] * 8))
    # The parent's connections are in use, the workers' are others.
    assert fs.cat_file(f"{place}/1") == bytes([1] * 8)
    many = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": start}
    loader = torch.utils.data.DataLoader(Files(fs, place), batch_size=7, **many)
    workers = set()
    for epoch in range(2):
        at = 0
        for batch, processes in loader:
            for row in batch:
                assert bytes(row.tolist()) == bytes([at] * 8) + records[at * 1000 : (at + 1) * 1000]
                at += 1
            workers.update(processes.tolist())
        assert at == 60
    assert len(workers) == 2 and os.getpid() not in workers
    assert fs.cat_file(f"{place}/2") == bytes([2] * 8)


def test_a_loader_of_torch_over_a_client(place, node):
    """A client is handed on by a fork; what is spawned connects by itself."""
    torch = pytest.importorskip("torch")
    import torch.utils.data

    class Values(torch.utils.data.Dataset):
        def __init__(self, client):
            self.client = client

        def __len__(self):
            return 100

        def __getitem__(self, i):
            return torch.tensor(list(self.client.get(f"{place}/{i}")))

    with node.connect() as client:
        for i in range(100):
            client.put(f"{place}/{i}", bytes([i] * 8))
        loader = torch.utils.data.DataLoader(Values(client), batch_size=10, num_workers=2, multiprocessing_context="fork")
        read = torch.cat(list(loader))
    assert (read == torch.arange(100).repeat_interleave(8).reshape(100, 8)).all()
