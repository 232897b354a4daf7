"""A job over many machines: placement on Ray, splits and attempts, receivers that are lost. Used by
:mod:`holdfast.sort` and :mod:`holdfast.mapreduce`; docs/mapreduce.md says how it works.

Ray places and notices what is lost; no byte of a record goes through its object store.
"""

import collections
import contextlib
import dataclasses
import errno
import importlib
import os
import secrets
import tempfile
import time
import types
from dataclasses import dataclass, field

from . import _holdfast, sources
from .errors import CorruptError, HoldfastError, InvalidError, RetryError
from .ray_cluster import answering, on_node, sendable
from .timeline import Task, Timeline

#: Attempts at one split, or at one partition, before the job gives up.
ATTEMPTS_MAX = 6
#: Memory of a node, where nobody says.
MEMORY_BYTES = 1 << 30
#: A receiver that does not answer Ray for so long is lost.
ANSWER_S = 30
#: Before work is done again of which somebody was away; twice as long each time.
AGAIN_S = 0.1
#: Records of the sample a partition.
SAMPLES_A_PARTITION = 300
#: Between two looks at how far a job is, and two samples of each receiver.
LOOK_S = 0.2
SAMPLE_S = 1.0
#: From so many bytes on, whoever looks on is told the share of what the disks can do, by so many each way of each.
PACE_FROM_BYTES = 2 << 30
PACE_BYTES = 64 << 20
#: What :attr:`Stats.cpu` tells apart.
CPU = ("start", "sample", "map", "receive", "finish", "driver")


def check_bytes(**given):
    """Refuses sizes that are none, before anything begins."""
    for name, size in given.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidError(f"run a job with {name}={size!r:.60}: give bytes, a whole number from 1 on")


class Callable(types.ModuleType):
    """A module that can be called: as its function `run`."""

    def __call__(self, inputs, output, **options):
        return self.run(inputs, output, **options)

    def __reduce__(self):
        # A job's function may name it, and is sent with what it names. Other modules are sent by name, too.
        return importlib.import_module, (self.__name__,)


class Receiver:
    """An actor: receives some partitions on one disk of one node, and finishes them."""

    def __init__(self):
        #: Processor seconds of this process before it received anything, and those that finishing took.
        self._start_s, self._finish_s = time.process_time(), 0.0
        self._directory = self._receiver = None

    def begin(self, directory, token, partitions, connections_max, kept_bytes):
        """Listens. No part of the constructor, of which Ray would tell an error as a page of text."""
        import ray

        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as e:
            if e.errno == errno.ENOSPC:
                raise sources.unwritten(directory, e) from e
            raise InvalidError(
                f"receive records in `{directory}` on node {os.uname().nodename}: {e.strerror}: give directories as "
                "`temp` that every node can make and write to"
            ) from e
        self._directory = directory
        address = ray.util.get_node_ip_address()
        options = {"address": address, "token": token, "partitions": partitions}
        options = {**options, "connections_max": connections_max, "kept_bytes": kept_bytes}
        self._receiver = _holdfast.Receiver(directory, **options)
        return self.where()

    def where(self):
        """Where senders connect, and this process, for whoever wants to end it."""
        return self._receiver.address, os.getpid()

    def pace(self, length):
        """Bytes a second that its disk reads and writes together."""
        return _holdfast.disk_pace(self._directory, length)

    def sums(self, partitions):
        return [self._receiver.sum(p) for p in partitions]

    def finish(self, work, partition, offset):
        """Does a job's last phase for one partition."""
        began = time.process_time()
        done = work(self._receiver, partition, offset)
        self._receiver.forget(partition)
        self._finish_s += time.process_time() - began
        return done

    def sample(self):
        """For the picture of the job: bytes received, written and read, and resident memory."""
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return (*self._receiver.moved(), resident)

    def usage(self):
        """Bytes received, written, read; processor seconds of this process by what they went into."""
        receive = time.process_time() - self._start_s - self._finish_s
        return self._receiver.moved(), {"start": self._start_s, "receive": receive, "finish": self._finish_s}


