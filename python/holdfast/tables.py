"""CSV and Parquet as inputs of jobs, in Arrow record batches, and what functions of a job take and answer in
such batches. It needs `pyarrow`, on every node, and imports it where a job has tables.

A split of Parquet is some row groups, one of CSV some lines: a value of CSV may hold no newline, as pyarrow
reads it by default. The types of CSV's columns are those of the front of the first file, or as the job
says by a ``pyarrow.Schema``.
"""

import dataclasses
import itertools
import marshal
from dataclasses import dataclass
from typing import Any

from . import sources
from .errors import InvalidError, UnsupportedError

FORMATS = ("csv", "parquet")
#: Rows of a batch, at most, and bytes of CSV that are parsed at once.
BATCH_ROWS = 64 << 10
BLOCK_BYTES = 4 << 20
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
        made, taken, rows = [], 0, None
        while some := list(itertools.islice(values, BATCH_ROWS)):
            taken += sum(map(len, some))
            if taken > bytes_max:
                raise InvalidError(
                    f"reduce key {key!r:.60}: its values are more than {bytes_max} bytes, too many to be one of "
                    "Arrow's: leave out `values` to take one after the other, combine them, or give more `memory`"
                )
            some = list(map(marshal.loads, some))
            if rows is None:
                rows = type(some[0]) is dict
            if rows:
                made.append(pyarrow.Table.from_pylist(some, schema=self.type))
            else:
                made.append(pyarrow.table({"value": pyarrow.array(some, self.type)}))
        # A part of them may be null, or whole numbers among others.
        whole = pyarrow.concat_tables(made, promote_options="permissive").combine_chunks()
        if rows:
            return whole.to_batches()[0]
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
    """Refuses columns that a file lacks, and says which it has."""
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


@dataclass(frozen=True)
class Tables:
    """How tables are read: which columns (all of them if None), and the types of those of CSV."""

    format: str
    columns: tuple = None
    types: Any = None

    def items(self, split, access):
        """The record batches of a split."""
        with sources.open_split(split, access) as file:
            yield from (self.parquet if self.format == "parquet" else self.csv)(split, file)

    def front(self, split, access):
        """Some rows of its front, for the sample."""
        for batch in self.items(split, access):
            return [batch.slice(0, SAMPLE_ROWS)]
        return []

    def parquet(self, split, file):
        columns = list(self.columns) if self.columns is not None else None
        whole = arrow().parquet.ParquetFile(file)
        groups = list(range(*split.detail))
        yield from whole.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False)

    def csv(self, split, file):
        pieces = sources.chunks(file, split, _LINES)
        head = split.start == 0
        while block := b"".join(blocks(pieces)):
            if head:
                block, head = block[block.find(b"\n") + 1 or len(block) :], False
            if not block.strip():
                continue
            yield from self.parse(split.path, block, split.detail).to_batches(BATCH_ROWS)

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


def blocks(pieces):
    """Pieces up to the size of a block, the last one to a line's end."""
    taken = 0
    for piece in pieces:
        yield piece
        taken += len(piece)
        if taken >= BLOCK_BYTES and piece.endswith(b"\n"):
            return


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
    if format not in FORMATS:
        raise InvalidError(f"run a job of `{format}`: the formats are {listed(FORMATS)}, or None for records")
    pyarrow = arrow()
    types = columns if isinstance(columns, pyarrow.Schema) else None
    names = tuple(types.names if types is not None else columns) if columns is not None else None
    if format == "parquet":
        if types is not None:
            raise InvalidError("read Parquet: its files say the types of columns: give `columns` as names")
        splits = [s for path in inputs for s in row_groups(path, names, split_bytes, access)]
        numbered = [dataclasses.replace(split, number=n) for n, split in enumerate(splits)]
        return numbered, Tables(format, names)
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


def row_groups(path, names, split_bytes, access):
    """Splits of a file of Parquet; what they hold uncompressed is their length."""
    pyarrow = arrow()
    mark = sources.stamp(path, access)
    whole = sources.Split(0, path, 0, mark[0], mark)
    with sources.open_split(whole, access) as file:
        try:
            about = pyarrow.parquet.ParquetFile(file)
        except pyarrow.ArrowInvalid as e:
            raise InvalidError(f"read `{path}` as Parquet: {e}") from None
        check_columns(path, names or (), about.schema_arrow.names)
        sizes = [about.metadata.row_group(n).total_byte_size for n in range(about.metadata.num_row_groups)]
    ends = [0, *itertools.accumulate(sizes)]
    first = 0
    for n in range(1, len(ends)):
        if n == len(sizes) or ends[n] - ends[first] >= split_bytes:
            yield dataclasses.replace(whole, start=ends[first], end=ends[n], detail=(first, n))
            first = n
