"""Jobs whose input is CSV or Parquet, against a fold of the same rows in this process."""

import collections
import random
import subprocess
import sys

import pytest

import holdfast
from holdfast import errors

ray = pytest.importorskip("ray", reason="jobs over many machines are not tried: `make python-ray` installs Ray")
pyarrow = pytest.importorskip("pyarrow", reason="jobs of tables are not tried: `make python-ray` installs pyarrow")

import pyarrow.compute  # noqa: E402
import pyarrow.csv  # noqa: E402
import pyarrow.parquet  # noqa: E402

from test_ray import MEMORY, start, stop, table  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    cluster = start(2)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield cluster
    stop(cluster)


@pytest.fixture(scope="module")
def sales():
    draw = random.Random(5)
    rows = 30_000
    users = [f"user {draw.randrange(700)}" for _ in range(rows)]
    # Quotes and commas are what a reader of lines alone would stumble over.
    shops = [draw.choice(['the "old" shop', "a, b & c", "plain", ""]) for _ in range(rows)]
    amounts = [draw.randrange(-5, 1000) for _ in range(rows)]
    return pyarrow.table({"user": users, "shop": shops, "amount": amounts})


@pytest.fixture(scope="module", params=["csv", "parquet"])
def files(request, sales, tmp_path_factory):
    """The rows in two files, and their format."""
    directory, paths = tmp_path_factory.mktemp(request.param), []
    for n, part in enumerate([sales.slice(0, 11_111), sales.slice(11_111)]):
        paths.append(directory / f"{n}.{request.param}")
        if request.param == "csv":
            # Columns are found by their names.
            pyarrow.csv.write_csv(part.select(["amount", "user", "shop"]) if n else part, paths[-1])
        else:
            pyarrow.parquet.write_table(part, paths[-1], row_group_size=2000)
    return request.param, paths


def total(_, values):
    return sum(values)


def run(files, output, **options):
    format, paths = files
    defaults = {"ray": "auto", "memory": MEMORY, "split_bytes": 60_000, "temp": [str(output) + ".tmp"]}
    return holdfast.mapreduce(paths, output, **{"format": format, "reduce": total, **defaults, **options})


def folded(sales, key, value):
    sums = collections.Counter()
    for row in sales.to_pylist():
        sums[key(row)] += value(row)
    return {name: str(amount) for name, amount in sums.items()}


def test_columns_are_summed_without_a_map(cluster, files, sales, tmp_path):
    stats = run(files, tmp_path / "out", columns=["user", "amount"], key="user", combine=total)
    assert table(tmp_path / "out") == folded(sales, lambda r: r["user"], lambda r: r["amount"])
    assert stats.splits > 4


def test_a_map_takes_batches_and_answers_batches_or_pairs(cluster, files, sales, tmp_path):
    def large(batch):
        import pyarrow.compute

        return batch.filter(pyarrow.compute.greater(batch.column("amount"), 900))

    run(files, tmp_path / "out", map=large, key="shop", reduce=lambda shop, rows: f"{shop}\t{len({r['user'] for r in rows})}")
    users = collections.defaultdict(set)
    for row in sales.to_pylist():
        if row["amount"] > 900:
            users[row["shop"]].add(row["user"])
    assert table(tmp_path / "out") == {shop: str(len(names)) for shop, names in users.items()}

    def pairs(batch):
        for shop, amount in zip(*(batch.column(name).to_pylist() for name in ("shop", "amount"))):
            yield shop, amount

    run(files, tmp_path / "pairs", map=pairs)
    assert table(tmp_path / "pairs") == folded(sales, lambda r: r["shop"], lambda r: r["amount"])


def test_a_column_that_is_missing_is_named_beside_those_that_are_there(cluster, files, tmp_path):
    with pytest.raises(errors.InvalidError, match="no column `price`: its columns are `user`, `shop`, `amount`"):
        run(files, tmp_path / "out", columns=["user", "price"], key="user")
    with pytest.raises(errors.HoldfastError, match="key's column `user`: its columns are `shop`, `amount`"):
        run(files, tmp_path / "out", map=lambda batch: batch.select(["shop", "amount"]), key="user")
    with pytest.raises(errors.HoldfastError, match="which column is the key"):
        run(files, tmp_path / "out")
    with pytest.raises(errors.InvalidError, match="run a job of `orc`: the formats are `csv`, `parquet`"):
        run(("orc", files[1]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_csv_cut_anywhere_has_each_row_once(tmp_path):
    from holdfast import tables

    path = tmp_path / "in.csv"
    path.write_bytes(b'\xef\xbb\xbf"a",b\r\n' + b"".join(b"%d,%s\r\n" % (n, b"x" * (n % 7)) for n in range(200)) + b"200,end")
    for split_bytes in (1, 3, 10, 64, 5000):
        splits, reading = tables.splits_of([str(path)], "csv", None, split_bytes)
        found = [row["a"] for split in splits for batch in reading.items(split, None) for row in batch.to_pylist()]
        assert found == list(range(201)), split_bytes


def test_types_are_those_of_the_front_unless_said(tmp_path):
    from holdfast import tables

    path = tmp_path / "in.csv"
    path.write_text("zip,n\n" + "01234,1\n" * 40_000 + "0123x,1.5\n")

    def rows(columns):
        splits, reading = tables.splits_of([str(path)], "csv", columns, 100_000)
        return [row for split in splits for batch in reading.items(split, None) for row in batch.to_pylist()]

    with pytest.raises(errors.InvalidError, match="(?s)in.csv` as CSV.*0123x.*columns=pyarrow.schema"):
        rows(None)
    said = pyarrow.schema([("zip", pyarrow.string()), ("n", pyarrow.float64())])
    assert rows(said)[-1] == {"zip": "0123x", "n": 1.5} and rows(said)[0]["zip"] == "01234"
    (tmp_path / "empty.csv").touch()
    assert tables.splits_of([str(tmp_path / "empty.csv")], "csv", None, 1)[0] == []
    (tmp_path / "no.parquet").write_text("this is text")
    with pytest.raises(errors.InvalidError, match="no.parquet` as Parquet"):
        tables.splits_of([str(tmp_path / "no.parquet")], "parquet", None, 1)


def test_without_pyarrow_a_sentence_says_what_to_install():
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import holdfast\n"
        "try: holdfast.mapreduce(['x'], 'y', format='csv', key='k', reduce=sum)\n"
        "except holdfast.errors.UnsupportedError as e: print(e)"
    )
    said = subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True).stdout
    assert "pip install pyarrow" in said
