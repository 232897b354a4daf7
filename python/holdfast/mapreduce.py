"""MapReduce over the machines of a Ray cluster, on the exchange that sorts.

    def words(line):
        for word in line.split():
            yield word, 1

    holdfast.mapreduce(["/data/text"], "/data/counts", map=words, reduce=lambda word, counts: sum(counts),
                       combine=lambda word, counts: sum(counts), ray="local")

`map` takes a record, as bytes and without its delimiter, and answers pairs of key and value. `combine`
makes one value of the values of a key in a part of the input, before they are sent. `reduce` takes a key and
an iterator of its values, each key once, and answers what is written: nothing (None), a value, or a list or
generator of them. A value is text, bytes, a number, or a tuple of those, whose fields have tabs between them;
what is no text is written with its key in front. Keys are text, bytes or whole numbers, values whatever
``marshal`` can write: numbers, text, bytes, tuples, lists, dicts of those. The output is a directory of a file
a partition, in the order of the keys (numbers, then bytes, then text).

``"sum"``, ``"min"`` and ``"max"`` as `combine` or `reduce` fold numbers, without a call for each key.

With `format` ``"csv"``, ``"parquet"`` or ``"lines"`` (of text, a column `line`), `map` takes a ``pyarrow.RecordBatch``
of the `columns` that are asked for. It answers pairs, or a batch (also of records that are no tables): its column `key` has the keys, and
the others are the value, a dict if they are several. Without a `map` the batch is taken as it is:

    holdfast.mapreduce(["/data/sales.parquet"], "/data/totals", format="parquet", columns=["user", "amount"],
                       key="user", combine="sum", reduce="sum", ray="local")

Where a batch has text, bytes or whole numbers as keys, and numbers beside them, and `combine` is no function, its
rows become no objects of Python: that is the fast way to count.

With `output_format` ``"csv"`` or ``"parquet"``, `reduce` answers rows: a dict of columns and values, or a batch
or table of Arrow, or a list or generator of those. With `values` it takes the values of a key as one of Arrow's:
a ``pyarrow.RecordBatch`` where they are dicts, else an array:

    def summed(user, amounts):
        return {"user": user, "amount": pyarrow.compute.sum(amounts).as_py()}

    holdfast.mapreduce(["/data/sales.parquet"], "/data/totals", format="parquet", columns=["user", "amount"],
                       key="user", values="arrow", reduce=summed, output_format="parquet", ray="local")
"""

import dataclasses
import itertools
import marshal
import os
import sys
import time
import types
from dataclasses import dataclass, field
from typing import Any

from . import _holdfast, exchange, parts, places, ray_cluster, sources, tables
from .errors import HoldfastError, InvalidError
from .progress import shown
from .sort import Order
from .tables import count_words  # noqa: F401 - for maps
from .target import Target, part

#: Keys that are combined before they are sent, and pairs that are sent at once.
COMBINED_KEYS_MAX = 200_000
PAIRS = 20_000
_PAIRS = Order(prefixed=True)
#: Folds of numbers that kernels do, and of a mapper's memory the part that they take.
FOLDS = ("sum", "min", "max")
_FOLDING_OF = 4
#: What a function of the job may raise. `sys.exit` is its error, too, and no end of the driver's or of a
#: worker that another attempt would be made for.
_RAISED = (Exception, SystemExit)


class JobError(HoldfastError):
    """A function of the job raised, or answered what it may not; the text names the record or the key."""


def raised(what, e):
    """The error for what a function of the job raised."""
    said = f"SystemExit: it called exit with {e.code!r}" if isinstance(e, SystemExit) else f"{type(e).__name__}: {e}"
    return JobError(f"{what}: {said}")


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


def records(pieces, framing, split, whole=True):
    """Cuts the bytes of a split into records, without delimiters and lengths. The last one is there `whole`, or left
    out."""
    held, length, wanted, taken = [], 0, 0, 0
    delimiter = None if framing.record or framing.prefixed else bytes([framing.delimiter])
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        # A long record is put together once, and not again with each piece.
        if length < wanted or (delimiter and delimiter not in piece):
            continue
        data, at, wanted = b"".join(held), 0, 0
        if framing.record:
            for at in range(0, length - framing.record + 1, framing.record):
                yield data[at : at + framing.record]
            at = length - length % framing.record
        elif framing.prefixed:
            while length >= at + 4:
                end = at + 4 + int.from_bytes(data[at : at + 4], "big")
                if taken + end > split.end - split.start:
                    cut(split, taken + at, f"a record of {end - at - 4} bytes goes on behind its end")
                if length < end:
                    wanted = end - at
                    break
                yield data[at + 4 : end]
                at = end
        else:
            *lines, rest = data.split(delimiter)
            yield from lines
            at = length - len(rest)
        held, length, taken = [data[at:]], length - at, taken + at
    if length:
        if delimiter is None:
            if not whole:
                return
            cut(split, taken, f"{length} bytes at its end are no whole record")
        yield b"".join(held)


