"""Jobs that answer rows, as CSV and Parquet, and reduce values of Arrow, against a fold in this process."""

import collections
import pathlib
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
import pyarrow.dataset  # noqa: E402
import pyarrow.parquet  # noqa: E402

from test_ray import start, stop  # noqa: E402

SCHEMA = pyarrow.schema([("user", pyarrow.string()), ("n", pyarrow.int64()), ("mean", pyarrow.float64())])


@pytest.fixture(scope="module")
def cluster():
    cluster = start(2)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield cluster
    stop(cluster)


@pytest.fixture(scope="module")
def sales(tmp_path_factory):
    """A file of Parquet, and its rows."""
    draw = random.Random(8)
    users = [f"user {draw.randrange(3000)}" for _ in range(30_000)]
    rows = pyarrow.table({"user": users, "amount": [draw.randrange(-5, 1000) for _ in users]})
    path = tmp_path_factory.mktemp("sales") / "sales.parquet"
    pyarrow.parquet.write_table(rows, path, row_group_size=2000)
    return path, rows


def run(path, output, **options):
    defaults = {"ray": "auto", "memory": 256 << 10, "split_bytes": 60_000, "temp": [str(output) + ".tmp"], "key": "user"}
    return holdfast.mapreduce([path], output, **{"format": "parquet", **defaults, **options})


def row(user, amounts):
    n = total = 0
    for amount in amounts:
        n, total = n + 1, total + amount
    return {"user": user, "n": n, "mean": total / n}


def folded(rows):
    amounts = collections.defaultdict(list)
    for one in rows.to_pylist():
        amounts[one["user"]].append(one["amount"])
    # Parts are in the order of the keys, and so is their content.
    return [row(user, amounts[user]) for user in sorted(amounts)]


def read(directory, format):
    names = sorted(path for path in pathlib.Path(directory).iterdir())
    assert all(name.suffix == f".{format}" for name in names)
    if format == "parquet":
        return pyarrow.dataset.dataset([str(name) for name in names], format=format).to_table().to_pylist()
    # A dataset of CSV has the types of its first file, which may have no row.
    return [row for name in names for row in pyarrow.csv.read_csv(name).to_pylist()]


@pytest.mark.parametrize("schema", [None, SCHEMA])
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_rows_are_what_a_fold_makes_of_them(cluster, sales, tmp_path, format, schema):
    path, rows = sales
    stats = run(path, tmp_path / "out", reduce=row, output_format=format, output_schema=schema)
    assert read(tmp_path / "out", format) == folded(rows)
    assert stats.partitions > 2
    assert stats.output_bytes == sum(part.stat().st_size for part in (tmp_path / "out").iterdir())


@pytest.mark.parametrize("values", ["arrow", pyarrow.int64()])
def test_a_reduce_takes_the_values_of_a_key_as_an_array(cluster, sales, tmp_path, values):
    path, rows = sales

    def reduced(user, amounts):
        import pyarrow.compute

        assert isinstance(amounts, pyarrow.Int64Array)
        return {"user": user, "n": len(amounts), "mean": pyarrow.compute.mean(amounts).as_py()}

    run(path, tmp_path / "out", reduce=reduced, values=values, output_format="parquet")
    found, expected = read(tmp_path / "out", "parquet"), folded(rows)
    assert [(r["user"], r["n"]) for r in found] == [(r["user"], r["n"]) for r in expected]
    assert [r["mean"] for r in found] == pytest.approx([r["mean"] for r in expected])


def test_a_reduce_takes_batches_and_answers_batches(cluster, sales, tmp_path):
    path, rows = sales

    def tens(batch):
        import pyarrow

        tens = [str(int(user[5:]) % 10) for user in batch.column("user").to_pylist()]
        return pyarrow.RecordBatch.from_arrays([pyarrow.array(tens), *batch.columns], names=["ten", *batch.schema.names])

    def largest(ten, batch):
        """The three largest, as a table, and an empty one."""
        import pyarrow

        assert batch.schema.names == ["user", "amount"]
        table = pyarrow.Table.from_batches([batch]).sort_by([("amount", "descending"), ("user", "ascending")])
        yield table.slice(0, 3)
        # Other order, other type, and no row.
        yield table.slice(0, 0).select(["amount", "user"])

    run(path, tmp_path / "out", map=tens, key="ten", reduce=largest, values="arrow", output_format="parquet")
    groups = collections.defaultdict(list)
    for one in rows.to_pylist():
        groups[int(one["user"][5:]) % 10].append(one)
    expected = [r for ten in range(10) for r in sorted(groups[ten], key=lambda r: (-r["amount"], r["user"]))[:3]]
    assert read(tmp_path / "out", "parquet") == expected


