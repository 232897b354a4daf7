"""Jobs as strange data and hasty users have them: each test is something that once went wrong, or was told badly."""

import contextlib
import os
import pathlib
import sys
import threading

import pytest

import holdfast
from holdfast import errors, mapreduce, parts, sources

ray = pytest.importorskip("ray", reason="jobs over many machines are not tried: `make python-ray` installs Ray")

from test_ray import start, stop, total, words  # noqa: E402
from test_ray import parts as parts_of  # noqa: E402

MEMORY = 64 << 20


@pytest.fixture(scope="module")
def cluster():
    cluster = start(2)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.cloudpickle.register_pickle_by_value(sys.modules["test_ray"])
    yield cluster
    stop(cluster)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"to be or\nnot to be\n" * 2000)
    return path


def options(output, **more):
    return {"ray": "auto", "memory": MEMORY, "split_bytes": 10_000, "temp": [f"{output}.tmp"], **more}


def run(inputs, output, **more):
    return holdfast.mapreduce(inputs, output, **options(output, **{"map": words, "reduce": total, **more}))


def prefixed(bodies):
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def cut(data, framing, piece, whole=True, length=None):
    split = sources.Split(0, "in", 0, len(data) if length is None else length, ())
    pieces = (data[at : at + piece] for at in range(0, len(data), piece))
    return list(mapreduce.records(pieces, framing, split, whole))


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 10_000])
def test_records_are_cut_alike_in_pieces_of_any_length(piece):
    bodies = [bytes([n]) * (n * n % 67) for n in range(60)] + [b"x" * 300, b""]
    assert cut(prefixed(bodies), sources.Framing(prefixed=True), piece) == bodies
    lines = [b"a", b"", b"b" * 200, b"", b"", b"end"]
    for end in (b"", b"\n"):
        assert cut(b"\n".join(lines) + end, sources.Framing(), piece) == lines
    fixed = bytes(range(250))
    assert cut(fixed, sources.Framing(record=10), piece) == [fixed[at : at + 10] for at in range(0, 250, 10)]


def test_a_record_that_ends_behind_its_file_is_refused_at_once_and_by_its_place():
    """Lines that were taken for lengths were gathered, a copy of all for each piece, up to the end of the file; the
    sentence then named none."""
    taken = []

    def pieces():
        for n in range(1000):
            taken.append(n)
            yield b"text that is no length\n" * 50

    split = sources.Split(0, "/data/in", 0, 1 << 30, ())
    with pytest.raises(errors.InvalidError, match="read `/data/in`: from byte 0: a record of 1952807028 bytes goes on behind its end"):
        list(mapreduce.records(pieces(), sources.Framing(prefixed=True), split))
    assert len(taken) == 1
    data = prefixed([b"one", b"two"])
    with pytest.raises(errors.InvalidError, match="from byte 7: a record of 3 bytes goes on behind"):
        cut(data[:-1], sources.Framing(prefixed=True), 4)
    with pytest.raises(errors.InvalidError, match="from byte 7: 2 bytes at its end are no whole record"):
        cut(data[:9], sources.Framing(prefixed=True), 4)
    assert cut(data[:-1], sources.Framing(prefixed=True), 4, whole=False, length=len(data)) == [b"one"]


def test_records_with_lengths_in_front_are_more_than_a_sample(cluster, tmp_path):
    """The sample ends within a record, and the job ended with that."""
    bodies = [b"%d" % (n % 100) * 40 for n in range(10_000)]
    (tmp_path / "in").write_bytes(prefixed(bodies))
    assert (tmp_path / "in").stat().st_size > sources.SAMPLE_BYTES
    run([tmp_path / "in"], tmp_path / "out", prefixed=True, map=lambda record: [(record, 1)], combine="sum", reduce="sum")
    rows = dict(line.split(b"\t") for line in parts_of(tmp_path / "out").splitlines())
    assert rows == {body: b"100" for body in bodies}
    (tmp_path / "in").write_bytes(prefixed(bodies)[:-1])
    with pytest.raises(errors.InvalidError, match=r"read `.*/in`: from byte \d+: a record of 80 bytes goes on behind its end"):
        run([tmp_path / "in"], tmp_path / "cut", prefixed=True, map=lambda record: [(record, 1)])


