"""A job over many machines: placement on Ray, splits and attempts, receivers that are lost. Used by
:mod:`holdfast.sort` and :mod:`holdfast.mapreduce`; docs/mapreduce.md says how it works.

Ray places and notices what is lost; no byte of a record goes through its object store. Ray is imported
when a job begins, so that the package does not need it otherwise.
"""

import contextlib
import dataclasses
import functools
import os
import secrets
import stat
import tempfile
import time
import types
from dataclasses import dataclass, field

from . import _holdfast
from .errors import CorruptError, HoldfastError, InvalidError, NotFoundError, RetryError, UnsupportedError

#: Ray's versions that this was tried with: from, and below.
RAY_VERSIONS = ((2, 40), (3, 0))
#: Attempts at one split, or at one partition, before the job gives up.
ATTEMPTS_MAX = 6
#: Bytes of a split: enough that a mapper's start is little beside it, few enough that one is no loss.
SPLIT_BYTES = 64 << 20
#: Memory of a node, where nobody says.
MEMORY_BYTES = 1 << 30
#: A receiver that does not answer Ray for so long is lost.
ANSWER_S = 30
#: What is read of a split for the sample, and of how many splits.
SAMPLE_BYTES = 256 << 10
SAMPLE_SPLITS = 64
#: Records of the sample a partition.
SAMPLES_A_PARTITION = 300
READ_BYTES = 1 << 20
#: What :attr:`Stats.cpu` tells apart.
CPU = ("start", "sample", "map", "receive", "finish", "driver")


def connect(address):
    """Ray, connected: ``"local"`` starts one on this machine; a cluster that is connected already is used
    as it is. Returns the module, and whether this call connected it."""
    try:
        import ray
    except ImportError as e:
        raise UnsupportedError(
            "run a job on Ray: the package `ray` is not installed: pip install 'ray>=2.40,<3'"
        ) from e
    check_version(ray.__version__)
    if ray.is_initialized():
        return ray, False
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "warning"}
    if address == "local":
        # Nothing large is put there.
        ray.init(address="local", object_store_memory=128 << 20, **options)
    else:
        try:
            ray.init(address=address, **options)
        except (ConnectionError, ValueError, RuntimeError) as e:
            raise NotFoundError(f"connect to Ray at `{address}`: {e}: start it with `ray start --head`") from e
    return ray, True


def check_version(version):
    """Refuses versions of Ray that nobody has tried."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    low, high = RAY_VERSIONS
    if not low <= numbers < high:
        raise UnsupportedError(
            f"run a job on Ray {version}: versions from {low[0]}.{low[1]} and below {high[0]}.{high[1]} are "
            "supported: pip install 'ray>=2.40,<3' on every node"
        )


def alive(ray):
    """Ids and processors of the nodes that are there, in the order of their ids."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted((node["NodeID"], max(1, int(node["Resources"].get("CPU", 1)))) for node in nodes)


def on_node(ray, node, soft=False):
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=soft)


def check_package(ray, nodes):
    """Refuses a cluster whose nodes lack this package, or have another version."""

    # Within another function, it is sent as it is and not by the name of a module that may be missing.
    def version():
        try:
            import holdfast
        except ImportError:
            return None
        return holdfast.__version__

    probe = ray.remote(version)
    found = ray.get([probe.options(num_cpus=0, scheduling_strategy=on_node(ray, n)).remote() for n, _ in nodes])
    own = _holdfast.__version__
    for (node, _), version in zip(nodes, found):
        if version != own:
            there = f"has version {version}" if version else "does not have it"
            raise UnsupportedError(
                f"run a job with version {own} of the package `holdfast`: node {node[:8]} {there}: install the "
                "same wheel on every node, or send it: ray.init(runtime_env={'pip': ['holdfast-….whl']})"
            )


@contextlib.contextmanager
def cluster(address):
    """Ray and the nodes that are there, each of which has this package, for as long as a job takes."""
    ray, ours = connect(address)
    try:
        nodes = alive(ray)
        check_package(ray, nodes)
        yield ray, nodes
    finally:
        if ours:
            ray.shutdown()


class Callable(types.ModuleType):
    """A module that can be called: as its function `run`."""

    def __call__(self, inputs, output, **options):
        return self.run(inputs, output, **options)


def paths_of(inputs):
    """One path, or several, as text."""
    one = isinstance(inputs, (str, os.PathLike))
    return [os.fspath(path) for path in ([inputs] if one else inputs)]


