"""CSV, Parquet and lines of text as inputs of jobs, in Arrow record batches, and what functions of a job take and
answer in such batches. It needs `pyarrow`, on every node, and imports it where a job has tables.

A split of Parquet is some row groups, one of CSV or text some lines: a value of CSV may hold no newline, as pyarrow
reads it by default. Lines are a table of one column, `line`. The types of CSV's columns are those of the front of the first file, or as the job
says by a ``pyarrow.Schema``.
"""

import contextlib
import dataclasses
import itertools
import marshal
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _holdfast, sources
from .errors import HoldfastError, InvalidError, UnsupportedError

#: What is written, and what is read.
FORMATS = ("csv", "parquet")
INPUT_FORMATS = ("csv", "lines", "parquet")
#: The column of lines.
LINE = "line"
#: Rows of a batch, at most; bytes of lines that are parsed at once, and of one line.
BATCH_ROWS = 64 << 10
BLOCK_BYTES = 4 << 20
LINE_BYTES_MAX = 64 << 20
#: Rows of a split's front that are mapped for the sample.
SAMPLE_ROWS = 4096
_LINES = sources.Framing()


def arrow(doing="run a job of tables"):
    """pyarrow with the readers of both formats."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as e:
        raise UnsupportedError(
            f"{doing}: the package `pyarrow` is not installed: pip install pyarrow, for a job on every node"
        ) from e
    return pyarrow


def is_batch(answer):
    """Whether a function of a job answered rows of Arrow."""
    return type(answer).__module__.startswith("pyarrow") and hasattr(answer, "column_names")


def table_of(answer):
    """A batch or table, as a table."""
    pyarrow = arrow()
    return answer if isinstance(answer, pyarrow.Table) else pyarrow.Table.from_batches([answer])


@dataclass(frozen=True)
class Taking:
    """How the values of a key are given to a `reduce` that takes them at once: of this type (a
    ``pyarrow.DataType``, or a ``pyarrow.Schema`` of dicts), or of the one that they have."""

    type: Any = None

    def of(self, key, values, bytes_max):
        """All of them, from what was sent."""
        pyarrow = arrow()
        made, taken, count, rows = [], 0, 0, None
        while some := list(itertools.islice(values, BATCH_ROWS)):
            taken, count = taken + sum(map(len, some)), count + len(some)
            if taken > bytes_max:
                raise InvalidError(
                    f"reduce key {key!r:.60}: its values are more than {bytes_max} bytes, too many to be one of "
                    "Arrow's: leave out `values` to take one after the other, combine them, or give more `memory`"
                )
            some = list(map(marshal.loads, some))
            if rows is None:
                rows = isinstance(self.type, pyarrow.Schema) or (self.type is None and type(some[0]) is dict)
            if rows:
                for odd in (value for value in some if type(value) is not dict):
                    raise InvalidError(
                        f"reduce key {key!r:.60}: one of its values is a dict, or should be, and another one is "
                        f"{odd!r:.60}: answer values that are alike"
                    )
                made.append(pyarrow.Table.from_pylist(some, schema=self.type))
            else:
                made.append(pyarrow.table({"value": pyarrow.array(some, self.type)}))
        # A part of them may be null, or whole numbers among others.
        whole = pyarrow.concat_tables(made, promote_options="permissive").combine_chunks()
        if rows:
            batches = whole.to_batches()
            # Of rows without columns there is none, and their number all the same.
            return batches[0] if batches else pyarrow.RecordBatch.from_struct_array(pyarrow.array([{}] * count, pyarrow.struct([])))
        column = whole.column(0)
        return column.chunk(0) if column.num_chunks == 1 else column


def taken_as(values):
    """What a job says of the values that its `reduce` takes; None takes them one by one."""
    if values is None:
        return None
    pyarrow = arrow()
    if isinstance(values, (pyarrow.DataType, pyarrow.Schema)):
        return Taking(values)
    if values != "arrow":
        raise InvalidError(
            f"run a job with values={values!r:.60}: give \"arrow\", a pyarrow.DataType, or a pyarrow.Schema where they are dicts"
        )
    return Taking()


def listed(names):
    return ", ".join(f"`{name}`" for name in names) or "none"


def check_columns(path, wanted, there):
    """Refuses columns that a file lacks, or of which it has several, and says which it has; all of them are wanted if
    none is named."""
    twice = sorted({name for name in wanted or there if list(there).count(name) > 1})
    if twice:
        raise InvalidError(f"read `{path}`: it has more than one column {listed(twice)}: its columns are {listed(there)}: name them apart")
    missing = [name for name in wanted if name not in there]
    if missing:
        raise InvalidError(f"read `{path}`: it has no column {listed(missing)}: its columns are {listed(there)}")


def rows(batch, key):
    """Pairs of the column `key` and the others: one column is its value, several are a dict."""
    names = batch.column_names
    if key is None:
        raise TypeError("it answered a batch, and nothing says which column is the key: give the job `key=`")
    if key not in names:
        raise TypeError(f"it answered a batch without the key's column `{key}`: its columns are {listed(names)}")
    keys = batch.column(key).to_pylist()
    others = [name for name in names if name != key]
    if len(others) == 1:
        return zip(keys, batch.column(others[0]).to_pylist())
    return zip(keys, batch.select(others).to_pylist())


class Columns(NamedTuple):
    """Keys and numbers of some rows as the kernels take them: the kind of the keys, where each begins, their bytes;
    the numbers, and whether they are floats."""

    kind: str
    offsets: Any
    keys: Any
    numbers: Any
    are_floats: bool


def columns_of(batch, key):
    """The column `key` and the other one as :class:`Columns`; None where they are not text, bytes or whole numbers
    beside numbers, without nulls: then rows are taken one by one (:func:`rows`), with the same result."""
    pyarrow, names = arrow(), batch.column_names
    if key not in names or len(names) != 2 or not batch.num_rows:
        return None
    keys, numbers = whole(batch.column(key)), whole(batch.column(next(n for n in names if n != key)))
    if keys.null_count or numbers.null_count:
        return None
    kinds = pyarrow.types
    if kinds.is_string(keys.type) or kinds.is_large_string(keys.type):
        kind, keys = "s", keys.cast(pyarrow.large_string())
    elif kinds.is_binary(keys.type) or kinds.is_large_binary(keys.type):
        kind, keys = "b", keys.cast(pyarrow.large_binary())
    elif is_whole(keys.type):
        kind, keys = "a", keys.cast(pyarrow.int64())
    else:
        return None
    are_floats = kinds.is_floating(numbers.type)
    if not are_floats and not is_whole(numbers.type):
        return None
    numbers = fixed(numbers.cast(pyarrow.float64() if are_floats else pyarrow.int64()))
    if kind == "a":
        return Columns(kind, b"", fixed(keys), numbers, are_floats)
    return Columns(kind, *texts_of(keys), numbers, are_floats)


def count_words(column, separator=" "):
    """The words of a column of text or bytes, and how often each is there: a ``pyarrow.RecordBatch`` of `word` (of the
    column's type) and `n`, in no order. Words are what is between separators, of one character of ASCII, also where
    that is nothing, as ``str.split(separator)`` has them; a row that is null has none. One kernel does what
    ``split_pattern`` and ``value_counts`` of pyarrow do together."""
    pyarrow = arrow("count words")
    kinds, texts = pyarrow.types, whole(column).drop_null()
    if kinds.is_string(texts.type) or kinds.is_large_string(texts.type):
        wide = pyarrow.large_string()
    elif kinds.is_binary(texts.type) or kinds.is_large_binary(texts.type):
        wide = pyarrow.large_binary()
    else:
        raise InvalidError(f"count the words of a column of {texts.type}: give text or bytes")
    if len(separator) != 1 or not separator.isascii():
        raise InvalidError(f"count words between {separator!r:.60}: give one character of ASCII, or cut by `split_pattern` of pyarrow.compute")
    offsets, words, counts = map(pyarrow.py_buffer, _holdfast.count_words(*texts_of(texts.cast(wide)), ord(separator)))
    found = counts.size // 8
    words = pyarrow.Array.from_buffers(wide, found, [None, offsets, words]).cast(texts.type)
    return pyarrow.record_batch({"word": words, "n": pyarrow.Array.from_buffers(pyarrow.int64(), found, [None, counts])})


def is_whole(type):
    """Whether all of it are whole numbers of 64 bits with a sign."""
    kinds = arrow().types
    return kinds.is_integer(type) and not kinds.is_uint64(type)


def whole(column):
    """A column as one array, of its values where it is of numbers of them."""
    pyarrow = arrow()
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column


def texts_of(array):
    """Where each of an array's texts or bytes of the large kind begins, and their bytes."""
    _, offsets, data = array.buffers()
    first = array.offset * 8
    # An array of none may lack both.
    return memoryview(offsets)[first : first + 8 * len(array) + 8] if offsets else bytes(8), data or b""


def fixed(array):
    """The bytes of an array of eight bytes each."""
    return memoryview(array.buffers()[1])[array.offset * 8 : (array.offset + len(array)) * 8]


@dataclass(frozen=True)
class Tables:
    """How tables are read: which columns (all of them if None), and the types of those of CSV and of lines."""

    format: str
    columns: tuple = None
    types: Any = None

    def items(self, split, access):
        """The record batches of a split."""
        with sources.open_split(split, access) as file:
            yield from getattr(self, self.format)(split, file)

    def front(self, split, access):
        """Some rows of its front, for the sample."""
        for batch in self.items(split, access):
            return [batch.slice(0, SAMPLE_ROWS)]
        return []

    def parquet(self, split, file):
        columns = list(self.columns) if self.columns is not None else None
        groups = list(range(*split.detail))
        with reading_parquet(split.path):
            whole = arrow().parquet.ParquetFile(file)
            yield from whole.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False)

    def csv(self, split, file):
        head = split.start == 0
        for block in blocks(split.path, sources.chunks(file, split, _LINES)):
            if head:
                block, head = block[block.find(b"\n") + 1 or len(block) :], False
            if not block.strip():
                continue
            yield from self.parse(split.path, block, split.detail).to_batches(BATCH_ROWS)

    def lines(self, split, file):
        pyarrow = arrow()
        for block in blocks(split.path, sources.chunks(file, split, _LINES)):
            offsets, data = map(pyarrow.py_buffer, _holdfast.cut_lines(block))
            array = pyarrow.Array.from_buffers(pyarrow.binary(), offsets.size // 4 - 1, [None, offsets, data])
            try:
                array = array.cast(self.types.field(LINE).type)
            except pyarrow.ArrowInvalid:
                raise InvalidError(
                    f"read `{split.path}` as text: a line behind byte {split.start} is not UTF-8: take lines as bytes, "
                    f'columns=pyarrow.schema([("{LINE}", pyarrow.binary())])'
                ) from None
            yield from pyarrow.table({LINE: array}).to_batches(BATCH_ROWS)

    def parse(self, path, block, header):
        pyarrow = arrow()
        types = {field.name: field.type for field in self.types or ()}
        reading = {"column_names": list(header), "use_threads": False, "block_size": max(1 << 20, len(block))}
        converting = {"column_types": types}
        if self.columns is not None:
            converting["include_columns"] = list(self.columns)
        try:
            return pyarrow.csv.read_csv(
                pyarrow.BufferReader(block),
                read_options=pyarrow.csv.ReadOptions(**reading),
                convert_options=pyarrow.csv.ConvertOptions(**converting),
            )
        except pyarrow.ArrowInvalid as e:
            raise InvalidError(
                f"read `{path}` as CSV: {e}: give the columns' types, columns=pyarrow.schema(...), or mend the file"
            ) from None


def blocks(path, pieces):
    """Whole lines, as many as a block holds and one more at least; the last one may lack its end."""
    taken, length = [], 0
    for piece in pieces:
        taken.append(piece)
        length += len(piece)
        if length < BLOCK_BYTES:
            continue
        cut = piece.rfind(b"\n") + 1
        if cut:
            taken[-1], rest = piece[:cut], piece[cut:]
            yield b"".join(taken)
            taken, length = [rest], len(rest)
        elif length > LINE_BYTES_MAX + BLOCK_BYTES:
            raise InvalidError(f"read `{path}`: a line of more than {LINE_BYTES_MAX} bytes: give the right format, or cut it")
    if length:
        yield b"".join(taken)


def header_of(path, front):
    """The names of the columns, by the first line."""
    pyarrow = arrow()
    line = front[: front.find(b"\n") + 1 or len(front)]
    try:
        return tuple(pyarrow.csv.read_csv(pyarrow.BufferReader(line)).column_names)
    except pyarrow.ArrowInvalid as e:
        raise InvalidError(f"read `{path}` as CSV: its first line names no columns: {e}") from None


def splits_of(inputs, format, columns, split_bytes, access=sources.places.Access()):
    """The splits of tables, and how they are read. `columns` are names or a ``pyarrow.Schema``."""
    if format not in INPUT_FORMATS:
        raise InvalidError(f"run a job of `{format}`: the formats are {listed(INPUT_FORMATS)}, or None for records")
    pyarrow = arrow()
    types = columns if isinstance(columns, pyarrow.Schema) else None
    columns = (columns,) if isinstance(columns, str) else columns
    names = tuple(types.names if types is not None else columns) if columns is not None else None
    if format == "parquet":
        if types is not None:
            raise InvalidError("read Parquet: its files say the types of columns: give `columns` as names")
        files = [file for path in inputs for file in sources.places.files_of(path, access)]
        splits = [s for path in files for s in row_groups(path, names, split_bytes, access)]
        numbered = [dataclasses.replace(split, number=n) for n, split in enumerate(splits)]
        return numbered, Tables(format, names)
    if format == "lines":
        types = types or pyarrow.schema([(LINE, pyarrow.string())])
        text = [pyarrow.string(), pyarrow.large_string(), pyarrow.binary(), pyarrow.large_binary()]
        if types.names != [LINE] or types.field(LINE).type not in text or names not in (None, (LINE,)):
            raise InvalidError(f"read lines: they have one column, `{LINE}`, of text or of bytes: leave out `columns`")
        return sources.splits_of(inputs, _LINES, split_bytes, access), Tables(format, (LINE,), types)
    splits, headers = [], {}
    for split in sources.splits_of(inputs, _LINES, split_bytes, access):
        if split.path not in headers:
            front = sources.front(split, _LINES, access)
            headers[split.path] = header = header_of(split.path, front)
            check_columns(split.path, names or (), header)
            if types is None:
                types = typed(split.path, front, header)
        splits.append(dataclasses.replace(split, detail=headers[split.path]))
    if types is not None and names is not None:
        types = pyarrow.schema([types.field(name) for name in names])
    return splits, Tables(format, names, types)


def typed(path, front, header):
    """The types of CSV's columns by some rows; what is empty there is text."""
    pyarrow = arrow()
    rows = front[front.find(b"\n") + 1 or len(front) :]
    if not rows.strip():
        return None
    schema = Tables("csv").parse(path, rows, header).schema
    text = pyarrow.string()
    return pyarrow.schema([f.with_type(text) if pyarrow.types.is_null(f.type) else f for f in schema])


@contextlib.contextmanager
def reading_parquet(path):
    """Says of which file Parquet's reader speaks."""
    try:
        yield
    except (arrow().ArrowException, OSError) as e:
        # The system's errors, and those of places, say it themselves.
        if isinstance(e, HoldfastError) or getattr(e, "errno", None):
            raise
        raise InvalidError(f"read `{path}` as Parquet: {e}: mend the file, or leave it out") from None


def row_groups(path, names, split_bytes, access):
    """Splits of a file of Parquet; what they hold uncompressed is their length."""
    pyarrow = arrow()
    mark = sources.stamp(path, access)
    whole = sources.Split(0, path, 0, mark[0], mark)
    with sources.open_split(whole, access) as file:
        with reading_parquet(path):
            about = pyarrow.parquet.ParquetFile(file)
        check_columns(path, names or (), about.schema_arrow.names)
        sizes = [about.metadata.row_group(n).total_byte_size for n in range(about.metadata.num_row_groups)]
    ends = [0, *itertools.accumulate(sizes)]
    first = 0
    for n in range(1, len(ends)):
        if n == len(sizes) or ends[n] - ends[first] >= split_bytes:
            yield dataclasses.replace(whole, start=ends[first], end=ends[n], detail=(first, n))
            first = n
