"""MapReduce over the machines of a Ray cluster, on the exchange that sorts.

    def words(line):
        for word in line.split():
            yield word, 1

    holdfast.mapreduce(["/data/text"], "/data/counts", map=words, reduce=lambda word, counts: sum(counts),
                       combine=lambda word, counts: sum(counts), ray="local")

`map` takes a record, as bytes and without its delimiter, and answers pairs of key and value. `combine`
makes one value of the values of a key in a part of the input, before they are sent. `reduce` takes a key and
an iterator of its values, each key once, and answers what is written: nothing (None), a value, or a list or
generator of them; a value that is no text is written with its key in front. Keys are text, bytes or whole
numbers, values whatever ``marshal`` can write: numbers, text, bytes, tuples, lists, dicts of those. The
output is a directory of a file a partition, in the order of the keys (numbers, then bytes, then text).

With `format` ``"csv"`` or ``"parquet"``, `map` takes a ``pyarrow.RecordBatch`` of the `columns` that are
asked for. It answers pairs, or a batch (also of records that are no tables): its column `key` has the keys, and
the others are the value, a dict if they are several. Without a `map` the batch is taken as it is:

    holdfast.mapreduce(["/data/sales.parquet"], "/data/totals", format="parquet", columns=["user", "amount"],
                       key="user", reduce=lambda user, amounts: sum(amounts), ray="local")
"""

import itertools
import marshal
import os
import sys
import time
import types
from dataclasses import dataclass
from typing import Any

from . import _holdfast, exchange, tables
from .errors import HoldfastError, InvalidError
from .sort import Order
from .target import Target, part

#: Keys that are combined before they are sent, and pairs that are sent at once.
COMBINED_KEYS_MAX = 200_000
PAIRS = 20_000
_PAIRS = Order(prefixed=True)


class JobError(HoldfastError):
    """A function of the job raised, or answered what it may not; the text names the record or the key."""


def key_bytes(key):
    """A key in bytes, of which the order is the keys'."""
    if type(key) is str:
        return b"s" + key.encode()
    if type(key) is bytes:
        return b"b" + key
    if type(key) is int and -(1 << 63) <= key < 1 << 63:
        return b"a" + (key + (1 << 63)).to_bytes(8, "big")
    if key is None:
        raise TypeError("the key is null: answer text, bytes or a whole number, or leave the record out")
    raise TypeError(f"the key is {type(key).__name__} {key!r:.60}: answer text, bytes or a whole number of 64 bits")


def key_of(raw):
    """What :func:`key_bytes` was given."""
    kind, rest = raw[:1], raw[1:]
    if kind == b"s":
        return rest.decode()
    return rest if kind == b"b" else int.from_bytes(rest, "big") - (1 << 63)


def records(pieces, framing):
    """Cuts bytes into records, without delimiters and lengths."""
    rest = b""
    for piece in pieces:
        data, at = rest + piece, 0
        if framing.record:
            whole = len(data) // framing.record * framing.record
            for at in range(0, whole, framing.record):
                yield data[at : at + framing.record]
            rest = data[whole:]
        elif framing.prefixed:
            while len(data) >= at + 4 and len(data) >= (end := at + 4 + int.from_bytes(data[at : at + 4], "big")):
                yield data[at + 4 : end]
                at = end
            rest = data[at:]
        else:
            *whole, rest = data.split(bytes([framing.delimiter]))
            yield from whole
    if rest:
        if framing.record or framing.prefixed:
            raise InvalidError(f"its last record is cut: {len(rest)} bytes are there of more")
        yield rest


def answered(answer, key):
    """The pairs in what `map` answered for one record or batch."""
    for pair in (answer,) if tables.is_batch(answer) else answer or ():
        if type(pair) is tuple and len(pair) == 2:
            yield pair
        elif tables.is_batch(pair):
            yield from tables.rows(pair, key)
        else:
            raise TypeError(f"it answered {type(pair).__name__} {pair!r:.60}: answer pairs of key and value")