@dataclass(frozen=True)
class Split:
    """Part of an input: the records that begin in bytes ``start`` to ``end``."""

    number: int
    path: str
    start: int
    end: int
    #: Of the file when the job was planned.
    stamp: tuple
    #: What else a reader of tables has to know: see :mod:`holdfast.tables`.
    detail: tuple = ()


@dataclass(frozen=True)
class Framing:
    """How an input is cut into records: `record` bytes each, `prefixed` by their length, or ended by
    `delimiter`."""

    record: int = None
    prefixed: bool = False
    delimiter: int = 10


def is_stored(path):
    """Whether a path is in Holdfast."""
    return path.startswith("holdfast://")


@functools.lru_cache(maxsize=None)
def client_of(node, secret):
    """This process's client of a node."""
    from .client import connect as connect_client

    return connect_client(node or None, secret=secret)


def stored_client(path, secret):
    """A client, and a path's name in Holdfast, of ``holdfast://NODE:PORT/PATH``."""
    node, _, name = path[len("holdfast://") :].partition("/")
    return client_of(node, secret), "/" + name


def open_stored(path, mode, secret):
    """A file of Holdfast."""
    client, name = stored_client(path, secret)
    return client.open(name, mode)


def stamp(path, secret):
    """Length, and what changes when somebody writes."""
    if is_stored(path):
        client, name = stored_client(path, secret)
        info = client.stat(name, follow=True)
        if not info.is_file():
            raise InvalidError(f"read `{path}`: it is no file: give files")
        return (info.size, info.mtime_ns, info.id)
    try:
        info = os.stat(path)
    except FileNotFoundError as e:
        raise NotFoundError(f"read `{path}`: it does not exist") from e
    if not stat.S_ISREG(info.st_mode):
        raise InvalidError(f"read `{path}`: it is no file: give files, which every node sees")
    return (info.st_size, info.st_mtime_ns, info.st_ino)


