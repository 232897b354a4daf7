"""What reads and writes through fsspec, each with the real library: `make python-libraries` installs
them."""

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


def test_a_loader_of_torch(place, node):
    torch = pytest.importorskip("torch")

    class Files(torch.utils.data.Dataset):
        """Made before its workers are, by a fork."""

        def __init__(self, client):
            self.client = client

        def __len__(self):
            return 100

        def __getitem__(self, i):
            return torch.tensor(list(self.client.get(f"{place}/{i}")))

    with node.connect() as client:
        for i in range(100):
            client.put(f"{place}/{i}", bytes([i] * 8))
        loader = torch.utils.data.DataLoader(Files(client), batch_size=10, num_workers=2)
        read = torch.cat(list(loader))
    assert (read == torch.arange(100).repeat_interleave(8).reshape(100, 8)).all()
