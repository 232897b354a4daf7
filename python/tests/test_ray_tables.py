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


@pytest.mark.parametrize("combine", ["sum", None])
def test_columns_of_keys_and_numbers_are_summed_by_kernels(cluster, files, sales, tmp_path, combine):
    run(files, tmp_path / "out", columns=["user", "amount"], key="user", combine=combine, reduce="sum")
    assert table(tmp_path / "out") == folded(sales, lambda r: r["user"], lambda r: r["amount"])


def counted(batch):
    words = pyarrow.compute.list_flatten(pyarrow.compute.split_pattern(batch["line"], " "))
    found = words.value_counts()
    return pyarrow.table({"word": found.field("values"), "n": found.field("counts")})


def counted_here(batch):
    # A function that names a module of jobs, which can be called and so is of a class of its own, once could not be sent.
    return holdfast.mapreduce.count_words(batch["line"])


@pytest.mark.parametrize("words", [counted, counted_here])
@pytest.mark.parametrize("combine", ["sum", "max", None, total])
def test_lines_are_a_table_and_words_are_counted_in_columns(cluster, tmp_path, combine, words):
    draw = random.Random(3)
    there = ["", "to", "be", "\u00e9t\u00e9", "or\tnot", "\r"]
    lines = [" ".join(draw.choices(there, k=draw.randrange(9))) for _ in range(20_000)]
    (tmp_path / "in").write_bytes("\n".join(lines).encode())
    options = {"format": "lines", "map": words, "key": "word", "combine": combine, "reduce": "max" if combine == "max" else "sum"}
    job = {"ray": "auto", "memory": MEMORY, "split_bytes": 50_000, "temp": [str(tmp_path / "temp")], **options}
    stats = holdfast.mapreduce([tmp_path / "in"], tmp_path / "out", **job)
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir()).decode()
    rows = [line.rpartition("\t") for line in written.split("\n")[:-1]]
    found = {word: int(count) for word, _, count in rows}
    assert len(found) == len(rows)
    every = collections.Counter(word for line in lines for word in line.split(" "))
    if combine == "max":
        # The most of a split, of which there are several.
        assert found.keys() == every.keys() and all(0 < found[word] < every[word] for word in ("to", "be"))
    else:
        assert found == every
    assert stats.splits > 3


def test_a_column_that_is_missing_is_named_beside_those_that_are_there(cluster, files, tmp_path):
    with pytest.raises(errors.InvalidError, match="no column `price`: its columns are `user`, `shop`, `amount`"):
        run(files, tmp_path / "out", columns=["user", "price"], key="user")
    with pytest.raises(errors.HoldfastError, match="key's column `user`: its columns are `shop`, `amount`"):
        run(files, tmp_path / "out", map=lambda batch: batch.select(["shop", "amount"]), key="user")
    with pytest.raises(errors.HoldfastError, match="which column is the key"):
        run(files, tmp_path / "out")
    with pytest.raises(errors.InvalidError, match="run a job of `orc`: the formats are `csv`, `lines`, `parquet`"):
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


def test_lines_cut_anywhere_in_blocks_of_any_length_are_those_of_the_file(tmp_path, monkeypatch):
    from holdfast import sources, tables

    draw = random.Random(4)
    lines = ["x" * draw.choice([0, 0, 1, 7, 40]) + chr(0xE9) for _ in range(300)]
    bodies = ["\n".join(lines) + "\n", "\n".join(lines), "\n", "\n\n", "one", "\n\none"]
    # Empty lines, also at the end, where only what has an end or a byte is one.
    for n, body in enumerate(bodies):
        path = tmp_path / f"{n}"
        path.write_text(body)
        expected = body.split("\n")[: None if body[-1:] != "\n" else -1]
        for split_bytes in (1, 13, 64, 100_000):
            for block, piece in ((1, 1), (9, 4), (64, 64), (1 << 20, 1 << 20)):
                monkeypatch.setattr(tables, "BLOCK_BYTES", block)
                monkeypatch.setattr(sources, "READ_BYTES", piece)
                splits, reading = tables.splits_of([str(path)], "lines", None, split_bytes)
                batches = [batch for split in splits for batch in reading.items(split, None)]
                assert [line for batch in batches for line in batch["line"].to_pylist()] == expected, (n, split_bytes, block)


