"""Jobs over many machines with the real Ray: its own cluster utility starts 1, 2 and 4 nodes here, and
workers, receivers and nodes are killed at drawn moments. Skipped where Ray is not installed (`make
python-ray` installs it)."""

import collections
import os
import pathlib
import random
import signal
import subprocess
import sys

import pytest

import holdfast
from holdfast import errors, ray_cluster

ray = pytest.importorskip("ray", reason="jobs over many machines are not tried: `make python-ray` installs Ray")
EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
MEMORY = 64 << 20


def start(nodes):
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    for _ in range(nodes - 1):
        cluster.add_node(**options)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    return cluster


def stop(cluster):
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def cluster():
    cluster = start(2)
    yield cluster
    stop(cluster)


def lines(seed, count):
    draw = random.Random(seed)
    words = [f"word{draw.randrange(5000)}" for _ in range(500)]
    return b"".join(
        b" ".join(draw.choice(words).encode() for _ in range(draw.randrange(12))) + b"\n" for _ in range(count)
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(lines(1, 60_000) + b"a last line without its end")
    return path


def gnu_sort(path, *options):
    command = ["sort", *options, str(path)]
    return subprocess.run(command, env={"LC_ALL": "C", "PATH": os.environ["PATH"]}, stdout=-1, check=True).stdout


def parts(directory):
    return b"".join(path.read_bytes() for path in sorted(directory.iterdir()))


def sort(path, output, **options):
    options = {"ray": "auto", "memory": MEMORY, "split_bytes": 300_000, "temp": [str(output) + ".tmp"], **options}
    return holdfast.sort([path], output, **options)


def test_lines_are_sorted_as_gnu_sort_does(cluster, text, tmp_path):
    from holdfast.sort import Order

    stats = sort(text, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == gnu_sort(text)
    assert stats.splits > 5 and stats.nodes == 2 and stats.partitions >= 2
    # Every role took something, and what a process took before it worked is told apart.
    assert all(seconds > 0 for seconds in stats.cpu.values()), stats.cpu
    assert stats.cpu_seconds == pytest.approx(sum(stats.cpu.values()) - stats.cpu["start"])
    sort(text, tmp_path / "parts", parts=True, order=Order(keys=("2,2r", "1,1"), stable=True))
    assert parts(tmp_path / "parts") == gnu_sort(text, "-s", "-k2,2r", "-k1,1")


def test_records_and_prefixed_records(cluster, tmp_path):
    from holdfast.sort import Order

    data = random.Random(2).randbytes(100_000)
    (tmp_path / "in").write_bytes(data)
    sort(tmp_path / "in", tmp_path / "out", order=Order(record=10, start=2, end=6), split_bytes=7777)
    records = [data[at : at + 10] for at in range(0, len(data), 10)]
    assert (tmp_path / "out").read_bytes() == b"".join(sorted(records, key=lambda record: record[2:6]))
    bodies = [data[at : at + at % 50] for at in range(0, 50_000, 37)]
    (tmp_path / "in2").write_bytes(b"".join(len(body).to_bytes(4, "big") + body for body in bodies))
    sort(tmp_path / "in2", tmp_path / "out2", order=Order(prefixed=True))
    assert (tmp_path / "out2").read_bytes() == b"".join(len(b).to_bytes(4, "big") + b for b in sorted(bodies))


@pytest.mark.parametrize(("uniform", "first", "letters"), [("bytes", 0, 256), ("ascii", 32, 95)])
def test_uniform_keys_need_no_sample(cluster, tmp_path, monkeypatch, uniform, first, letters):
    from holdfast.sort import Order

    draw = random.Random(7)
    records = [bytes(first + draw.randrange(letters) for _ in range(10)) for _ in range(20_000)]
    (tmp_path / "in").write_bytes(b"".join(records))
    order = Order(record=10, start=2, end=8)
    # Two receivers a node.
    options = {"uniform": uniform, "order": order, "parts": True, "temp": [str(tmp_path / "a"), str(tmp_path / "b")]}
    monkeypatch.setattr("holdfast.sort.sample", None)
    stats = sort(tmp_path / "in", tmp_path / "out", **options)
    assert parts(tmp_path / "out") == b"".join(sorted(records, key=lambda record: record[2:8]))
    sizes = [path.stat().st_size for path in (tmp_path / "out").iterdir()]
    assert len(sizes) == stats.partitions > 3
    assert max(sizes) < 1.2 * sum(sizes) / len(sizes)
    # What is said of the keys is not true: it is sorted all the same.
    alike = [record[:2] + b"none" + record[6:] for record in records]
    (tmp_path / "in").write_bytes(b"".join(alike))
    sort(tmp_path / "in", tmp_path / "alike", **options)
    assert parts(tmp_path / "alike") == b"".join(sorted(alike, key=lambda record: record[2:8]))


def words(line):
    for word in line.split():
        yield word.decode(), 1


def total(_, counts):
    return sum(counts)


def counted(path):
    return collections.Counter(path.read_bytes().decode().split())


def count(text, output, **options):
    # By value: this module is not where Ray's workers look.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    options = {"ray": "auto", "memory": MEMORY, "split_bytes": 300_000, "temp": [str(output) + ".tmp"], **options}
    return holdfast.mapreduce([text], output, **{"map": words, "reduce": total, **options})


def table(directory):
    return dict(line.split("\t") for line in parts(directory).decode().splitlines())


@pytest.mark.parametrize("combine", [None, total])
def test_words_are_counted(cluster, text, tmp_path, combine):
    stats = count(text, tmp_path / "out", combine=combine)
    assert table(tmp_path / "out") == {word: str(n) for word, n in counted(text).items()}
    # What is combined is not sent.
    words = sum(counted(text).values())
    assert stats.records < words / 5 if combine else stats.records == words


def test_keys_of_every_kind_come_in_order_and_once(cluster, tmp_path):
    (tmp_path / "in").write_bytes(b"".join(b"%d\n" % n for n in range(3000)))
    keys = [-5, 0, 7, 1 << 40, b"", b"\0", b"\0\xff", b"a", "", "a", "\0b", "é"]

    def pick(line):
        # One key has a third of all records.
        n = int(line)
        return [(keys[n % len(keys)], n), (7, n)] if n % 2 else [(keys[n % len(keys)], n)]

    def show(key, values):
        return f"{key!r} {sorted(values)}"

    count(tmp_path / "in", tmp_path / "out", map=pick, reduce=show, split_bytes=2000)
    model = collections.defaultdict(list)
    for n in range(3000):
        for key, value in pick(b"%d" % n):
            model[exchange_key(key)].append(value)
    expected = [f"{show(key, values)}" for (_, key), values in sorted(model.items())]
    assert parts(tmp_path / "out").decode().splitlines() == expected


def test_a_key_with_half_of_the_values_is_taken_one_by_one(cluster, tmp_path):
    draw = random.Random(7)
    rows = [("hot" if n % 2 else f"k{draw.randrange(3000)}", n) for n in range(200_000)]
    (tmp_path / "in").write_text("".join(f"{key} {n:060}\n" for key, n in rows))

    def pair(line):
        key, _, value = line.partition(b" ")
        yield key.decode(), value

    def first_and_count(key, values):
        # The sums of a partition are those of all that it has, also of what nobody takes.
        return f"{key} {int(next(values))} {0 if key == 'k7' else sum(1 for _ in values)}"

    memory = 4 << 20
    stats = count(tmp_path / "in", tmp_path / "out", map=pair, reduce=first_and_count, memory=memory)
    groups = collections.defaultdict(list)
    for key, n in rows:
        groups[key].append(n)
    expected = [f"{key} {groups[key][0]} {0 if key == 'k7' else len(groups[key]) - 1}" for key in sorted(groups)]
    assert parts(tmp_path / "out").decode().splitlines() == expected
    # Many times the memory that it is sorted in.
    assert max(task.bytes for task in stats.timeline.finished) > 3 * (memory // 2)


def exchange_key(key):
    from holdfast.mapreduce import key_bytes

    return key_bytes(key), key


def at_a_drawn_moment(seed, harm):
    """Harms a job once, at a drawn step of a drawn phase, and again in the other one."""
    draw = random.Random(seed)
    left = {"map": draw.randrange(2, 8), "finish": draw.randrange(0, 3)}

    def observe(kind, _, job):
        left[kind] -= 1
        if left[kind] == -1:
            harm(draw, job)

    return observe


def kill_a_receiver(draw, job):
    os.kill(draw.choice(job.slots).pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", range(3))
def test_a_receiver_that_is_killed_costs_its_own_partitions(cluster, text, tmp_path, seed):
    stats = sort(text, tmp_path / "out", observe=at_a_drawn_moment(seed, kill_a_receiver))
    assert (tmp_path / "out").read_bytes() == gnu_sort(text)
    assert stats.lost_receivers >= 1


@pytest.mark.parametrize("seed", range(2))
def test_a_mapper_that_dies_is_another_attempt(cluster, text, tmp_path, seed):
    draw = random.Random(seed)
    armed, at = tmp_path / "armed", draw.randrange(2000)
    calls = []

    def dies_once(line):
        calls.append(line)
        if len(calls) > at and armed.exists():
            armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return words(line)

    def arm(kind, split, _):
        # After the sample, which is taken in this process.
        if split.number == 1:
            armed.touch()

    stats = count(text, tmp_path / "out", map=dies_once, observe=lambda kind, *a: kind == "map" and arm(kind, *a))
    assert not armed.exists() and stats.lost_attempts >= 1
    assert table(tmp_path / "out") == {word: str(n) for word, n in counted(text).items()}


def fails(expected, *fragments):
    return pytest.raises(expected, match=".*".join(fragments))


def test_functions_that_fail_name_the_record_and_leave_no_output(cluster, text, tmp_path):
    from holdfast.mapreduce import JobError

    def raises(line):
        if b"last line" in line:
            raise ValueError("what is this")
        return []

    out = tmp_path / "out"
    with fails(JobError, "map record ", "a last line", "ValueError: what is this"):
        count(text, out, map=raises)
    with fails(JobError, "map record 1 of ", "answer pairs of key and value"):
        count(text, out, map=lambda line: ["no pair"])
    with fails(JobError, "the key is null"):
        count(text, out, map=lambda line: [(None, 1)])
    with fails(JobError, "the key is float"):
        count(text, out, map=lambda line: [(1.5, 1)])
    with fails(JobError, "send a value of object"):
        count(text, out, map=lambda line: [("k", object())])
    with fails(JobError, "reduce key 'k'", "ZeroDivisionError"):
        count(text, out, map=lambda line: [("k", 1)], reduce=lambda key, values: 1 // 0)
    # Its own file, and no fault of the output's.
    with fails(JobError, "reduce key 'k'", "FileNotFoundError"):
        count(text, out, map=lambda line: [("k", 1)], reduce=lambda key, values: open("/nowhere/at/all"))
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".tmp"]
    assert text.exists()


def test_exit_in_a_function_is_the_functions_error(cluster, text, tmp_path):
    """`sys.exit` in a `map` ended the driver, which calls it for the sample, without a word; in a worker it was
    a lost one, and tried six times."""
    from holdfast.mapreduce import JobError

    driver = os.getpid()

    def in_a_worker(line):
        if os.getpid() != driver:
            sys.exit("enough")
        return [("k", 1)]

    out, one = tmp_path / "out", {"map": lambda line: [("k", 1)]}
    with fails(JobError, "map record 1 of ", "SystemExit: it called exit with 3"):
        count(text, out, map=lambda line: sys.exit(3))
    begun = []
    with fails(JobError, "map record ", "exit with 'enough'"):
        count(text, out, map=in_a_worker, observe=lambda kind, what, _: begun.append((kind, what)))
    assert len(begun) == len(set(begun)) > 1
    with fails(JobError, "reduce key 'k'", "exit with None"):
        count(text, out, **one, reduce=lambda key, values: sys.exit())
    with fails(JobError, "combine key 'k'", "exit with 1"):
        count(text, out, **one, combine=lambda key, values: sys.exit(1))
    assert not list(tmp_path.glob("*out"))


def test_what_a_reduce_answers_is_written_as_it_is_or_refused_by_its_type(cluster, tmp_path):
    """An object that has no form as text was written as its `repr`."""
    from holdfast.mapreduce import JobError

    (tmp_path / "in").write_bytes(b"k\n")
    job = {"map": lambda line: [(line, 1)]}

    class Thing:
        def __repr__(self):
            return "<a thing>"

    answers = ["text", b"bytes", 1, 2.5, ("a", b"b", 3), True]
    count(tmp_path / "in", tmp_path / "out", **job, reduce=lambda key, values: answers)
    assert parts(tmp_path / "out") == b"text\nbytes\nk\t1\nk\t2.5\nk\ta\tb\t3\nk\tTrue\n"
    for wrong, told in [(Thing(), "Thing <a thing>: answer text, bytes, numbers"), ((1, Thing()), "Thing <a thing>"),
                        ([None], "NoneType None"), ({"a": 1}, "dict .* a job with `output_format` takes rows")]:
        with fails(JobError, "reduce key b'k'", told):
            count(tmp_path / "in", tmp_path / "no", **job, reduce=lambda key, values: wrong)


def test_numbers_of_numpy_are_not_sent_as_bytes(cluster, tmp_path):
    """`marshal` takes whatever has a buffer for bytes, so that a sum of `numpy.int64` came out as eight of them."""
    from holdfast import mapreduce

    numpy = pytest.importorskip("numpy")
    for wrong in (numpy.int64(5), numpy.float64(5), (1, [numpy.int64(5)]), {"a": numpy.zeros(2)}, numpy.str_("a")):
        with fails(mapreduce.JobError, "send a value of numpy", "item"):
            mapreduce.value_bytes(wrong)
    with fails(mapreduce.JobError, "send a value of array.array: answer numbers"):
        import array

        mapreduce.value_bytes({"a": array.array("b", b"1")})
    endless = []
    endless.append(endless)
    with fails(mapreduce.JobError, "too deep, or itself"):
        mapreduce.value_bytes(endless)


def test_an_output_gets_the_directories_above_it(cluster, text, tmp_path):
    """It was a bare `FileNotFoundError` of a hidden name, after Ray's start."""
    sort(text, tmp_path / "new" / "deep" / "out", temp=[str(tmp_path / "tmp")])
    assert (tmp_path / "new" / "deep" / "out").read_bytes() == gnu_sort(text)
    count(text, tmp_path / "other" / "out", temp=[str(tmp_path / "tmp")])
    assert table(tmp_path / "other" / "out") == {word: str(n) for word, n in counted(text).items()}
    with fails(errors.InvalidError, "sort to `.*/out`: `.*text/dir` is no directory"):
        sort(text, text / "dir" / "out", temp=[str(tmp_path / "tmp")])
    with fails(errors.InvalidError, "`.*text` is no directory"):
        sort(text, text / "out", resume=True, temp=[str(tmp_path / "tmp")])


def test_a_node_that_does_not_see_the_output_says_so(tmp_path):
    from holdfast.parts import Lines

    with fails(errors.NotFoundError, "does not see the output's directory: every node must"):
        with Lines().part(str(tmp_path / "nowhere" / "part"), None):
            pass


def test_bad_input_has_a_sentence(cluster, text, tmp_path, monkeypatch):
    from holdfast.sort import Order

    (tmp_path / "there").touch()
    with fails(errors.ExistsError, "it exists: choose another name"):
        sort(text, tmp_path / "there")
    with fails(errors.NotFoundError, "nowhere", "does not exist"):
        sort(tmp_path / "nowhere", tmp_path / "out")
    with fails(errors.InvalidError, "no whole number of records of 7"):
        sort(text, tmp_path / "out", order=Order(record=7))
    with pytest.raises(errors.InvalidError, match="give the length of a record"):
        sort(text, tmp_path / "out", uniform="bytes")
    with pytest.raises(errors.InvalidError, match="'bytes', 'ascii'"):
        sort(text, tmp_path / "out", uniform="often", order=Order(record=10, end=4))
    with fails(errors.UnsupportedError, "Ray 1.9.0", "pip install"):
        ray_cluster.check_version("1.9.0")
    with fails(errors.UnsupportedError, "Ray 3.0.1"):
        ray_cluster.check_version("3.0.1")
    monkeypatch.setattr(ray_cluster._holdfast, "__version__", "0.0.1")
    with fails(errors.UnsupportedError, "install the same wheel on every node"):
        sort(text, tmp_path / "out")
    monkeypatch.undo()

    def changes(*_):
        with open(changing, "ab") as file:
            file.write(b"more\n")

    changing = tmp_path / "changing"
    changing.write_bytes(text.read_bytes())
    with fails(errors.RetryError, "changed since the job began"):
        sort(changing, tmp_path / "out", observe=changes)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def test_an_empty_input_is_an_empty_output(cluster, tmp_path):
    (tmp_path / "empty").touch()
    sort(tmp_path / "empty", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b""
    count(tmp_path / "empty", tmp_path / "counts")
    assert parts(tmp_path / "counts") == b""