def pairs_of(map, items, name, key=None):
    """What `map` answers for each record or batch, with keys in bytes."""
    for number, item in enumerate(items, 1):
        try:
            for found, value in answered(map(item) if map else item, key):
                yield key_bytes(found), value
        except Exception as e:
            what = f"batch {number} of `{name}`, {item.num_rows} rows" if tables.is_batch(item) else (
                f"record {number} of `{name}`, {item[:60]!r}"
            )
            raise JobError(f"map {what}: {type(e).__name__}: {e}") from None


@dataclass(frozen=True)
class Records:
    """How records are read that are no tables."""

    framing: exchange.Framing

    def items(self, split, secret):
        """The records of a split."""
        with exchange.open_split(split, secret) as file:
            yield from records(exchange.chunks(file, split, self.framing), self.framing)

    def front(self, split, secret):
        """Those of its front, for the sample."""
        return records([exchange.front(split, self.framing, secret)], self.framing)


def value_bytes(value):
    try:
        return marshal.dumps(value)
    except ValueError:
        raise JobError(
            f"send a value of {type(value).__name__}: answer numbers, text, bytes, tuples, lists or dicts of those"
        ) from None


def place(split):
    """Where a record is counted from, for sentences."""
    return f"{split.path}` from byte `{split.start}"


@dataclass(frozen=True)
class Mapping:
    """Maps a split; runs in a task."""

    map: Any
    combine: Any
    key: str
    reading: Any
    boundaries: tuple
    token: str
    memory: int
    secret: str = None

    def __call__(self, split, targets, attempt):
        options = {"token": self.token, "split": split.number, "attempt": attempt, "memory": self.memory}
        mapper = _holdfast.Mapper(_PAIRS.rules(), list(self.boundaries), targets, **options)
        pairs = pairs_of(self.map, self.reading.items(split, self.secret), place(split), self.key)
        for some in self.combined(pairs) if self.combine else batches(pairs):
            mapper.push_pairs([(key, value_bytes(value)) for key, value in some])
        return mapper.finish()

    def combined(self, pairs):
        """Values of a key together, as far as there is room for keys."""
        values = {}
        for key, value in pairs:
            here = values.get(key)
            if here is None:
                values[key] = [value]
            else:
                here.append(value)
                if len(here) == 64:
                    values[key] = [self.one(key, here)]
            if len(values) >= COMBINED_KEYS_MAX:
                yield [(key, self.one(key, some)) for key, some in values.items()]
                values = {}
        yield from batches((key, self.one(key, some)) for key, some in values.items())

    def one(self, key, values):
        if len(values) == 1:
            return values[0]
        try:
            return self.combine(key_of(key), iter(values))
        except Exception as e:
            raise JobError(f"combine key {key_of(key)!r:.60}: {type(e).__name__}: {e}") from None


def batches(pairs):
    pairs = iter(pairs)
    while some := list(itertools.islice(pairs, PAIRS)):
        yield some


def line_of(key, value):
    """What is written of a value that a reduce answered."""
    if isinstance(value, bytes):
        return value + b"\n"
    if isinstance(value, str):
        return value.encode() + b"\n"
    shown = key if isinstance(key, bytes) else str(key).encode()
    return b"%s\t%s\n" % (shown, str(value).encode())


@dataclass(frozen=True)
class Finishing:
    """Reduces a partition to its part; runs in a receiver."""

    reduce: Any
    output: str
    memory: int
    secret: str = None

    def __call__(self, receiver, partition, _):
        sums = receiver.sum(partition)
        sorted_ = receiver.sorted(_PAIRS.rules(), partition, self.memory, 1)

        def pairs():
            while (some := sorted_.next_pairs()) is not None:
                yield from some

        path = part(self.output, partition)
        stored = exchange.is_stored(path)
        written = 0
        with exchange.open_stored(path, "wb", self.secret) if stored else open(path, "wb", 1 << 20) as file:
            for raw, group in itertools.groupby(pairs(), key=lambda pair: pair[0]):
                key = key_of(raw)
                try:
                    answer = self.reduce(key, (marshal.loads(value) for _, value in group))
                    if answer is None:
                        continue
                    many = isinstance(answer, (list, types.GeneratorType))
                    for value in answer if many else (answer,):
                        line = line_of(key, value)
                        written += len(line)
                        file.write(line)
                except HoldfastError:
                    raise
                except Exception as e:
                    raise JobError(f"reduce key {key!r:.60}: {type(e).__name__}: {e}") from None
            if not stored:
                file.flush()
                os.fsync(file.fileno())
        return sums, written