def test_a_block_of_lines_is_no_longer_than_it_may(tmp_path):
    """A split was parsed at once: a block ended only where what was read happened to end with a line."""
    from holdfast import tables

    path = tmp_path / "in.csv"
    path.write_text("n\n" + "12345\n" * 3_000_000)
    for format in ("csv", "lines"):
        splits, reading = tables.splits_of([str(path)], format, None, 1 << 30)
        held = [batch.num_rows for split in splits for batch in reading.items(split, None)]
        assert sum(held) == 3_000_000 + (format == "lines") and len(held) >= 3_000_000 / tables.BATCH_ROWS
    with open(path, "rb") as file:
        pieces = iter(lambda: file.read(1 << 20), b"")
        blocks = [len(block) for block in tables.blocks(path, pieces)]
    assert len(blocks) > 3 and max(blocks) <= tables.BLOCK_BYTES + (1 << 20)
    with pytest.raises(errors.InvalidError, match="a line of more than 67108864 bytes"):
        list(tables.blocks("in", iter([bytes(1 << 20)] * 80)))


def test_lines_that_are_no_text_are_taken_as_bytes_if_said(tmp_path):
    from holdfast import tables

    (tmp_path / "in").write_bytes(b"good\n\xff\n")
    splits, reading = tables.splits_of([str(tmp_path / "in")], "lines", None, 100)
    with pytest.raises(errors.InvalidError, match="not UTF-8: take lines as bytes"):
        list(reading.items(splits[0], None))
    said = pyarrow.schema([("line", pyarrow.binary())])
    splits, reading = tables.splits_of([str(tmp_path / "in")], "lines", said, 100)
    assert next(reading.items(splits[0], None))["line"].to_pylist() == [b"good", b"\xff"]
    for wrong in (["text"], pyarrow.schema([("line", pyarrow.int64())])):
        with pytest.raises(errors.InvalidError, match="one column, `line`"):
            tables.splits_of([str(tmp_path / "in")], "lines", wrong, 100)


@pytest.fixture
def sent(tmp_path):
    """What arrives of a batch at a receiver, by what the mapper or a fold before it is given."""
    from holdfast import _holdfast, mapreduce

    def send(push, fold=None):
        token, rules = _holdfast.draw_token(), mapreduce._PAIRS.rules()
        receiver = _holdfast.Receiver(str(tmp_path), address="127.0.0.1", token=token, partitions=[0], connections_max=2)
        options = {"token": token, "split": 0, "attempt": 1, "memory": 1 << 20}
        mapper = _holdfast.Mapper(rules, [], [(receiver.address, [0])], **options)
        folding = _holdfast.Folding(mapper, fold, 2000) if fold else None
        push(folding or mapper)
        if folding:
            folding.finish()
        mapper.finish()
        pairs, sorted_ = [], receiver.sorted(rules, 0, 64 << 20, 1)
        if fold:
            while (some := sorted_.next_folded(fold)) is not None:
                pairs += [(mapreduce.key_of(key), number) for key, number in some]
        else:
            while (some := sorted_.next_pairs()) is not None:
                pairs += [(mapreduce.key_of(key), mapreduce.marshal.loads(value)) for key, value in some]
        receiver.close()
        return pairs

    return send


def columns_of_every_kind():
    text = ["", "a", "\x00b", "\u00e9", "a", "long" * 50]
    keys = [
        pyarrow.array(text),
        pyarrow.array(text, pyarrow.large_string()),
        pyarrow.array([word.encode() for word in text]),
        pyarrow.array(text).dictionary_encode(),
        pyarrow.array([5, -5, 0, 5, (1 << 63) - 1, -(1 << 63)]),
        pyarrow.array([1, 2, 3, 2, 1, 255], pyarrow.uint8()),
        pyarrow.array(["never"] + text).slice(1),
        pyarrow.chunked_array([text[:2], [], text[2:]]),
    ]
    numbers = [
        pyarrow.array([1, -1, 1 << 40, -(1 << 60), 0, 1 << 31]),
        pyarrow.array([1, 2, 3, 4, 5, 250], pyarrow.uint8()),
        pyarrow.array([0.5, -1.0, 1e300, 0.0, 7.0, 1.0]),
        pyarrow.array([0.5, -1.0, 1e30, 0.0, 7.0, 1.0], pyarrow.float32()),
        pyarrow.array([9, 1, -1, 1 << 40, -(1 << 60), 0, 1 << 31]).slice(1),
    ]
    return [pyarrow.table({"k": key, "n": number}) for key in keys for number in numbers]


def test_columns_are_the_pairs_that_their_rows_are(sent):
    from holdfast import mapreduce, tables

    for batch in columns_of_every_kind():
        columns = tables.columns_of(batch, "k")
        assert columns is not None, batch.schema
        rows = list(tables.rows(batch, "k"))
        told = [(mapreduce.key_bytes(key), mapreduce.value_bytes(value)) for key, value in rows]
        expected = sent(lambda to: to.push_pairs(told))
        assert sorted(expected, key=repr) == sorted(rows, key=repr)
        assert sent(lambda to: to.push_columns(columns)) == expected
        for name, fold in (("sum", sum), ("min", min), ("max", max)):
            values = collections.defaultdict(list)
            for key, value in rows * 3:
                values[key].append(value)
            folded = sent(lambda to: [to.push_columns(columns) for _ in range(3)], name)
            assert dict(folded) == {key: fold(some) for key, some in values.items()} and len(folded) == len(values)
            assert sent(lambda to: [to.push_pairs(told) for _ in range(3)], name) == folded