def cut(split, at, what):
    raise InvalidError(f"read `{split.path}`: from byte {split.start + at}: {what}: give the right format, or mend the file")


def answered(answer, key, kernels=False):
    """The pairs in what `map` answered for one record or batch; with `kernels`, also :class:`tables.Columns`."""
    if answer is None or answer is False:
        return
    if tables.is_batch(answer):
        answer = (answer,)
    elif isinstance(answer, (str, bytes, dict)) or hasattr(answer, "columns") or not hasattr(answer, "__iter__"):
        raise TypeError(
            f"it answered {parts.type_name(answer)}: answer a list or generator of pairs of key and value, or of batches of Arrow"
        )
    for pair in answer:
        if type(pair) is tuple and len(pair) == 2:
            yield pair
        elif tables.is_batch(pair):
            columns = tables.columns_of(pair, key) if kernels else None
            yield from tables.rows(pair, key) if columns is None else (columns,)
        else:
            raise TypeError(f"it answered {type(pair).__name__} {pair!r:.60}: answer pairs of key and value")


def pairs_of(map, items, name, key=None, kernels=False):
    """What `map` answers for each record or batch, with keys in bytes; with `kernels`, also :class:`tables.Columns`."""
    for number, item in enumerate(items, 1):
        try:
            for pair in answered(map(item) if map else item, key, kernels):
                if type(pair) is tables.Columns:
                    yield pair
                else:
                    yield key_bytes(pair[0]), pair[1]
        except _RAISED as e:
            what = f"batch {number} of `{name}`, {item.num_rows} rows" if tables.is_batch(item) else (
                f"record {number} of `{name}`, {item[:60]!r}"
            )
            raise raised(f"map {what}", e) from None


@dataclass(frozen=True)
class Records:
    """How records are read that are no tables."""

    framing: sources.Framing

    def items(self, split, access):
        """The records of a split."""
        with sources.open_split(split, access) as file:
            yield from records(sources.chunks(file, split, self.framing), self.framing, split)

    def front(self, split, access):
        """Those of its front, for the sample."""
        # With lengths in front it may end within a record.
        return records([sources.front(split, self.framing, access)], self.framing, split, whole=not self.framing.prefixed)


#: Types of values that hold no others.
_PLAIN = {int, float, complex, bool, str, bytes, type(None)}


def foreign(value):
    """The first value in this one that `marshal` refuses, or would write as something else: it takes numpy's
    numbers for bytes."""
    kind = type(value)
    if kind in _PLAIN:
        return None
    if kind is dict:
        value = itertools.chain(value.keys(), value.values())
    elif kind not in (tuple, list, set, frozenset):
        return value
    return next((found for found in map(foreign, value) if found is not None), None)


def value_bytes(value, key=None):
    """A value as it is sent; `key` is its key's bytes, for sentences."""
    of = "" if key is None else f" for key {key_of(key)!r:.60}"
    try:
        found = foreign(value)
    except RecursionError:
        raise JobError(f"send a value of {parts.type_name(value)}{of}: it holds others too deep, or itself") from None
    if found is not None:
        hint = " (of numpy's, `.item()`)" if type(found).__module__.startswith("numpy") else ""
        raise JobError(
            f"send a value of {parts.type_name(found)}{of}: answer numbers, text, bytes, tuples, lists or dicts of those{hint}"
        )
    return marshal.dumps(value)