def test_paths_are_those_of_the_driver(cluster, text, tmp_path, monkeypatch):
    """Workers are in directories of their own, where a relative input was not there; a directory of `temp` that was
    no list was taken letter by letter."""
    monkeypatch.chdir(tmp_path)
    holdfast.sort("text", "sorted", **options("sorted", temp="spool"))
    assert (tmp_path / "sorted").read_bytes() == b"not to be\n" * 2000 + b"to be or\n" * 2000
    assert (tmp_path / "spool").is_dir()
    run("text", "counts", temp=pathlib.Path("spool"))
    assert parts_of(tmp_path / "counts") == b"be\t4000\nnot\t2000\nor\t2000\nto\t4000\n"


def test_functions_that_cannot_be_sent_say_so(cluster, text, tmp_path):
    """It was Ray's own error of a page, after receivers had been started."""
    lock, begun = threading.Lock(), []

    def locked(line):
        with lock:
            return words(line)

    with pytest.raises(errors.InvalidError, match="send its functions to the nodes: .*lock.*: what they use must be sent"):
        run([text], tmp_path / "out", map=locked, observe=lambda *what: begun.append(what))
    assert not begun and not list(tmp_path.glob("*out*"))


def test_a_job_that_fails_leaves_no_task_running(cluster, text, tmp_path):
    """Splits that were mapped when another one failed were mapped to their end, on a cluster that others share."""
    driver, fifo = os.getpid(), tmp_path / "fifo"
    os.mkfifo(fifo)

    def waits_or_fails(line):
        if os.getpid() == driver:
            return words(line)
        try:
            # The first one that is here waits for ever: nobody writes.
            os.close(os.open(tmp_path / "first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            raise ValueError("the other one") from None
        with open(fifo) as file:
            file.read()

    with pytest.raises(mapreduce.JobError, match="ValueError: the other one"):
        run([text], tmp_path / "out", map=waits_or_fails)
    # A task on all processors at once is started when all are free.
    every = ray.remote(lambda: os.getpid())
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    from holdfast.ray_cluster import on_node

    asked = [every.options(num_cpus=1, scheduling_strategy=on_node(ray, node)).remote() for node in nodes]
    assert len(ray.get(asked, timeout=60)) == len(nodes) == 2


def test_a_task_is_made_known_to_ray_once(cluster, text, tmp_path, monkeypatch):
    """It was made anew at each look, so that thousands of small inputs were thousands of functions in Ray's store."""
    from holdfast import exchange

    made, remote = [], ray.remote
    monkeypatch.setattr(ray, "remote", lambda work, *a, **k: made.append(work) or remote(work, *a, **k))
    stats = run([text], tmp_path / "out", split_bytes=2000)
    assert stats.splits > 15 and made.count(exchange.map_split) == 1


def test_an_output_that_came_meanwhile_stands(cluster, text, tmp_path):
    """Of two jobs with one output the later one replaced the other's without being told to."""
    for parts_, job in ((False, holdfast.sort), (True, holdfast.sort), (True, run)):
        out = tmp_path / "out"

        def made(*_):
            if parts_:
                out.mkdir(exist_ok=True)
                (out / "theirs").write_text("theirs")
            else:
                out.write_text("theirs")

        more = options(out, observe=made, **({"parts": parts_} if job is holdfast.sort else {}))
        with pytest.raises(errors.ExistsError, match="somebody made it meanwhile"):
            job([text], out, **more)
        assert not list(tmp_path.glob(".out*"))
        assert (out / "theirs" if parts_ else out).read_text() == "theirs"
        (out / "theirs" if parts_ else out).unlink()
        with contextlib.suppress(OSError):
            out.rmdir()


def test_an_output_of_another_kind_is_not_replaced(cluster, text, tmp_path):
    """That was found when the whole job had been done, and was thrown away with it."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("directory")

    def begun(*_):
        raise AssertionError("the job began")

    for name, parts_ in (("directory", False), ("file", True), ("link", True)):
        with pytest.raises(errors.ExistsError, match="the output is .*: choose another name"):
            holdfast.sort([text], tmp_path / name, **options(tmp_path / "x", parts=parts_, replace=True, observe=begun))
    holdfast.sort([text], tmp_path / "directory", **options(tmp_path / "x", parts=True, replace=True))
    assert parts_of(tmp_path / "directory") == b"not to be\n" * 2000 + b"to be or\n" * 2000


def test_options_that_do_not_go_together_are_refused():
    """The kernels took one of them, and the reader of the input another one."""
    from holdfast.sort import Order, main

    for order, told in (
        (Order(record=10, prefixed=True), "choose one"),
        (Order(record=-1), "records of -1 bytes"),
        (Order(record=0), "records of 0 bytes"),
        (Order(delimiter="\n"), "give one byte"),
        (Order(start=1, end=3), "lines have `keys`"),
        (Order(record=10, keys=("1,1",)), "byte by byte"),
        (Order(prefixed=True, letters="n"), "byte by byte"),
        (Order(record=10, start=-1, end=3), "count them from the front"),
    ):
        with pytest.raises(errors.InvalidError, match=told):
            order.rules()
    for wrong in (["--record", "-5"], ["--record-key", "0:10"], ["--record", "10", "--length-prefixed"], ["-S", "0"]):
        assert main([*wrong, "-o", "/nowhere/out", "/nowhere/in"]) == 1
    for wrong in ({"memory": "2G"}, {"memory": 1e9}, {"memory": -1}, {"split_bytes": 0}):
        with pytest.raises(errors.InvalidError, match="give bytes, a whole number"):
            holdfast.mapreduce(["/nowhere"], "/nowhere/out", map=words, reduce=total, **wrong)
        with pytest.raises(errors.InvalidError, match="give bytes, a whole number"):
            holdfast.sort(["/nowhere"], "/nowhere/out", **wrong)


def test_values_that_cannot_be_sent_are_named_by_their_key():
    good = (mapreduce.key_bytes("a"), 1)
    with pytest.raises(mapreduce.JobError, match="send a value of set_iterator for key 'user 7': answer numbers"):
        mapreduce.sent([good, (mapreduce.key_bytes("user 7"), iter({1}))])
    assert [pair[0] for pair in mapreduce.sent([good])] == [b"sa"]


def test_what_is_no_list_of_pairs_is_said_by_its_type():
    class Frame:
        columns = ["a"]

        def __bool__(self):
            raise ValueError("the truth value of a frame is ambiguous")

    for wrong, told in ((Frame(), "Frame"), ({"a": 1}, "dict"), ("text", "str"), (5, "int"), (0, "int"), (True, "bool")):
        with pytest.raises(TypeError, match=f"it answered .*{told}: answer a list or generator of pairs"):
            list(mapreduce.answered(wrong, None))
    # As `condition and [...]` answers.
    assert [list(mapreduce.answered(nothing, None)) for nothing in (None, False, [], ())] == [[]] * 4


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize("rows", [10, 100_000])
def test_rows_that_find_no_room_are_a_full_disk(format, rows):
    """Most are written when their part ends, where it was the system's bare error, after which nothing is kept for
    `resume`."""
    pytest.importorskip("pyarrow")
    with pytest.raises(errors.FullError, match="write `/dev/full` on node .*: make room, and make the same call"):
        with parts.Rows(format).part("/dev/full", None) as part:
            for n in range(rows):
                part.write("k", {"n": f"{n:0100}"})


def test_lines_that_find_no_room_are_a_full_disk_to_the_end():
    """The error was followed by that of what was still buffered, which hid it."""
    with pytest.raises(OSError) as raised:
        with parts.Lines().part("/dev/full", None) as part:
            for _ in range(100_000):
                try:
                    part.write("k", "x" * 100)
                except OSError as e:
                    raise sources.unwritten(part.path, e) from e
    assert raised.type is errors.FullError


def test_a_manifest_that_finds_no_room_is_a_full_disk(tmp_path):
    """Its bare error had what was finished thrown away, where the call said `resume`."""
    from holdfast.places import Access
    from holdfast.target import Target

    with pytest.raises(errors.FullError, match="write `.*manifest` on node .*: make room"):
        with Target(str(tmp_path / "out"), True, doing="reduce", resume=True, access=Access()) as target:
            target.plan([], "job", lambda: [])
            target.lock.close()
            target.lock = open("/dev/full", "ab")
            target.note(0, [], [])
    assert len(list(tmp_path.glob(".out*"))) == 2, "the output so far, and its manifest"


def test_rows_that_are_no_columns_are_refused_by_their_keys(tmp_path):
    pytest.importorskip("pyarrow")
    for row in ({1: 2}, {"a": "\ud800"}, {"a": object()}):
        with pytest.raises(errors.InvalidError, match="write rows of key 'k' as parquet: "):
            with parts.Rows("parquet").part(str(tmp_path / "part"), None) as part:
                part.write("k", row)


def test_values_of_a_key_that_are_not_alike_are_said():
    import marshal

    pyarrow = pytest.importorskip("pyarrow")
    from holdfast import tables

    with pytest.raises(errors.InvalidError, match="reduce key 'k': one of its values is a dict.* None: answer values"):
        tables.Taking().of("k", map(marshal.dumps, [{"a": 1}, None]), 1000)
    made = tables.Taking(pyarrow.struct([("a", pyarrow.int8())])).of("k", map(marshal.dumps, [{"a": 1}, None]), 1000)
    assert made.to_pylist() == [{"a": 1}, None]
    # Of a table that has the key alone.
    for type in (None, pyarrow.schema([])):
        assert tables.Taking(type).of("k", map(marshal.dumps, [{}, {}]), 1000).num_rows == 2


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_columns_of_one_name_are_refused_where_they_are_read(tmp_path, format):
    """It was a KeyError of Arrow's, or the last one was taken for both."""
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    from holdfast import tables

    path = tmp_path / "in"
    rows = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array([1]), pyarrow.array([2])], names=["k", "n", "n"])
    path.write_text("k,n,n\na,1,2\n") if format == "csv" else pyarrow.parquet.write_table(rows, path)
    for columns in (None, ["k", "n"], "n"):
        with pytest.raises(errors.InvalidError, match="more than one column `n`: its columns are `k`, `n`, `n`"):
            tables.splits_of([str(path)], format, columns, 1000)
    splits, reading = tables.splits_of([str(path)], format, "k", 1000)
    assert [batch.to_pylist() for batch in reading.items(splits[0], None)] == [[{"k": "a"}]]