def test_values_of_other_kinds_become_one_type_across_batches(monkeypatch):
    import marshal

    from holdfast import tables

    monkeypatch.setattr(tables, "BATCH_ROWS", 4)
    for count in (1, 3, 4, 5, 9):
        # The first batch is null, the second whole numbers, the third not.
        values = ([None] * 4 + [1, 2, 3, 4] + [1.5])[:count]
        made = tables.Taking().of("k", map(marshal.dumps, values), 1000)
        assert isinstance(made, pyarrow.Array) and made.to_pylist() == values
        rows = [{"a": value, "b": "x"} for value in values]
        made = tables.Taking().of("k", map(marshal.dumps, rows), 1000)
        assert isinstance(made, pyarrow.RecordBatch) and made.to_pylist() == rows
        made = tables.Taking(pyarrow.schema([("a", pyarrow.float32())])).of("k", map(marshal.dumps, rows), 1000)
        assert made.schema.names == ["a"] and made.schema.types == [pyarrow.float32()]
    with pytest.raises(errors.InvalidError, match="reduce key 'k': its values are more than 1000 bytes"):
        tables.Taking().of("k", map(marshal.dumps, range(201)), 1000)


def test_rows_that_are_not_alike_are_refused(cluster, sales, tmp_path):
    from holdfast.mapreduce import JobError

    path, _ = sales
    out = tmp_path / "out"
    by = {"output_format": "parquet"}

    def refused(kind, match, reduce, **options):
        with pytest.raises(kind, match=match):
            run(path, out, reduce=reduce, **{**by, **options})
        assert not list(tmp_path.glob("*out")) and not list(tmp_path.glob(".out*"))

    refused(JobError, "reduce key 'user .*answered int 5: with `output_format` answer rows", lambda user, _: 5)
    refused(errors.InvalidError, "write rows of keys .*column `user .*, and the part's columns are `user", lambda user, _: {user: 1})
    # The type of the first rows is that of all.
    refused(errors.InvalidError, "write rows of keys 'user .* to 'user .* as parquet: .*output_schema=",
            lambda user, _: {"n": 1 if int(user[5:]) % 2 else "one"})
    one = lambda user, _: {"n": 1, "s": [1]}  # noqa: E731
    refused(errors.InvalidError, "as csv: .*list", one, output_format="csv")
    refused(errors.InvalidError, "column `s`, and the part's columns are `n`", one, output_schema=pyarrow.schema([("n", pyarrow.int8())]))
    # Of parts that are each alike in themselves.
    refused(errors.InvalidError, r"write parts \d+ and \d+: their rows have other columns \(n (null|int64); n .*output_schema=",
            lambda user, _: {"n": None if user < "user 2" else 5})
    refused(errors.InvalidError, "the formats are `csv`, `parquet`", one, output_format="orc")
    refused(errors.InvalidError, "give `output_format`, too", one, output_format=None, output_schema=SCHEMA)
    refused(errors.InvalidError, "values='numpy': give \"arrow\", a pyarrow.DataType", one, values="numpy")


def test_a_part_without_rows_has_a_file_if_somebody_said_its_columns(cluster, sales, tmp_path):
    path, _ = sales
    few = lambda user, amounts: row(user, amounts) if user == "user 7" else None  # noqa: E731
    run(path, tmp_path / "few", reduce=few, output_format="parquet")
    assert len(list((tmp_path / "few").iterdir())) == 1 and len(read(tmp_path / "few", "parquet")) == 1
    for format in ("csv", "parquet"):
        stats = run(path, tmp_path / format, reduce=few, output_format=format, output_schema=SCHEMA)
        assert len(list((tmp_path / format).iterdir())) == stats.partitions
        assert len(read(tmp_path / format, format)) == 1
    none = lambda user, amounts: None  # noqa: E731
    assert run(path, tmp_path / "none", reduce=none, output_format="parquet").output_bytes == 0
    assert not list((tmp_path / "none").iterdir())


def test_a_job_of_rows_goes_on_and_makes_no_part_again(cluster, sales, tmp_path):
    path, rows = sales
    out, left, again = tmp_path / "out", [3], []

    def interrupts(kind, partition, _):
        if kind == "finish":
            left[0] -= 1
            again.append(partition)
            if left[0] == -1:
                raise KeyboardInterrupt

    # One part is left out, and is finished all the same.
    some = lambda user, amounts: row(user, amounts) if user > "user 2" else None  # noqa: E731
    job = {"reduce": some, "output_format": "parquet", "resume": True, "observe": interrupts}
    with pytest.raises(KeyboardInterrupt):
        run(path, out, **job)
    with pytest.raises(errors.InvalidError, match="it was another job .*parquet"):
        run(path, out, **{**job, "output_format": "csv"})
    directory, = (p for p in tmp_path.glob(".out*") if p.is_dir())
    before = {part.name: part.stat().st_ino for part in directory.iterdir()}
    del again[:]
    stats = run(path, out, **job)
    assert stats.resumed_partitions + len(again) == stats.partitions and stats.resumed_partitions >= 2
    assert read(out, "parquet") == [one for one in folded(rows) if one["user"] > "user 2"]
    kept = [name for name, inode in before.items() if (out / name).exists() and (out / name).stat().st_ino == inode]
    assert kept and not list(tmp_path.glob(".out*"))


def test_without_pyarrow_a_sentence_says_what_to_install():
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import holdfast\n"
        "for more in ({'output_format': 'csv'}, {'values': 'arrow'}):\n"
        "  try: holdfast.mapreduce(['x'], 'y', map=str, reduce=sum, **more)\n"
        "  except holdfast.errors.UnsupportedError as e: print(e)"
    )
    said = subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True).stdout
    assert said.count("pip install pyarrow, for a job on every node") == 2