def sent(pairs):
    """Pairs as they are sent."""
    try:
        return [(key, value_bytes(value)) for key, value in pairs]
    except JobError:
        # The one that cannot be sent, by its key.
        return [(key, value_bytes(value, key)) for key, value in pairs]


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
    # Others may print what Ray was sent.
    token: str = field(repr=False)
    memory: int
    access: places.Access = places.Access()

    def __call__(self, split, targets, attempt):
        folds = type(self.combine) is str
        folding = self.memory // _FOLDING_OF if folds else 0
        options = {"token": self.token, "split": split.number, "attempt": attempt, "memory": self.memory - folding}
        mapper = _holdfast.Mapper(_PAIRS.rules(), list(self.boundaries), targets, **options)
        to = _holdfast.Folding(mapper, self.combine, folding) if folds else mapper
        kernels = folds or self.combine is None
        pairs = pairs_of(self.map, self.reading.items(split, self.access), place(split), self.key, kernels)
        for some in batches(pairs) if kernels else self.combined(pairs):
            if type(some) is tables.Columns:
                to.push_columns(some)
            else:
                to.push_pairs(sent(some))
        if folds:
            to.finish()
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
        except _RAISED as e:
            raise raised(f"combine key {key_of(key)!r:.60}", e) from None


def batches(pairs):
    """Lists of pairs, and columns as they come, in their order."""
    some = []
    for pair in pairs:
        if type(pair) is tables.Columns:
            if some:
                yield some
                some = []
            yield pair
            continue
        some.append(pair)
        if len(some) >= PAIRS:
            yield some
            some = []
    if some:
        yield some


@dataclass(frozen=True)
class Finishing:
    """Reduces a partition to its part; runs in a receiver."""

    reduce: Any
    output: str
    memory: int
    access: places.Access = places.Access()
    #: How values are given to `reduce`, if not one by one; and how what it answers is written.
    values: Any = None
    writing: Any = parts.Lines()

    def __call__(self, receiver, partition, _):
        sums = receiver.sum(partition)
        sorted_ = receiver.sorted(_PAIRS.rules(), partition, self.memory, 1)
        path = part(self.output, partition) + self.writing.suffix
        with self.writing.part(path, self.access) as written:
            for key, answers in self.folded(sorted_) if type(self.reduce) is str else self.reduced(sorted_):
                try:
                    for answer in answers:
                        try:
                            written.write(key, answer)
                        except OSError as e:
                            raise sources.unwritten(path, e) from e
                except HoldfastError:
                    raise
                except _RAISED as e:
                    raise raised(f"reduce key {key!r:.60}", e) from None
        columns = () if written.schema is None else (parts.shown(written.schema),)
        return (sums, written.written, *columns)

    def folded(self, sorted_):
        """Each key and its one number, by a kernel."""
        while (some := sorted_.next_folded(self.reduce)) is not None:
            for raw, number in some:
                yield key_of(raw), (number,)

    def reduced(self, sorted_):
        """Each key and what the function answers for it, which is called as that is asked for."""

        def pairs():
            while (some := sorted_.next_pairs()) is not None:
                yield from some

        for raw, group in itertools.groupby(pairs(), key=lambda pair: pair[0]):
            key = key_of(raw)
            yield key, self.answers(key, (value for _, value in group))

    def answers(self, key, values):
        """What the function answers for one key."""
        if self.values is None:
            given = map(marshal.loads, values)
        else:
            given = self.values.of(key, values, self.memory)
        answer = self.reduce(key, given)
        if isinstance(answer, (list, types.GeneratorType)):
            yield from answer
        elif answer is not None:
            yield answer