def sample(map, key, splits, reading, wanted, secret):
    """Keys of the records at the fronts of some splits, as boundaries."""
    taken = []
    chosen = exchange.sampled(splits)
    for split in chosen:
        keys = [found for found, _ in pairs_of(map, reading.front(split, secret), place(split), key)]
        step = max(1, len(keys) * len(chosen) // max(1, wanted))
        taken += [_holdfast.pair_boundary(found) for found in keys[::step]]
    return taken


def run(inputs, output, *, map=None, reduce, combine=None, key=None, ray="local", format=None, columns=None,
        record=None, prefixed=False, delimiter=10, memory=exchange.MEMORY_BYTES, temp=None, resume=False,
        secret=None, split_bytes=exchange.SPLIT_BYTES, observe=None):
    """Runs a job (see this module) of files that every node sees, or ``holdfast://`` paths, into the new
    directory `output`. `memory` is in bytes and a node's. `format` is ``"csv"`` or ``"parquet"``, `columns`
    are the names of those that are read (for CSV also a ``pyarrow.Schema``), `key` is the key's column.
    With `resume` a job goes on that was interrupted at the same call: what it has finished is not done again,
    and its functions must be the same. Returns :class:`exchange.Stats`.

    Raises :class:`JobError` where a function of the job fails; then there is no output, and inputs stand.
    """
    began = time.monotonic()
    inputs, output = exchange.paths_of(inputs), os.fspath(output)
    goal = Target(output, True, doing="reduce", resume=resume, secret=secret)
    if format is not None:
        splits, reading = tables.splits_of(inputs, format, columns, split_bytes, secret)
    else:
        if map is None or columns is not None:
            raise InvalidError("run a job of records: give `map`, and `format` where the input is a table")
        framing = exchange.Framing(record, prefixed, delimiter)
        splits, reading = exchange.splits_of(inputs, framing, split_bytes, secret), Records(framing)
    with exchange.cluster(ray) as (engine, nodes):
        began_cpu = time.process_time()
        wanted, mapper, sorter = exchange.partitions_for(splits, memory, nodes, len(temp or [0]))
        token = _holdfast.draw_token()

        def drawn():
            taken = sample(map, key, splits, reading, wanted * exchange.SAMPLES_A_PARTITION, secret)
            # A key that fills a partition alone has it by two boundaries, and not as records that are equal.
            return [(body, False) for body, _ in _PAIRS.rules().boundaries(taken, wanted)[0]]

        with goal as target:
            boundaries = tuple(target.plan(splits, f"reduce {reading}, key {key}", drawn))
            job = exchange.Exchange(
                engine,
                nodes,
                splits,
                len(boundaries) + 1,
                temp=temp,
                mapping=Mapping(map, combine, key, reading, boundaries, token, mapper, secret),
                finishing=Finishing(reduce, target.temporary, sorter, secret),
                token=token,
                secret=secret,
                observe=observe,
                done=target.finished(lambda result: result[1]),
                note=target.note,
            )
            job.stats.phases["sample"] = time.monotonic() - began
            job.spent({"sample": time.process_time() - began_cpu})
            job.stats.output_bytes = sum(written for _, written in job.run())
            target.complete(0)
        job.stats.seconds = time.monotonic() - began
        return job.stats


# ``holdfast.mapreduce(...)`` is :func:`run`.
sys.modules[__name__].__class__ = exchange.Callable
