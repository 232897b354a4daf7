"""How what a `reduce` answers is written, a part a partition: as lines of text, as CSV or as Parquet. A part
is durable once its `with` block is over, and none if that raises. Used by :mod:`holdfast.mapreduce`.

The columns of CSV and Parquet are those that the job says (`schema`), or else those of a part's first rows:
then the job sees to it that all parts have the same. A part without a row has no file where nobody said the
columns, as no reader could tell them.
"""

import contextlib
import os
from dataclasses import dataclass
from typing import Any

from . import places, sources, tables
from .errors import HoldfastError, InvalidError

#: Rows that are turned into Arrow at once: a row group of Parquet has them.
ROWS = 64 << 10
_LINE = (str, bytes, int, float)


def type_name(value):
    """A type as a user would import it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def field_of(value):
    """A field of a line, in bytes."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, _LINE):
        hint = ": a job with `output_format` takes rows" if isinstance(value, dict) or tables.is_batch(value) else ""
        raise TypeError(
            f"it answered {type_name(value)} {value!r:.60}{hint}: answer text, bytes, numbers, tuples of those, "
            "or a list or generator of them"
        )
    return str(value).encode()


def line_of(key, value):
    """The line of a value that a reduce answered: of text and bytes these, and of all else its key, too."""
    if isinstance(value, (bytes, str)):
        return field_of(value) + b"\n"
    fields = value if isinstance(value, tuple) else (value,)
    return b"\t".join(map(field_of, (key, *fields))) + b"\n"


class Part:
    """The file of a part, which is begun by its first bytes, or by `begin`."""

    def __init__(self, path, access):
        self.path, self.access = path, access
        self.remote = places.is_remote(path)
        self.file = None
        #: Bytes, or None where there is no file.
        self.written = None

    def begin(self):
        try:
            if self.remote:
                self.file = places.open_file(self.path, "wb", self.access)
            else:
                self.file = open(self.path, "wb", 1 << 20)
        except FileNotFoundError as e:
            raise sources.unseen(self.path) from e
        except OSError as e:
            raise sources.unwritten(self.path, e) from e
        self.written = 0

    def close(self):
        self.written = self.file.tell()
        try:
            if not self.remote:
                self.file.flush()
                os.fsync(self.file.fileno())
            self.file.close()
        except OSError as e:
            raise sources.unwritten(self.path, e) from e

    def give_up(self):
        """Its bytes are no part; a file that is left is written anew, or goes with the output."""
        if self.file is not None:
            # Where there is no room, there is none for what is buffered either.
            with contextlib.suppress(OSError, HoldfastError):
                self.file.abandon() if self.remote else self.file.close()


class LinesPart(Part):
    schema = None

    def __enter__(self):
        self.begin()
        return self

    def write(self, key, answer):
        self.file.write(line_of(key, answer))

    def __exit__(self, kind, *_):
        self.close() if kind is None else self.give_up()


@dataclass(frozen=True)
class Lines:
    """Lines of text."""

    suffix = ""

    def part(self, path, access):
        return LinesPart(path, access)


