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
"""

import itertools
import marshal
import os
import sys
import time
import types
from dataclasses import dataclass
from typing import Any

from . import _holdfast, exchange
from .errors import ExistsError, HoldfastError, InvalidError
from .sort import Order, Target, part

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


def pairs_of(map, records, name):
    """What `map` answers for each record, with keys in bytes."""
    number = 0
    for number, record in enumerate(records, 1):
        try:
            for pair in map(record) or ():
                if type(pair) is not tuple or len(pair) != 2:
                    raise TypeError(f"it answered {type(pair).__name__} {pair!r:.60}: answer pairs of key and value")
                yield key_bytes(pair[0]), pair[1]
        except Exception as e:
            raise JobError(
                f"map record {number} of `{name}`, {record[:60]!r}: {type(e).__name__}: {e}"
            ) from None


def value_bytes(value):
    try:
        return marshal.dumps(value)
    except ValueError:
        raise JobError(
            f"send a value of {type(value).__name__}: answer numbers, text, bytes, tuples, lists or dicts of those"
        ) from None


@dataclass(frozen=True)
class Mapping:
    """Maps a split; runs in a task."""

    map: Any
    combine: Any
    framing: exchange.Framing
    boundaries: tuple
    token: str
    memory: int
    secret: str = None

    def __call__(self, split, targets, attempt):
        options = {"token": self.token, "split": split.number, "attempt": attempt, "memory": self.memory}
        mapper = _holdfast.Mapper(_PAIRS.rules(), list(self.boundaries), targets, **options)
        name = f"{split.path}` from byte `{split.start}"
        with exchange.open_split(split, self.secret) as file:
            pairs = pairs_of(self.map, records(exchange.chunks(file, split, self.framing), self.framing), name)
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


def sample(map, splits, framing, wanted, secret):
    """Keys of the records at the fronts of some splits, as boundaries."""
    taken = []
    chosen = exchange.sampled(splits)
    for split in chosen:
        pieces = [exchange.front(split, framing, secret)]
        name = f"{split.path}` from byte `{split.start}"
        keys = [key for key, _ in pairs_of(map, records(pieces, framing), name)]
        step = max(1, len(keys) * len(chosen) // max(1, wanted))
        taken += [_holdfast.pair_boundary(key) for key in keys[::step]]
    return taken


def run(inputs, output, *, map, reduce, combine=None, ray="local", record=None, prefixed=False, delimiter=10,
        memory=exchange.MEMORY_BYTES, temp=None, secret=None, split_bytes=exchange.SPLIT_BYTES, observe=None):
    """Runs a job (see this module) of files that every node sees, or ``holdfast://`` paths, into the new
    directory `output`. `memory` is in bytes and a node's. Returns :class:`exchange.Stats`.

    Raises :class:`JobError` where a function of the job fails; then there is no output, and inputs stand.
    """
    began = time.monotonic()
    inputs, output = exchange.paths_of(inputs), os.fspath(output)
    if not exchange.is_stored(output) and os.path.lexists(output):
        raise ExistsError(f"reduce to `{output}`: it exists: choose another name")
    framing = exchange.Framing(record, prefixed, delimiter)
    splits = exchange.splits_of(inputs, framing, split_bytes, secret)
    with exchange.cluster(ray) as (engine, nodes):
        began_cpu = time.process_time()
        wanted, mapper, sorter = exchange.partitions_for(splits, memory, nodes, len(temp or [0]))
        taken = sample(map, splits, framing, wanted * exchange.SAMPLES_A_PARTITION, secret)
        # A key that fills a partition alone has it by two boundaries, and not as records that are equal.
        boundaries, _ = _PAIRS.rules().boundaries(taken, wanted)
        boundaries = tuple((body, False) for body, _ in boundaries)
        token = _holdfast.draw_token()
        with Target(output, True) as target:
            job = exchange.Exchange(
                engine,
                nodes,
                splits,
                len(boundaries) + 1,
                temp=temp,
                mapping=Mapping(map, combine, framing, boundaries, token, mapper, secret),
                finishing=Finishing(reduce, target.temporary, sorter, secret),
                token=token,
                secret=secret,
                observe=observe,
            )
            job.stats.phases["sample"] = time.monotonic() - began
            job.spent({"sample": time.process_time() - began_cpu})
            job.stats.output_bytes = sum(written for _, written in job.run())
            target.complete(0)
        job.stats.seconds = time.monotonic() - began
        return job.stats


# ``holdfast.mapreduce(...)`` is :func:`run`.
sys.modules[__name__].__class__ = exchange.Callable
