"""Sorts files over the machines of a Ray cluster, as ``holdfast sort`` does on one.

    holdfast.sort(["/data/a", "/data/b"], "/data/sorted", ray="local")

or ``python3 -m holdfast.sort --ray ADDRESS -o OUT IN...``, which ``holdfast sort --ray ADDRESS`` runs.
Every node must see inputs and output: on a shared file system, or as ``holdfast://NODE:PORT/PATH`` or
``s3://BUCKET/KEY``.
"""

import argparse
import dataclasses
import json
import os
import sys
import time

from . import _holdfast, exchange, places, ray_cluster, sources
from .errors import CorruptError, HoldfastError, InvalidError
from .progress import shown
from .target import Target, part


#: The first byte of keys that are uniform, and how many there are: of the sort benchmark's two kinds of records.
UNIFORM = {"bytes": (0, 256), "ascii": (32, 95)}
#: Bytes of a key that part such keys finely enough.
KEY_DIGITS = 8


@dataclasses.dataclass(frozen=True)
class Order:
    """How records are cut and compared; what it says of lines is GNU sort's."""

    record: int = None
    prefixed: bool = False
    delimiter: int = 10
    keys: tuple = ()
    separator: int = None
    letters: str = ""
    stable: bool = False
    start: int = 0
    end: int = None

    def check(self):
        """Refuses what does not go together, as the kernels would leave one of it out."""
        framing = self.framing()
        is_lines = framing.record is None and not framing.prefixed
        if is_lines and (self.start, self.end) != (0, None):
            raise InvalidError("sort lines by some of their bytes: a place of a key goes with `record`; lines have `keys`")
        if not is_lines and (self.keys or self.separator is not None or set(self.letters) - {"r"}):
            raise InvalidError("sort records that are no lines by keys of lines: they are compared byte by byte, with `r` at most")
        if min(self.start, self.end or 0) < 0:
            raise InvalidError(f"sort by bytes {self.start} to {self.end}: count them from the front of a record")

    def rules(self):
        self.check()
        options = dataclasses.asdict(self)
        return _holdfast.Rules(**{**options, "keys": list(self.keys)})

    def framing(self):
        return sources.Framing(self.record, self.prefixed, self.delimiter)


@dataclasses.dataclass(frozen=True)
class Mapping:
    """Cuts a split into partitions; runs in a task."""

    order: Order
    boundaries: tuple
    # Others may print what Ray was sent.
    token: str = dataclasses.field(repr=False)
    memory: int
    access: places.Access = places.Access()

    def __call__(self, split, targets, attempt):
        mapper = _holdfast.Mapper(
            self.order.rules(),
            list(self.boundaries),
            targets,
            token=self.token,
            split=split.number,
            attempt=attempt,
            memory=self.memory,
        )
        if places.is_remote(split.path):
            with sources.open_split(split, self.access) as file:
                for piece in sources.chunks(file, split, self.order.framing()):
                    mapper.push(piece)
            if split.end == split.stamp[0]:
                mapper.end_input(split.path)
        else:
            mapper.file(split.path, split.start, split.end)
        return mapper.finish()


@dataclasses.dataclass(frozen=True)
class Finishing:
    """Sorts a partition to its place; runs in a receiver."""

    order: Order
    output: str
    parts: bool
    memory: int
    threads: int
    access: places.Access = places.Access()

    def __call__(self, receiver, partition, offset):
        rules = self.order.rules()
        if places.is_remote(self.output):
            sums = receiver.sum(partition)
            with places.open_file(part(self.output, partition), "wb", self.access) as file:
                sorted_ = receiver.sorted(rules, partition, self.memory, self.threads)
                while (piece := sorted_.next_bytes()) is not None:
                    file.write(piece)
            return sums, False
        path = part(self.output, partition) if self.parts else self.output
        if self.parts:
            # An attempt that was lost may have left one.
            try:
                open(path, "wb").close()
            except FileNotFoundError as e:
                raise sources.unseen(path) from e
            offset = 0
        return receiver.sort_to(rules, partition, path, offset, self.memory, self.threads)