def test_words_are_those_of_pyarrows_split():
    text = ["", " ", "a b", None, "a  b ", "\u00e9t\u00e9 \u00e9t\u00e9", "aab", "one\0two", "baaaab"]
    for array in (
        pyarrow.array(text),
        pyarrow.array(text, pyarrow.large_string()),
        pyarrow.array([word and word.encode() for word in text]),
        pyarrow.array([word and word.encode() for word in text], pyarrow.large_binary()),
        pyarrow.array(text).dictionary_encode(),
        pyarrow.array(["never"] + text + ["never"]).slice(1, len(text)),
        pyarrow.chunked_array([text[:2], [], text[2:]]),
        pyarrow.array([], pyarrow.string()),
        pyarrow.array([None], pyarrow.string()),
    ):
        type_ = array.type.value_type if pyarrow.types.is_dictionary(array.type) else array.type
        for separator in (" ", "a", "\0"):
            found = holdfast.mapreduce.count_words(array, separator)
            assert found.schema == pyarrow.schema([("word", type_), ("n", pyarrow.int64())])
            found.validate(full=True)
            plain = [word.encode() if isinstance(word, str) else word for word in array.to_pylist() if word is not None]
            told = collections.Counter(word for line in plain for word in line.split(separator.encode()))
            words = [word.encode() if isinstance(word, str) else word for word in found["word"].to_pylist()]
            assert len(words) == len(told) and dict(zip(words, found["n"].to_pylist())) == told
    with pytest.raises(errors.InvalidError, match="a column of int64: give text or bytes"):
        holdfast.mapreduce.count_words(pyarrow.array([1]))
    for separator in ("", "  ", "\u00e9"):
        with pytest.raises(errors.InvalidError, match="give one character of ASCII"):
            holdfast.mapreduce.count_words(pyarrow.array(["a"]), separator)


def test_columns_that_kernels_do_not_take_are_taken_as_rows():
    from holdfast import tables

    good = pyarrow.array([1, 2])
    for keys, numbers in (
        (pyarrow.array(["a", None]), good),
        (good, pyarrow.array([None, 1])),
        (pyarrow.array([1.5, 2.5]), good),
        (pyarrow.array([True, False]), good),
        (good, pyarrow.array([True, False])),
        (good, pyarrow.array(["1", "2"])),
        (good, pyarrow.array([1 << 63, 1], pyarrow.uint64())),
        (pyarrow.array([1 << 63, 1], pyarrow.uint64()), good),
    ):
        assert tables.columns_of(pyarrow.table({"k": keys, "n": numbers}), "k") is None
    assert tables.columns_of(pyarrow.table({"k": good, "n": good, "m": good}), "k") is None
    assert tables.columns_of(pyarrow.table({"k": good[:0], "n": good[:0]}), "k") is None


def test_what_cannot_be_folded_is_said(cluster, files, sent, tmp_path):
    most = [("a", 1 << 126), ("a", 1 << 126)]
    with pytest.raises(errors.InvalidError, match="key `a`: the sum needs more than 128 bits"):
        run(files, tmp_path / "out", map=lambda batch: most, combine="sum", reduce="sum")
    with pytest.raises(errors.InvalidError, match="key `plain`: one is no number of 128 bits"):
        run(files, tmp_path / "out", map=lambda batch: [("plain", "text")], combine="sum", reduce="sum")
    with pytest.raises(errors.InvalidError, match="combine='mean': give a function, or one of 'sum', 'min', 'max'"):
        run(files, tmp_path / "out", combine="mean", reduce="sum")
    with pytest.raises(errors.InvalidError, match="reduce='sum': it takes numbers and writes lines"):
        run(files, tmp_path / "out", reduce="sum", output_format="csv")
    assert not (tmp_path / "out").exists()


def test_a_sum_does_not_depend_on_the_order_of_its_numbers(sent):
    """Of numbers whose sum had 64 bits, two that came together could need more: then the job ended, or not."""
    from holdfast import mapreduce, tables

    numbers = [1 << 62, 1 << 62, 1 << 62, -(1 << 62)]
    for some in (numbers, numbers[::-1], numbers[:3]):
        batch = pyarrow.table({"k": ["a"] * len(some), "n": some})
        assert sent(lambda to: to.push_columns(tables.columns_of(batch, "k")), "sum") == [("a", sum(some))]
        told = [(b"sa", mapreduce.value_bytes(number)) for number in some]
        assert sent(lambda to: to.push_pairs(told), "sum") == [("a", sum(some))]


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