def test_what_a_node_lacks_is_said(cluster, text, tmp_path, monkeypatch):
    """Of a module that a node has not, and of a directory that it cannot make, Ray told a page of its own."""
    (tmp_path / "elsewhere.py").write_text("def words(line):\n    return [(line, 1)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    import elsewhere

    with pytest.raises(errors.InvalidError, match="load its functions on a node: No module named 'elsewhere': .* installed on every"):
        run([text], tmp_path / "out", map=elsewhere.words)
    for wrong in ("/proc/nowhere", text, text / "below"):
        with pytest.raises(errors.InvalidError, match=f"receive records in `{wrong}` on node .*: give directories as `temp`"):
            run([text], tmp_path / "out", temp=[wrong])


def test_what_is_secret_is_not_printed():
    """Errors of Ray's show what could not be sent."""
    from holdfast import places, sort

    access = places.access_of(None, {"key": "key", "secret": "hidden"})
    mapped = mapreduce.Mapping(words, None, None, None, (), "hidden", 1, access)
    assert "hidden" not in repr([access, mapped, sort.Mapping(sort.Order(), (), "hidden", 1, access)])


def test_a_file_of_parquet_that_is_damaged_is_named(cluster, tmp_path):
    """Its reader's words named no file, and were of no class of ours."""
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "in.parquet"
    rows = pyarrow.table({"k": [f"key {n % 7}" for n in range(5000)], "n": list(range(5000))})
    pyarrow.parquet.write_table(rows, path, compression="snappy", use_dictionary=False)
    whole = path.read_bytes()
    job = {"format": "parquet", "map": None, "key": "k", "reduce": "sum"}
    run([path], tmp_path / "good", **job)
    for damaged in (whole[:200] + b"\xff" * 300 + whole[500:], whole[:-300] + b"\xff" * 200 + whole[-100:], whole[:-100]):
        path.write_bytes(damaged)
        with pytest.raises(errors.InvalidError, match="read `.*in.parquet` as Parquet: "):
            run([path], tmp_path / "out", **job)
        assert not (tmp_path / "out").exists()