def sample(order, splits, wanted, access=places.Access()):
    """Records of some splits, spread over them."""
    rules, taken = order.rules(), []
    chosen = sources.sampled(splits)
    for split in chosen:
        taken += rules.sample(sources.front(split, order.framing(), access), -(-wanted // len(chosen)))
    return taken


def check_uniform(order, uniform):
    if uniform not in UNIFORM:
        raise InvalidError(f"sort with uniform={uniform!r:.60}: give one of {', '.join(map(repr, UNIFORM))}")
    if not order.record or order.keys or order.letters or order.end is None:
        raise InvalidError("sort by uniform keys: give the length of a record and the place of its key, and nothing else")


def evenly(order, uniform, wanted):
    """What stands for a sample where keys are known to be uniform: records whose keys part all that there may be
    into equal ranges."""
    first, letters = UNIFORM[uniform]
    digits = min(KEY_DIGITS, order.end - order.start)
    made = []
    for n in range(wanted):
        number, key = (2 * n + 1) * letters**digits // (2 * wanted), []
        for _ in range(digits):
            number, digit = divmod(number, letters)
            key.append(first + digit)
        record = bytearray(order.record)
        record[order.start : order.start + digits] = bytes(reversed(key))
        made.append(bytes(record))
    return made


def run(inputs, output, *, ray="local", order=Order(), memory=exchange.MEMORY_BYTES, temp=None, parts=False,
        replace=False, resume=False, secret=None, s3=None, uniform=None, split_bytes=sources.SPLIT_BYTES, progress=True,
        observe=None):
    """Sorts `inputs` into the file `output`, or with `parts` into a directory of one file a partition. In Holdfast the
    file is a multifile, whose parts are read as one; in S3 there are always parts. `memory` is in bytes and a node's, all buffers together. `temp` are the
    directories for what is under way, on each node one receiver each. `secret` and `s3` are as in
    :mod:`holdfast.mapreduce`. With `uniform`, ``"bytes"`` or ``"ascii"`` (the printable characters and the space), the
    keys of records of a fixed length are known to be random, and nothing is read for a sample: the sort benchmark
    calls that Indy, and Daytona what looks. If they are not, the sort is right and slower. Returns
    :class:`exchange.Stats`.

    With `resume` a job goes on that was interrupted at the same call: what it has finished is not done again. Where
    standard error is a terminal, a line there says how far it is, unless `progress` is False.

    Raises :class:`ExistsError` if there is an output, unless it is to be replaced; other errors name the
    input, the record or the node, and leave no output. Inputs stand in any case.
    """
    began = time.monotonic()
    exchange.check_bytes(memory=memory, split_bytes=split_bytes)
    inputs, output, temp = sources.paths_of(inputs), os.fspath(output), sources.paths_of(temp or [])
    access = places.access_of(secret, s3)
    goal = Target(output, parts, doing="sort", replace=replace, resume=resume, access=access)
    order.rules()
    if uniform is not None:
        check_uniform(order, uniform)
    splits = sources.splits_of(inputs, order.framing(), split_bytes, access)
    with shown(progress) as bar, ray_cluster.connected(ray, bar) as (engine, nodes):
        began_cpu = time.process_time()
        bar.tell("sample")
        plan = exchange.plan(splits, memory, nodes, len(temp or [0]))
        wanted = plan.partitions
        token = _holdfast.draw_token()

        def drawn():
            samples = wanted * exchange.SAMPLES_A_PARTITION
            taken = evenly(order, uniform, samples) if uniform else sample(order, splits, samples, access)
            return order.rules().boundaries(taken, wanted)[0]

        def length_of(result):
            return result[0][1]

        access = dataclasses.replace(access, patience_s=places.PATIENCE_S)

        with goal as target:
            boundaries = target.plan(splits, f"sort by {order}" + (", in parts" if parts else ""), drawn)
            threads = max(cpus for _, cpus in nodes)
            job = exchange.Exchange(
                engine,
                nodes,
                splits,
                1 + sum(1 + alone for _, alone in boundaries),
                temp=temp,
                kept=plan.kept,
                mapping=Mapping(order, tuple(boundaries), token, plan.mapper, access),
                finishing=Finishing(order, target.temporary, target.parts, plan.sorter, threads, access),
                token=token,
                access=access,
                observe=observe,
                done=target.finished(length_of),
                note=target.note,
                length_of=length_of,
                bar=bar,
            )
            job.stats.phases["sample"] = time.monotonic() - began
            job.spent({"sample": time.process_time() - began_cpu})
            done = job.run()
            if exchange.total_of(sums for sums, _ in done) != exchange.total_of(job.sums.values()):
                raise CorruptError(f"sort to `{output}`: what came out is not what went in: nothing was kept")
            job.stats.output_bytes = job.stats.bytes
            job.stats.outgrown_partitions = sum(outgrew for _, outgrew in done)
            target.complete(job.stats.bytes)
        job.stats.seconds = time.monotonic() - began
        return job.stats


def bytes_of(text):
    """A size with a suffix of two's powers."""
    suffixes = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    digits = text.upper().removesuffix("IB").removesuffix("B")
    factor = suffixes.get(digits[-1:], 1)
    digits = digits[:-1] if factor > 1 else digits
    if not digits.isdigit() or not int(digits):
        raise InvalidError(f"`{text}`: write bytes, as 512M or 2G")
    return int(digits) * factor


def byte_of(text):
    """One byte, plain or as `\\xNN`."""
    raw = text.encode()
    if len(raw) == 1:
        return raw[0]
    if text.startswith("\\x") and len(text) == 4:
        return int(text[2:], 16)
    raise InvalidError(f"`{text}`: write one character, or `\\xNN`")


def parser():
    parser = argparse.ArgumentParser(
        prog="holdfast sort --ray", add_help=False, description="Sort files over the nodes of a Ray cluster."
    )
    add = parser.add_argument
    add("--help", action="help", help="print help")
    add("inputs", nargs="+", metavar="IN", help="files that every node sees, or holdfast://NODE:PORT/PATH or s3://BUCKET/KEY")
    add("--ray", default="local", metavar="ADDRESS", help="Ray's address; `local` starts one here")
    add("-o", "--output", required=True, metavar="OUT", help="the file, or with --parts the directory")
    add("--parts", action="store_true", help="a file a partition")
    add("--resume", action="store_true", help="go on with the same sort where it was interrupted")
    add("--replace", action="store_true", help="replace an output that exists")
    add("-S", "--memory", "--buffer-size", default="1G", metavar="BYTES", help="memory of a node, all buffers together")
    add("-T", "--temp", "--temporary-directory", action="append", metavar="DIR", help="a receiver's, on every node")
    add("-k", "--key", action="append", default=[], metavar="KEY", help="as GNU sort")
    add("-t", "--field-separator", metavar="CHAR")
    for letter in "bdfghiMnrV":
        add(f"-{letter}", dest="letters", action="append_const", const=letter, help="as GNU sort")
    add("--reverse", dest="letters", action="append_const", const="r")
    add("-s", "--stable", action="store_true", help="equal lines keep their order")
    add("-z", "--zero-terminated", action="store_true", help="lines end with NUL")
    add("--delimiter", metavar="BYTE", help="records end with this byte")
    add("--record", type=int, metavar="BYTES", help="records of so many bytes")
    add("--record-key", metavar="OFFSET:LENGTH", help="the key of such records")
    add("--length-prefixed", action="store_true", help="records of a length and so many bytes")
    add("--uniform", choices=sorted(UNIFORM), help="keys are random bytes or text: no sample is read (Indy)")
    add("--secret", metavar="FILE", help="the secret of Holdfast's node, for holdfast:// paths")
    add("--s3-endpoint", metavar="URL", help="for s3:// paths; keys are found as Amazon's tools find them")
    add("--stats", action="store_true", help="say at the end what was done, for people")
    add("--picture", metavar="FILE.svg", help="draw what each node did when")
    add("--json", action="store_true", help="the same as an object")
    return parser


def order_of(options):
    start, end = 0, None
    if options.record_key:
        offset, _, length = options.record_key.partition(":")
        if not (offset.isdigit() and length.isdigit()):
            raise InvalidError(f"`--record-key {options.record_key}`: write OFFSET:LENGTH, e.g. 0:10")
        start, end = int(offset), int(offset) + int(length)
    delimiter = 0 if options.zero_terminated else 10
    return Order(
        record=options.record,
        prefixed=options.length_prefixed,
        delimiter=byte_of(options.delimiter) if options.delimiter else delimiter,
        keys=tuple(options.key),
        separator=byte_of(options.field_separator) if options.field_separator else None,
        letters="".join(options.letters or []),
        stable=options.stable,
        start=start,
        end=end,
    )


def main(arguments=None):
    options = parser().parse_args(arguments)
    try:
        stats = run(
            options.inputs,
            options.output,
            ray=options.ray,
            order=order_of(options),
            memory=bytes_of(options.memory),
            temp=options.temp,
            parts=options.parts,
            replace=options.replace,
            resume=options.resume,
            secret=options.secret,
            s3={"endpoint": options.s3_endpoint} if options.s3_endpoint else None,
            uniform=options.uniform,
        )
    except (HoldfastError, OSError) as e:
        print(f"holdfast sort: {e}", file=sys.stderr)
        return 1
    if options.picture:
        try:
            with open(options.picture, "w") as file:
                file.write(stats.picture())
        except OSError as e:
            # The sort is whole.
            print(f"holdfast sort: draw `{options.picture}`: {e.strerror}", file=sys.stderr)
    if options.json:
        print(json.dumps(stats.to_json()))
    elif options.stats:
        per = max(1, stats.bytes)
        print(
            f"{stats.records} records of {stats.bytes} bytes on {stats.nodes} nodes in {stats.seconds:.1f} s: "
            f"read {(stats.bytes + stats.spool_read_bytes) / per:.2f} and wrote "
            f"{(stats.spool_written_bytes + stats.output_bytes) / per:.2f} times, sent "
            f"{stats.sent_bytes / per:.2f} ({stats.crossed_bytes / per:.2f} to other nodes), {stats.cpu_seconds / per * 1e9:.1f} CPU-s a GB "
            f"({', '.join(f'{what} {spent / per * 1e9:.1f}' for what, spent in stats.cpu.items())}); lost "
            f"{stats.lost_attempts} attempts and {stats.lost_receivers} receivers"
        )
    return 0


# ``holdfast.sort(...)`` is :func:`run`.
sys.modules[__name__].__class__ = exchange.Callable

if __name__ == "__main__":
    # Ray sends what it runs by the names of modules, and this one has another name here.
    from holdfast.sort import main as main_by_name

    sys.exit(main_by_name())