#: Whether this process has mapped before: what it took until then was its start.
_started = False


def map_split(work, split, targets, access):
    """A task: one attempt at a split. Returns what it did, where, the seconds that it took, and its processor
    seconds as :meth:`Receiver.usage` does."""
    import ray

    global _started
    began_s, began = time.monotonic(), time.process_time()
    start, _started = (0.0 if _started else began), True
    sources.check_stamp(split, access)
    attempt = secrets.randbits(64)
    done = work(split, targets, attempt)
    sources.check_stamp(split, access)
    cpu = {"start": start, "map": time.process_time() - began}
    return done, ray.get_runtime_context().get_node_id(), time.monotonic() - began_s, cpu


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
    #: What each node did when.
    timeline: Timeline = field(default_factory=Timeline, repr=False)

    def picture(self):
        """The job as SVG: tasks, rates and memory of each node over time."""
        told = f"{self.bytes} bytes on {self.nodes} nodes in {self.seconds:.1f} s"
        return self.timeline.svg(f"{told}; lost {self.lost_attempts} attempts and {self.lost_receivers} receivers")

    def to_json(self):
        """All figures, by name, without the timeline."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "timeline"}


class Exchange:
    """One job: maps every split, finishes every partition once, and does again what was lost."""

    def __init__(self, ray, nodes, splits, partitions, *, temp, kept, mapping, finishing, token, access,
                 observe=None, done=None, note=None, length_of, bar):
        """`done` are partitions that an earlier job finished, with their sums; `note` is told of others, and
        `bar` of how far it is. `length_of` a finish's result are the bytes that it wrote, or None. `kept` is a receiver's memory for what
        arrives, in bytes."""
        self.ray, self.nodes, self.splits = ray, nodes, splits
        self.mapping, self.finishing, self.token, self.access = *sendable(ray, mapping, finishing), token, access
        #: One for the whole job: Ray sends each that is made to all workers.
        self.task = ray.remote(map_split)
        self.input_bytes = sum(split.end - split.start for split in splits)
        #: Splits that nobody maps and that a receiver may lack, by their numbers.
        self.todo = {}
        self.observe = observe or (lambda *_: None)
        self.kept = kept
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
        #: Until when what is done again is left alone, by what it is.
        self.rests = {}
        self.stats = Stats(splits=len(splits), partitions=partitions, nodes=len(nodes), resumed_partitions=len(self.done))
        self.usage = {}
        self.pending = {}
        #: Nodes that took no connection when something was lost.
        self.gone = set()
        self.length_of, self.bar, self.began = length_of, bar, time.monotonic()
        self.mapped_bytes = 0
        #: Bytes a second of all receivers' disks, if that was asked; what they wrote and read, as of late.
        self.pace, self.spooled = None, {}
        #: Samples that were asked of receivers: when, and of which.
        self.asked, self.sampled_at = {}, 0.0

    def start(self, slots):
        """Starts receivers, which have nothing yet."""
        actor, begun = self.ray.remote(Receiver), []
        for slot in slots:
            options = {"num_cpus": 0, "max_concurrency": 4, "max_restarts": 0}
            strategy = on_node(self.ray, slot.node)
            partitions = [p for p in slot.partitions if p not in self.done]
            # A mapper has a connection; those of attempts that were lost may still be noticed.
            connections = 4 * self.cpus + 8
            slot.actor = actor.options(scheduling_strategy=strategy, **options).remote()
            begun.append(slot.actor.begin.remote(slot.directory, self.token, partitions, connections, self.kept))
            slot.have = set()
            slot.generation += 1
        flying = self.mapped_now()
        self.todo = {split.number: split for split in self.splits if split.number not in flying}
        for slot, ref in zip(slots, begun):
            try:
                slot.address, slot.pid = self.ray.get(ref, timeout=2 * ANSWER_S)
            except self.ray.exceptions.RayError as e:
                cause = getattr(e, "cause", None)
                if isinstance(cause, HoldfastError):
                    raise cause from None
                raise RetryError(f"start a receiver on node {slot.node[:8]}: {e}") from e

    def replace(self, slot, why):
        """A receiver is lost: another one gets its partitions, on its node or on one that is left."""
        self.stats.lost_receivers += 1
        self.stats.timeline.lost.append((self.now(), f"receiver {slot.number} on node {slot.node[:8]}: {why}"))
        while True:
            self.count(("receiver", slot.number), why)
            self.ray.kill(slot.actor)
            left = self.nodes_left()
            if not left:
                raise RetryError("run a job: no node of Ray is left")
            if slot.node not in left:
                held = {node: sum(other.node == node for other in self.slots) for node in left}
                slot.node = min(left, key=lambda node: (held[node], node))
            try:
                return self.start([slot])
            except HoldfastError as e:
                # Its new node may be the next one that is lost, or has no room: what others have finished is kept.
                why = e

    def nodes_left(self):
        """Nodes where something can be started; asked where something was lost. What waits for another one to map
        is given up, as Ray would have us wait until it notices."""
        left = answering(self.ray)
        self.gone = {node for node, _ in self.nodes if node not in left}
        for ref, what in list(self.pending.items()):
            if what[0] == "map" and what[-1] in self.gone:
                del self.pending[ref]
                self.lose(what[1], f"node {what[-1][:8]} is gone")
        return left

    def node_to_map(self):
        """The node with the most processors to spare, if any has some."""
        flying = collections.Counter(what[-1] for what in self.pending.values() if what[0] == "map")
        spare = [(cpus - flying[node], node) for node, cpus in self.nodes if node not in self.gone]
        free, node = max(spare, default=(0, None))
        return node if free > 0 else None

    def count(self, what, why):
        self.failures[what] = self.failures.get(what, 0) + 1
        if self.failures[what] >= ATTEMPTS_MAX:
            raise RetryError(f"run a job: {what[0]} {what[1]} failed {ATTEMPTS_MAX} times, at last so: {why}")

    def lose(self, split, why):
        """An attempt at a split is lost, or its part for one receiver: it is mapped again."""
        self.todo[split.number] = split
        self.stats.lost_attempts += 1
        self.stats.timeline.lost.append((self.now(), f"split {split.number}: {why}"))
        self.count(("split", split.number), why)

    def again(self, what, why):
        """Somebody whom a task needs is away, as a node of Holdfast that restarts: its work is done again, each time
        after a longer while."""
        if what[0] == "map":
            name = ("split", what[1].number)
            self.lose(what[1], why)
        else:
            # What its receiver has got is still there.
            name = ("partition", what[2])
            self.stats.lost_attempts += 1
            self.stats.timeline.lost.append((self.now(), f"partition {what[2]}: {why}"))
            self.count(name, why)
        self.rests[name] = self.now() + AGAIN_S * 2 ** self.failures[name]

    def rests_still(self, *name):
        return self.now() < self.rests.get(name, 0.0)

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
        self.began = began
        self.start(self.slots)
        try:
            self.ask_pace()
            while len(self.done) < self.stats.partitions:
                mapping = self.submit_maps()
                if not mapping and "map" not in self.stats.phases:
                    self.stats.phases["map"] = time.monotonic() - began
                # Partitions are as long as they are, also where a receiver is lost later.
                if "map" in self.stats.phases and self.collect_sums():
                    self.submit_finishes()
                if not self.pending:
                    # All that is left rests.
                    time.sleep(AGAIN_S)
                else:
                    for ref in self.ray.wait(list(self.pending), num_returns=1, timeout=LOOK_S)[0]:
                        self.take(ref, self.pending.pop(ref))
                self.look()
            mapped = self.stats.phases.setdefault("map", 0.0)
            self.stats.phases["finish"] = time.monotonic() - began - mapped
            self.settle()
        finally:
            self.end()
        self.stats.seconds = self.stats.timeline.end = time.monotonic() - began
        self.spent({"driver": time.process_time() - began_cpu})
        self.stats.cpu_seconds = sum(s for what, s in self.stats.cpu.items() if what != "start")
        return [self.done[p] for p in range(self.stats.partitions)]

    def end(self):
        """Ends what still runs: nobody waits for it, and a cluster has others."""
        for slot in self.slots:
            if slot.actor is not None:
                self.ray.kill(slot.actor)
        for ref, what in self.pending.items():
            if what[0] == "map":
                with contextlib.suppress(self.ray.exceptions.RayError):
                    self.ray.cancel(ref, force=True)

    def ask_pace(self):
        """What the disks can do, all at once, where somebody sees what is made of it."""
        if not self.bar.is_seen or self.input_bytes < PACE_FROM_BYTES:
            return
        self.bar.tell("ask the disks")
        asked = [slot.actor.pace.remote(PACE_BYTES) for slot in self.slots]
        # A disk that cannot tell may do all the same, and an actor that is lost is noticed elsewhere.
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.pace = sum(self.ray.get(asked, timeout=ANSWER_S))

    def now(self):
        return time.monotonic() - self.began

    def look(self):
        """Samples receivers, and tells the bar. Waits for nobody."""
        if self.asked:
            for ref in self.ray.wait(list(self.asked), num_returns=len(self.asked), timeout=0)[0]:
                slot, generation, node, at = self.asked.pop(ref)
                # One that is lost is noticed elsewhere.
                with contextlib.suppress(self.ray.exceptions.RayError):
                    sample = self.ray.get(ref)
                    self.stats.timeline.sampled((slot.number, generation), node, at, *sample)
                    self.spooled[slot.number] = sample[1] + sample[2]
        now = self.now()
        if now >= self.sampled_at + SAMPLE_S:
            self.sampled_at = now
            waiting = {(slot.number, generation) for slot, generation, *_ in self.asked.values()}
            for slot in self.slots:
                if (slot.number, slot.generation) not in waiting:
                    self.asked[slot.actor.sample.remote()] = (slot, slot.generation, slot.node, now)
        self.bar.tell(*self.how_far())

    def how_far(self):
        """The phase, bytes of it that are done, and all that it has; and what was lost, if anything."""
        lost = self.stats.lost_attempts + self.stats.lost_receivers
        note = f", {lost} lost" if lost else ""
        if self.pace:
            # Each byte that is mapped was read, and each that is finished written.
            moved = self.mapped_bytes + sum(self.spooled.values()) + sum(self.sums[p][1] for p in self.done)
            note = f", {moved / max(self.now(), 0.1) / self.pace:.0%} of the disks' pace{note}"
        if "map" not in self.stats.phases:
            return "1 of 2: map", self.mapped_bytes, self.input_bytes, note
        done = sum(self.sums[p][1] for p in self.done)
        return "2 of 2: finish", done, sum(length for _, length, _ in self.sums.values()), note

    def mapped_now(self):
        """Numbers of the splits that somebody maps."""
        return {what[1].number for what in self.pending.values() if what[0] == "map"}

    def submit_maps(self):
        """Starts attempts at splits that a receiver lacks; true if there are any to start or wait for."""
        wanted = [slot for slot in self.slots if self.wanted(slot)]
        for split in list(self.todo.values()):
            if self.rests_still("split", split.number):
                continue
            slots = [slot for slot in wanted if split.number not in slot.have]
            if slots:
                node = self.node_to_map()
                if node is None:
                    return True
                self.submit_map(split, slots, node)
            del self.todo[split.number]
        return bool(self.todo or self.mapped_now())

    def submit_map(self, split, slots, node):
        targets = [(slot.address, [p for p in slot.partitions if p not in self.done]) for slot in slots]
        options = self.task.options(num_cpus=1, max_retries=0, scheduling_strategy=on_node(self.ray, node))
        ref = options.remote(self.mapping, split, targets, self.access)
        self.pending[ref] = ("map", split, [(slot, slot.generation) for slot in slots], node)
        self.observe("map", split, self)

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
            left = [p for p in slot.partitions if p not in self.done and not self.rests_still("partition", p)]
            if len(slot.have) < len(self.splits):
                continue
            # One at a time: the memory of a partition is a receiver's whole share.
            if left and not any(number == slot.number for number, _ in flying):
                ref = slot.actor.finish.remote(self.finishing, left[0], offsets[left[0]])
                self.pending[ref] = ("finish", slot, left[0], slot.generation, self.now())
                self.observe("finish", left[0], self)

    def take(self, ref, what):
        from ray.exceptions import RayActorError, RayTaskError

        kind = what[0]
        if kind == "map":
            # Until it shows that all have it.
            self.todo[what[1].number] = what[1]
        try:
            result = self.ray.get(ref)
        except RayTaskError as e:
            cause = self.fault(e.cause)
            if isinstance(cause, RetryError) and not isinstance(cause, sources.ChangedError):
                return self.again(what, cause)
            # The job's own fault: trying again would end the same.
            raise cause from None
        except RayActorError as e:
            _, slot, _, generation, _ = what
            if slot.generation == generation:
                self.replace(slot, e)
            return
        except self.ray.exceptions.RayError as e:
            # The worker or its node is gone: the split is mapped again.
            self.lose(what[1], e)
            self.nodes_left()
            return
        if kind == "finish":
            _, slot, partition, _, began = what
            self.note(partition, result, self.sums[partition])
            self.done[partition] = result
            name, length, written = f"partition {partition}", self.sums[partition][1], self.length_of(result) or 0
            self.stats.timeline.finished.append(Task(slot.node, name, began, self.now(), length, written=written))
            return
        _, split, slots, _ = what
        (mapped, lost, sent), node, took_s, cpu = result
        length, now = split.end - split.start, self.now()
        self.stats.timeline.mapped.append(Task(node, f"split {split.number}", now - took_s, now, length, read=length))
        if split.number not in self.usage:
            self.mapped_bytes += length
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
            self.lose(split, error)
            if not self.is_there(slot):
                self.replace(slot, error)

    def fault(self, cause):
        """The error that a task ended with; where Ray could not load what it was to do, in a sentence."""
        if not isinstance(cause, self.ray.exceptions.RaySystemError):
            return cause
        why = str(cause).partition("\n")[0].removeprefix("System error: ")
        return InvalidError(
            f"run a job: load its functions on a node: {why}: what they use of modules must be installed on every node, or "
            "sent: ray.init(runtime_env={'py_modules': [...]})"
        )

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


@dataclass(frozen=True)
class Plan:
    """What a job's memory is for. In bytes: a mapper's, and of each receiver what it keeps of what arrives and what
    sorts a partition."""

    partitions: int
    mapper: int
    kept: int
    sorter: int


def plan(splits, memory, nodes, receivers_a_node):
    """The plan for `memory` bytes a node."""
    total_bytes = sum(split.end - split.start for split in splits)
    cpus = max(cpus for _, cpus in nodes)
    mapper = memory // 2 // cpus
    # What arrives takes a block a connection; the rest of the other half keeps and sorts.
    receiver = memory // 2 // receivers_a_node
    kept = receiver // 4
    sorter = receiver - kept
    # Records take their entries, and partitions differ.
    wanted = max(len(nodes) * receivers_a_node, -(-total_bytes * 3 // max(1, sorter)))
    most = min(_holdfast.PARTITIONS_MAX // 2, mapper // _holdfast.BLOCK_BYTES_MIN // 2)
    if most < 1:
        raise InvalidError(f"run a job with {memory} bytes of memory a node: give at least {4 * cpus * _holdfast.BLOCK_BYTES_MIN}")
    return Plan(min(wanted, most), mapper, kept, sorter)