def sample(map, key, splits, reading, wanted, access):
    """Keys of the records at the fronts of some splits, as boundaries."""
    taken = []
    chosen = sources.sampled(splits)
    for split in chosen:
        keys = [found for found, _ in pairs_of(map, reading.front(split, access), place(split), key)]
        step = max(1, len(keys) * len(chosen) // max(1, wanted))
        taken += [_holdfast.pair_boundary(found) for found in keys[::step]]
    return taken


def check_folds(combine, reduce, values, output_format):
    for what, given in (("combine", combine), ("reduce", reduce)):
        if not callable(given) and given not in FOLDS and not (what == "combine" and given is None):
            raise InvalidError(f"run a job with {what}={given!r:.60}: give a function, or one of {', '.join(map(repr, FOLDS))}")
    if type(reduce) is str and (values is not None or output_format is not None):
        raise InvalidError(
            f"run a job with reduce={reduce!r}: it takes numbers and writes lines: with `values` or `output_format` give a function"
        )


def run(inputs, output, *, map=None, reduce, combine=None, key=None, ray="local", format=None, columns=None,
        record=None, prefixed=False, delimiter=10, values=None, output_format=None, output_schema=None,
        memory=exchange.MEMORY_BYTES, temp=None, resume=False, secret=None, s3=None,
        split_bytes=sources.SPLIT_BYTES, progress=True, observe=None):
    """Runs a job (see this module) of files that every node sees, or ``holdfast://`` and ``s3://`` paths, into the
    new directory `output`, which is made with those above it. `secret` is the file with a Holdfast node's secret, and
    `s3` a dict of ``endpoint``, ``key``, ``secret``, ``region`` or ``profile``, each where it is not to be found as
    Amazon's own tools find it on each node. `memory` is in bytes and a node's. `format` is ``"csv"``, ``"parquet"``
    or ``"lines"``, `columns` are the names of those that are read (for CSV and lines also a ``pyarrow.Schema``), `key` is the key's column.
    `values` is ``"arrow"``, or the type of the values where it is known: a ``pyarrow.DataType``, or a
    ``pyarrow.Schema`` of dicts. `output_format` is ``"csv"`` or ``"parquet"``, `output_schema` their columns.
    With `resume` a job goes on that was interrupted at the same call: what it has finished is not done again,
    and its functions must be the same. Where standard error is a
    terminal, a line there says how far it is, unless `progress` is False. Returns :class:`exchange.Stats`, of
    which `picture()` is the job as SVG.

    Raises :class:`JobError` where a function of the job fails; then there is no output, and inputs stand.
    """
    began = time.monotonic()
    check_folds(combine, reduce, values, output_format)
    exchange.check_bytes(memory=memory, split_bytes=split_bytes)
    inputs, output, temp = sources.paths_of(inputs), os.fspath(output), sources.paths_of(temp or [])
    writing, taking = parts.written_as(output_format, output_schema), tables.taken_as(values)
    access = places.access_of(secret, s3)
    goal = Target(output, True, doing="reduce", suffix=writing.suffix, resume=resume, access=access)
    if format is not None:
        splits, reading = tables.splits_of(inputs, format, columns, split_bytes, access)
    else:
        if map is None or columns is not None:
            raise InvalidError("run a job of records: give `map`, and `format` where the input is a table")
        framing = sources.Framing(record, prefixed, delimiter)
        splits, reading = sources.splits_of(inputs, framing, split_bytes, access), Records(framing)
    with shown(progress) as bar, ray_cluster.connected(ray, bar) as (engine, nodes):
        began_cpu = time.process_time()
        bar.tell("sample")
        plan = exchange.plan(splits, memory, nodes, len(temp or [0]))
        wanted = plan.partitions
        token = _holdfast.draw_token()

        def drawn():
            taken = sample(map, key, splits, reading, wanted * exchange.SAMPLES_A_PARTITION, access)
            # A key that fills a partition alone has it by two boundaries, and not as records that are equal.
            return [(body, False) for body, _ in _PAIRS.rules().boundaries(taken, wanted)[0]]

        access = dataclasses.replace(access, patience_s=places.PATIENCE_S)

        with goal as target:
            what = f"reduce {reading}, key {key}" + (f", to {writing}" if output_format else "")
            boundaries = tuple(target.plan(splits, what, drawn))
            alike = parts.Alike()

            def length_of(result):
                return result[1]

            done = target.finished(length_of)

            def note(partition, result, sums):
                alike.see(partition, result[2] if result[2:] else None)
                target.note(partition, result, sums)

            for partition, (result, _) in done.items():
                alike.see(partition, result[2] if result[2:] else None)
            job = exchange.Exchange(
                engine,
                nodes,
                splits,
                len(boundaries) + 1,
                temp=temp,
                kept=plan.kept,
                mapping=Mapping(map, combine, key, reading, boundaries, token, plan.mapper, access),
                finishing=Finishing(reduce, target.temporary, plan.sorter, access, taking, writing),
                token=token,
                access=access,
                observe=observe,
                done=done,
                note=note,
                length_of=length_of,
                bar=bar,
            )
            job.stats.phases["sample"] = time.monotonic() - began
            job.spent({"sample": time.process_time() - began_cpu})
            job.stats.output_bytes = sum(length_of(result) or 0 for result in job.run())
            target.complete(0)
        job.stats.seconds = time.monotonic() - began
        return job.stats


# ``holdfast.mapreduce(...)`` is :func:`run`.
sys.modules[__name__].__class__ = exchange.Callable