class RowsPart(Part):
    def __init__(self, path, access, format, schema):
        super().__init__(path, access)
        self.format, self.schema = format, schema
        self.rows, self.writer = [], None
        # For sentences: the rows that wait are of these.
        self.first_key = self.last_key = None

    def __enter__(self):
        if self.schema is not None:
            self.start(self.schema)
        return self

    def write(self, key, answer):
        if tables.is_batch(answer):
            self.flush()
            self.first_key = self.last_key = key
            self.write_table(tables.table_of(answer))
        elif isinstance(answer, dict):
            if not self.rows:
                self.first_key = key
            self.last_key = key
            self.rows.append(answer)
            if len(self.rows) >= ROWS:
                self.flush()
        else:
            raise TypeError(
                f"it answered {type_name(answer)} {answer!r:.60}: with `output_format` answer rows: a dict of columns "
                "and values, a pyarrow.RecordBatch or Table, or a list or generator of those"
            )

    def flush(self):
        if not self.rows:
            return
        pyarrow = tables.arrow()
        names = self.schema.names if self.schema is not None else list(self.rows[0])
        # Arrow takes the first row's names, and would leave out what the others have besides.
        known = set(names)
        for row in self.rows:
            if not row.keys() <= known:
                self.refuse(f"a row has the column {tables.listed(sorted(map(str, row.keys() - known)))}, and the "
                            f"part's columns are {tables.listed(names)}")
        try:
            table = pyarrow.Table.from_pylist(self.rows, schema=self.schema)
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError) as e:
            self.refuse(e)
        self.rows = []
        self.write_table(table)

    def write_table(self, table):
        pyarrow = tables.arrow()
        if self.schema is None:
            self.start(table.schema.remove_metadata())
        try:
            if set(table.column_names) != set(self.schema.names):
                self.refuse(f"it has the columns {tables.listed(table.column_names)}, and the part's are "
                            f"{tables.listed(self.schema.names)}")
            self.writer.write_table(table.select(self.schema.names).cast(self.schema))
        except (pyarrow.ArrowException, NotImplementedError) as e:
            self.refuse(e)
        except OSError as e:
            raise sources.unwritten(self.path, e) from e

    def start(self, schema):
        pyarrow = tables.arrow()
        self.schema = schema
        self.begin()
        try:
            if self.format == "parquet":
                self.writer = pyarrow.parquet.ParquetWriter(self.file, schema)
            else:
                self.writer = pyarrow.csv.CSVWriter(self.file, schema)
        except (pyarrow.ArrowException, NotImplementedError) as e:
            self.refuse(e)
        except OSError as e:
            raise sources.unwritten(self.path, e) from e

    def refuse(self, why):
        keys = f"key {self.first_key!r:.60}"
        if self.last_key != self.first_key:
            keys = f"keys {self.first_key!r:.60} to {self.last_key!r:.60}"
        raise InvalidError(
            f"write rows of {keys} as {self.format}: {why}: say the columns, output_schema=pyarrow.schema(...), or "
            "answer rows that are alike"
        ) from None

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.flush()
                if self.writer is not None:
                    self.writer.close()
                    self.close()
                return
        except OSError as e:
            self.drop()
            raise sources.unwritten(self.path, e) from e
        except BaseException:
            self.drop()
            raise
        self.drop()

    def drop(self):
        if self.writer is not None:
            # It writes its end, which nobody reads.
            with contextlib.suppress(Exception):
                self.writer.close()
        self.give_up()


@dataclass(frozen=True)
class Rows:
    """Rows of CSV or Parquet."""

    format: str
    schema: Any = None

    @property
    def suffix(self):
        return f".{self.format}"

    def part(self, path, access):
        return RowsPart(path, access, self.format, self.schema)


def written_as(output_format, output_schema):
    """How a job's parts are written, by what its call says."""
    if output_format is None:
        if output_schema is not None:
            raise InvalidError("run a job with `output_schema`: give `output_format`, too")
        return Lines()
    if output_format not in tables.FORMATS:
        raise InvalidError(
            f"write a job's output as `{output_format}`: the formats are {tables.listed(tables.FORMATS)}, or None for lines"
        )
    pyarrow = tables.arrow()
    if output_schema is not None and not isinstance(output_schema, pyarrow.Schema):
        raise InvalidError("run a job with `output_schema`: give a pyarrow.schema of names and types")
    return Rows(output_format, output_schema)


class Alike:
    """Whether all parts have the same columns: a reader takes them for one table."""

    def __init__(self):
        self.columns, self.of = None, None

    def see(self, partition, columns):
        if columns is None:
            return
        if self.columns is None:
            self.columns, self.of = columns, partition
        elif columns != self.columns:
            raise InvalidError(
                f"write parts {self.of} and {partition}: their rows have other columns ({self.columns}; {columns}): "
                "say the columns, output_schema=pyarrow.schema(...)"
            )


def shown(schema):
    """A schema on one line."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)