def splits_of(inputs, framing, split_bytes, secret=None):
    """Cuts inputs into splits, at the borders of records where these are known beforehand."""
    splits = []
    for path in inputs:
        mark = stamp(path, secret)
        size = mark[0]
        if framing.record and size % framing.record:
            raise InvalidError(
                f"read `{path}`: its {size} bytes are no whole number of records of {framing.record}: "
                "give the right length of a record"
            )
        step = max(1, split_bytes)
        if framing.record:
            step = max(1, step // framing.record) * framing.record
        if framing.prefixed:
            # Nothing says where a record begins.
            step = max(1, size)
        for start in range(0, size, step):
            splits.append(Split(len(splits), path, start, min(size, start + step), mark))
    return splits


def check_stamp(split, secret):
    if stamp(split.path, secret) != split.stamp:
        raise RetryError(f"read `{split.path}`: it changed since the job began: nobody may write to the input")


def chunks(file, split, framing):
    """The bytes of the records that begin in a split, from a file that is open, in pieces of any size. A
    last line without its end has none here either."""
    delimiter = None if framing.record or framing.prefixed else bytes([framing.delimiter])
    at = split.start
    skipping = delimiter is not None and at > 0
    if skipping:
        at -= 1
    file.seek(at)
    while at < split.end:
        piece = file.read(min(READ_BYTES, split.end - at))
        if not piece:
            raise RetryError(f"read `{split.path}`: it became shorter meanwhile")
        at += len(piece)
        if skipping:
            found = piece.find(delimiter)
            if found < 0:
                continue
            piece, skipping = piece[found + 1 :], False
        if piece:
            last = piece[-1:]
            yield piece
            if at >= split.end and delimiter is not None and last != delimiter:
                # The record that ends beyond.
                while True:
                    piece = file.read(64 << 10)
                    found = piece.find(delimiter)
                    if found >= 0 or not piece:
                        yield piece[: found + 1]
                        return
                    yield piece


def open_split(split, secret):
    return open_stored(split.path, "rb", secret) if is_stored(split.path) else open(split.path, "rb")


def sampled(splits):
    """Splits of which the fronts are a sample, spread over them."""
    return splits[:: max(1, len(splits) // SAMPLE_SPLITS)]


def front(split, framing, secret):
    """Whole records from a split's front, for the sample."""
    length = min(split.end - split.start, SAMPLE_BYTES)
    if framing.record:
        length -= length % framing.record
    short = dataclasses.replace(split, end=split.start + length)
    with open_split(split, secret) as file:
        return b"".join(chunks(file, short, framing))


class Receiver:
    """An actor: receives some partitions on one disk of one node, and finishes them."""

    def __init__(self, directory, token, partitions, connections_max):
        import ray

        #: Processor seconds of this process before it received anything, and those that finishing took.
        self._start_s, self._finish_s = time.process_time(), 0.0
        os.makedirs(directory, exist_ok=True)
        address = ray.util.get_node_ip_address()
        options = {"address": address, "token": token, "partitions": partitions}
        self._receiver = _holdfast.Receiver(directory, connections_max=connections_max, **options)

    def where(self):
        """Where senders connect, and this process, for whoever wants to end it."""
        return self._receiver.address, os.getpid()

    def sums(self, partitions):
        return [self._receiver.sum(p) for p in partitions]

    def finish(self, work, partition, offset):
        """Does a job's last phase for one partition."""
        began = time.process_time()
        done = work(self._receiver, partition, offset)
        self._finish_s += time.process_time() - began
        return done

    def usage(self):
        """Bytes received, written, read; processor seconds of this process by what they went into."""
        receive = time.process_time() - self._start_s - self._finish_s
        return self._receiver.moved(), {"start": self._start_s, "receive": receive, "finish": self._finish_s}


#: Whether this process has mapped before: what it took until then was its start.
_started = False


def map_split(work, split, targets, secret):
    """A task: one attempt at a split. Returns what it did, where, and its processor seconds as
    :meth:`Receiver.usage` does."""
    import ray

    global _started
    began = time.process_time()
    start, _started = (0.0 if _started else began), True
    check_stamp(split, secret)
    attempt = secrets.randbits(64)
    done = work(split, targets, attempt)
    check_stamp(split, secret)
    cpu = {"start": start, "map": time.process_time() - began}
    return done, ray.get_runtime_context().get_node_id(), cpu


@dataclass
class Slot:
    """A place for a receiver: its partitions stay, whoever receives them."""

    number: int
    partitions: list
    node: str = None
    directory: str = None
    actor: object = None
    address: str = None
    pid: int = None
    generation: int = 0
    #: Splits that this receiver has whole.
    have: set = field(default_factory=set)


@dataclass
class Stats:
    """What a job did; bytes are as the kernels counted them."""

    splits: int = 0
    partitions: int = 0
    nodes: int = 0
    records: int = 0
    bytes: int = 0
    #: To receivers, and of these to receivers on another node.
    sent_bytes: int = 0
    crossed_bytes: int = 0
    spool_written_bytes: int = 0
    spool_read_bytes: int = 0
    output_bytes: int = 0
    outgrown_partitions: int = 0
    #: Finished by the job that was resumed.
    resumed_partitions: int = 0
    lost_attempts: int = 0
    lost_receivers: int = 0
    #: Processor seconds by what they went into: `sample`, `map`, `receive`, `finish` and `driver`, and
    #: `start`, which is Python's, Ray's and this package's in each process of the job.
    cpu: dict = field(default_factory=lambda: dict.fromkeys(CPU, 0.0))
    #: All of them but `start`.
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    phases: dict = field(default_factory=dict)


class Exchange:
    """One job: maps every split, finishes every partition once, and does again what was lost."""

    def __init__(self, ray, nodes, splits, partitions, *, temp, mapping, finishing, token, secret=None,
                 observe=None, done=None, note=None):
        """`done` are partitions that an earlier job finished, with their sums; `note` is told of others."""
        self.ray, self.nodes, self.splits = ray, nodes, splits
        self.mapping, self.finishing, self.token, self.secret = mapping, finishing, token, secret
        self.observe = observe or (lambda *_: None)
        self.cpus = sum(cpus for _, cpus in nodes)
        directories = temp or [os.path.join(tempfile.gettempdir(), "holdfast-exchange")]
        places = [(node, directory) for node, _ in nodes for directory in directories][: max(1, partitions)]
        self.slots = [
            Slot(n, list(range(n, partitions, len(places))), node, directory)
            for n, (node, directory) in enumerate(places)
        ]
        self.done = {p: result for p, (result, _) in (done or {}).items()}
        self.sums = {p: tuple(sums) for p, (_, sums) in (done or {}).items()}
        self.note = note or (lambda *_: None)
        self.failures = {}
        self.stats = Stats(splits=len(splits), partitions=partitions, nodes=len(nodes), resumed_partitions=len(self.done))
        self.usage = {}
        self.pending = {}

    def start(self, slots):
        """Starts receivers, which have nothing yet."""
        actor = self.ray.remote(Receiver)
        for slot in slots:
            options = {"num_cpus": 0, "max_concurrency": 4, "max_restarts": 0}
            strategy = on_node(self.ray, slot.node)
            partitions = [p for p in slot.partitions if p not in self.done]
            # A mapper has a connection; those of attempts that were lost may still be noticed.
            connections = 4 * self.cpus + 8
            slot.actor = actor.options(scheduling_strategy=strategy, **options).remote(
                slot.directory, self.token, partitions, connections
            )
            slot.have = set()
            slot.generation += 1
        for slot in slots:
            try:
                slot.address, slot.pid = self.ray.get(slot.actor.where.remote(), timeout=2 * ANSWER_S)
            except self.ray.exceptions.RayError as e:
                cause = getattr(e, "cause", None)
                if isinstance(cause, HoldfastError):
                    raise cause from None
                raise RetryError(f"start a receiver on node {slot.node[:8]}: {e}") from e

    def replace(self, slot, why):
        """A receiver is lost: another one gets its partitions, on its node or on one that is left."""
        self.stats.lost_receivers += 1
        while True:
            self.count(("receiver", slot.number), why)
            self.ray.kill(slot.actor)
            left = [node for node, _ in alive(self.ray)]
            if not left:
                raise RetryError("run a job: no node of Ray is left")
            if slot.node not in left:
                held = {node: sum(other.node == node for other in self.slots) for node in left}
                slot.node = min(left, key=lambda node: (held[node], node))
            try:
                return self.start([slot])
            except RetryError as e:
                # Its new node may be the next one that is lost.
                why = e

    def count(self, what, why):
        self.failures[what] = self.failures.get(what, 0) + 1
        if self.failures[what] >= ATTEMPTS_MAX:
            raise RetryError(f"run a job: {what[0]} {what[1]} failed {ATTEMPTS_MAX} times, at last so: {why}")

    def is_there(self, slot):
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            self.ray.get(slot.actor.where.remote(), timeout=ANSWER_S)
            return True
        except (RayActorError, GetTimeoutError):
            return False

    def wanted(self, slot):
        return any(p not in self.done for p in slot.partitions)

    def run(self):
        """Does all of it. Returns what each partition's finish returned, in order."""
        began, began_cpu = time.monotonic(), time.process_time()
        self.start(self.slots)
        try:
            while len(self.done) < self.stats.partitions:
                mapping = self.submit_maps()
                if not mapping and "map" not in self.stats.phases:
                    self.stats.phases["map"] = time.monotonic() - began
                # Partitions are as long as they are, also where a receiver is lost later.
                if "map" in self.stats.phases and self.collect_sums():
                    self.submit_finishes()
                if self.pending:
                    for ref in self.ray.wait(list(self.pending), num_returns=1)[0]:
                        self.take(ref, self.pending.pop(ref))
            mapped = self.stats.phases.setdefault("map", 0.0)
            self.stats.phases["finish"] = time.monotonic() - began - mapped
            self.settle()
        finally:
            for slot in self.slots:
                if slot.actor is not None:
                    self.ray.kill(slot.actor)
        self.stats.seconds = time.monotonic() - began
        self.spent({"driver": time.process_time() - began_cpu})
        self.stats.cpu_seconds = sum(s for what, s in self.stats.cpu.items() if what != "start")
        return [self.done[p] for p in range(self.stats.partitions)]

    def submit_maps(self):
        """Starts attempts at splits that a receiver lacks; true if there are any to start or wait for."""
        flying = {what.number for kind, what, *_ in self.pending.values() if kind == "map"}
        task = self.ray.remote(map_split)
        missing = False
        for split in self.splits:
            if split.number in flying:
                missing = True
                continue
            slots = [slot for slot in self.slots if self.wanted(slot) and split.number not in slot.have]
            if not slots:
                continue
            missing = True
            if len(flying) >= self.cpus:
                break
            targets = [(slot.address, [p for p in slot.partitions if p not in self.done]) for slot in slots]
            options = task.options(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
            ref = options.remote(self.mapping, split, targets, self.secret)
            self.pending[ref] = ("map", split, [(slot, slot.generation) for slot in slots])
            flying.add(split.number)
            self.observe("map", split, self)
        return missing

    def collect_sums(self):
        """The sums of all partitions, once all is mapped."""
        from ray.exceptions import RayActorError

        for slot in self.slots:
            missing = [p for p in slot.partitions if p not in self.sums]
            if missing and len(slot.have) < len(self.splits):
                return False
            if missing:
                try:
                    self.sums.update(zip(missing, self.ray.get(slot.actor.sums.remote(missing))))
                except RayActorError as e:
                    self.replace(slot, e)
                    return False
        return True

    def submit_finishes(self):
        flying = {(slot.number, partition) for kind, slot, partition, *_ in self.pending.values() if kind == "finish"}
        offsets, at = {}, 0
        for p in range(self.stats.partitions):
            offsets[p] = at
            at += self.sums[p][1]
        for slot in self.slots:
            left = [p for p in slot.partitions if p not in self.done]
            if len(slot.have) < len(self.splits):
                continue
            # One at a time: the memory of a partition is a receiver's whole share.
            if left and not any(number == slot.number for number, _ in flying):
                ref = slot.actor.finish.remote(self.finishing, left[0], offsets[left[0]])
                self.pending[ref] = ("finish", slot, left[0], slot.generation)
                self.observe("finish", left[0], self)

    def take(self, ref, what):
        from ray.exceptions import RayActorError, RayTaskError

        kind = what[0]
        try:
            result = self.ray.get(ref)
        except RayTaskError as e:
            # The job's own fault: trying again would end the same.
            raise e.cause from None
        except RayActorError as e:
            _, slot, _, generation = what
            if slot.generation == generation:
                self.replace(slot, e)
            return
        except self.ray.exceptions.RayError as e:
            # The worker or its node is gone: the split is mapped again.
            self.stats.lost_attempts += 1
            self.count(("split", what[1].number), e)
            return
        if kind == "finish":
            _, slot, partition, _ = what
            self.note(partition, result, self.sums[partition])
            self.done[partition] = result
            return
        _, split, slots = what
        (mapped, lost, sent), node, cpu = result
        self.stats.sent_bytes += sum(sent)
        self.stats.crossed_bytes += sum(n for (slot, _), n in zip(slots, sent) if slot.node != node)
        self.spent(cpu)
        self.usage[split.number] = mapped
        for (slot, generation), error in zip(slots, lost):
            if slot.generation != generation:
                continue
            if error is None:
                slot.have.add(split.number)
                continue
            self.stats.lost_attempts += 1
            self.count(("split", split.number), error)
            if not self.is_there(slot):
                self.replace(slot, error)

    def settle(self):
        """What came in is what went out, or nothing is given out."""
        total, came = total_of(self.usage.values()), total_of(self.sums.values())
        # Where all partitions were finished before, nothing is mapped.
        if total != came and self.stats.resumed_partitions < self.stats.partitions:
            raise CorruptError(f"run a job: {total[0]} records of {total[1]} bytes were mapped, {came[0]} of {came[1]} arrived")
        self.stats.records, self.stats.bytes = came[:2]
        for slot in self.slots:
            try:
                (_, written, read), cpu = self.ray.get(slot.actor.usage.remote(), timeout=ANSWER_S)
            except self.ray.exceptions.RayError:
                continue
            self.stats.spool_written_bytes += written
            self.stats.spool_read_bytes += read
            self.spent(cpu)

    def spent(self, cpu):
        for what, seconds in cpu.items():
            self.stats.cpu[what] += seconds


def total_of(sums):
    """Records, bytes and hash of all together, of each one's; hashes are added in 64 bits."""
    records, length, hashes = [sum(column) for column in zip(*sums)] or (0, 0, 0)
    return records, length, hashes % 2**64


def partitions_for(splits, memory, nodes, receivers_a_node):
    """How many partitions, and the memory of a mapper and of a receiver's sort, of `memory` bytes a node."""
    total_bytes = sum(split.end - split.start for split in splits)
    cpus = max(cpus for _, cpus in nodes)
    mapper = memory // 2 // cpus
    # What arrives takes a block a connection; the rest of the other half sorts, after the mapping.
    sorter = memory // 2 // receivers_a_node
    # Records take their entries, and partitions differ.
    wanted = max(len(nodes) * receivers_a_node, -(-total_bytes * 3 // max(1, sorter)))
    most = min(_holdfast.PARTITIONS_MAX // 2, mapper // _holdfast.BLOCK_BYTES_MIN // 2)
    if most < 1:
        raise InvalidError(f"run a job with {memory} bytes of memory a node: give at least {4 * cpus * _holdfast.BLOCK_BYTES_MIN}")
    return min(wanted, most), mapper, sorter
