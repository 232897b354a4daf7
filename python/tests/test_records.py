"""Tables of records: held against a plain dictionary, and over three regions of which one is killed."""

import json
import os
import pickle
import random
import signal
import subprocess
import threading
import time

import pytest

import holdfast
from conftest import BINARY, ROOT, free_port
from holdfast import errors
from holdfast.records import _behind


@pytest.fixture
def records(client, request):
    name = request.node.name.translate(str.maketrans("[]", "..")).lower()[:80]
    with client.records(name) as records:
        records.make(tablets=2)
        yield records


def test_records_are_those_of_a_dictionary_with_versions(records):
    draw, model = random.Random(1), {}
    for _ in range(400):
        # Keys of any bytes, among them those that text has trouble with.
        key = draw.choice([b"a", b"\xff", b"\xff\xff", b"a\n", b"a\x00", "ü".encode(), b"a" * 6144])
        has = model.get(key)
        version = draw.choice([None, None, 0, 1, has[0] if has else 2])
        value = None if draw.random() < 0.3 else draw.randbytes(draw.randrange(30))
        fits = version is None or version == (has[0] if has else 0)
        [written] = records.write([(key, value, version)])
        if fits and (value is not None or has):
            assert written.made and (has is None or written.version == has[0] + 1)
            model.pop(key, None)
            if value is not None:
                model[key] = (written.version, value)
        else:
            assert written == (False, has[0] if has else None)
        level = draw.choice(["any", "session", "latest", "strong"])
        assert records.get(key, level="session") == model.get(key)
        found = records.get_many(list(model), level="strong" if level == "any" else level)
        assert found == list(model.values())
    rows = [(key, *record) for key, record in sorted(model.items())]
    assert list(records.scan()) == rows and list(records.scan(backwards=True)) == rows[::-1]
    assert list(records.scan(b"a")) == [row for row in rows if row[0].startswith(b"a")]
    assert list(records.scan(b"\xff")) == [row for row in rows if row[0].startswith(b"\xff")]
    assert list(records.scan(start=b"a\x00", end=b"\xff")) == [row for row in rows if b"a\x00" <= row[0] < b"\xff"]
    about = records.describe()
    assert (about.table, about.mode, about.tablets, about.records) == (records.table, "timeline", 2, len(model))


def test_what_is_written_together_stands_or_falls_together(client):
    with client.records("together") as records:
        records.make()
        assert records.write_together([(b"a", b"1", 0), (b"b", b"1"), (b"c", ..., 0)]) == [1, 1, 0]
        with pytest.raises(errors.VersionError, match="b'b' has version 1: nothing was written") as raised:
            records.write_together([(b"a", b"2"), (b"b", b"2", 7)])
        assert raised.value.version == 1
        with pytest.raises(errors.VersionError, match="b'c' is not there"):
            records.write_together([(b"a", b"2"), (b"c", None)])
        assert records.get_together([b"a", b"b", b"c"]) == [(1, b"1"), (1, b"1"), None]
        assert records.write_together([(b"a", None), (b"b", ..., 1), (b"c", b"3")]) == [2, 1, 1]
        assert records.get_together([b"a", b"b", b"c"], level="strong") == [None, (1, b"1"), (1, b"3")]
        with pytest.raises(errors.InvalidError, match="a key that one in front of it has"):
            records.write_together([(b"a", b"2"), (b"a", None)])
        with pytest.raises(errors.InvalidError, match="1 to 128"):
            records.write_together([])
    with client.records("apart") as records:
        records.make(tablets=16)
        keys = [b"%d" % number for number in range(16)]
        with pytest.raises(errors.InvalidError, match="in another tablet"):
            records.write_together([(key, b"") for key in keys])
        assert list(records.scan()) == []
        with pytest.raises(errors.InvalidError, match="in another tablet"):
            records.get_together(keys)


def test_a_tablet_is_split_while_it_is_used(node, client):
    top = 2**32 - 1
    with client.records("split") as records:
        records.make()
        keys = [b"%d" % number for number in range(50)]
        records.write([(key, key) for key in keys])
        rows, over, wrong = list(records.scan()), threading.Event(), []

        def write():
            # What is acknowledged is there, and each write of a key is its next version.
            with node.connect() as client, client.records("split") as own:
                for version in range(2, 10_000):
                    key = keys[version % len(keys)]
                    before = own.get(key).version
                    if own.put(key, key) != before + 1:
                        wrong.append(key)
                    if over.is_set():
                        return

        writer = threading.Thread(target=write)
        writer.start()
        about = records.split(0)
        assert (about.tablets, about.hashes) == (2, [(0, top // 2), (top // 2 + 1, top)])
        about = records.split(1, at=3 << 30)
        assert about.hashes == [(0, top // 2), (top // 2 + 1, (3 << 30) - 1), (3 << 30, top)]
        # Said again it is so already; and where there is a border, no other tablet was split.
        assert records.split(1, at=3 << 30).hashes == about.hashes
        for tablet, at in [(2, 3 << 30), (0, 3 << 30), (7, 3 << 30), (0, 0)]:
            with pytest.raises(errors.InvalidError, match="split tablet %d of table `split`" % tablet):
                records.split(tablet, at=at)
        with pytest.raises(errors.NotFoundError, match="it has 3 of them"):
            records.split(7)
        over.set()
        writer.join()
        assert not wrong
        assert [(row.key, row.value) for row in records.scan()] == [(row.key, row.value) for row in rows]
        assert records.describe().hashes == about.hashes
    with client.records("nobodys") as records, pytest.raises(errors.NotFoundError, match="nobodys"):
        records.split(0)


def test_prefixes_end_where_the_next_key_begins():
    for prefix, behind in [(b"", None), (b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"\x00", b"\x01")]:
        assert _behind(prefix) == behind


def test_conditions_that_do_not_hold_are_a_class_of_their_own(records):
    assert records.put(b"k", b"1", if_absent=True) == 1
    with pytest.raises(errors.VersionError, match="`.*`: the record b'k' has version 1: nothing was written") as raised:
        records.put(b"k", b"2", if_absent=True)
    assert raised.value.version == 1
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again), again.version) == (errors.VersionError, str(raised.value), 1)
    assert records.put(b"k", b"2", if_version=1) == 2
    for wrong in (lambda: records.put(b"k", b"3", if_version=1), lambda: records.delete(b"k", if_version=1)):
        with pytest.raises(errors.VersionError) as raised:
            wrong()
        assert raised.value.version == 2
    assert records.get(b"k") == (2, b"2")
    assert records.delete(b"k", if_version=2) == 3
    with pytest.raises(errors.VersionError, match="is not there") as raised:
        records.put(b"k", b"", if_version=3)
    assert raised.value.version is None
    with pytest.raises(errors.NotFoundError, match="b'k' is not there"):
        records.delete(b"k")
    # One that comes back goes on above it.
    assert records.put(b"k", b"") > 3


def test_of_all_who_replace_a_version_one_wins(node, records):
    records.put(b"n", b"0")
    added = []

    def add():
        with node.connect() as client, client.records(records.table) as own:
            for _ in range(10):
                while True:
                    version, value = own.get(b"n")
                    try:
                        own.put(b"n", b"%d" % (int(value) + 1), if_version=version)
                        break
                    except errors.VersionError as e:
                        assert e.version > version
            added.append(10)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert added == [10] * 4 and records.get(b"n", level="strong") == (41, b"40")


def test_many_writes_and_reads_are_more_than_a_request(records):
    model = {b"%04d" % n: b"x" * (n * 5) for n in range(2500)}
    written = records.write(model.items())
    assert [one.version for one in written] == [1] * len(model) and all(one.made for one in written)
    assert [record.value for record in records.get_many(model)] == list(model.values())
    assert {row.key: row.value for row in records.scan()} == model
    half = [row.key for row in records.scan(start=b"1000", end=b"2000", backwards=True)]
    assert half == [b"%04d" % n for n in range(1999, 999, -1)]
    assert records.write([]) == [] and records.get_many([]) == []


def test_what_is_wrong_has_a_sentence(client, records):
    with pytest.raises(errors.NotFoundError):
        client.records("nothere").describe()
    with pytest.raises(errors.NotFoundError):
        client.records("nothere").get(b"k")
    with pytest.raises(errors.InvalidError, match="level `new`: choose"):
        records.get(b"k", level="new")
    with pytest.raises(errors.InvalidError, match="mode `weak`: choose"):
        records.make(mode="weak")
    with pytest.raises(errors.InvalidError, match="they count from 1"):
        records.put(b"k", b"", if_version=0)
    for wrong in [(b"k",), (b"k", b"v", 1, 2), (b"k", b"v", -1)]:
        with pytest.raises(errors.InvalidError, match="give each as|they count from 1"):
            records.write([(b"other", b""), wrong])
    assert records.get(b"other") is None and f"table={records.table!r}".replace("'", '"') in repr(records.describe())
    with pytest.raises(errors.InvalidError, match="choose one"):
        records.put(b"k", b"", if_version=1, if_absent=True)
    with pytest.raises(errors.InvalidError, match="name a prefix, or"):
        list(records.scan(b"a", end=b"b"))
    for name in ("", "A", "a/b", "a\nb"):
        with pytest.raises(errors.HoldfastError):
            client.records(name).make()
    for key, value in [(b"", b""), (b"k" * 6145, b""), (b"k", b"v" * ((900 << 10) + 1))]:
        with pytest.raises(errors.InvalidError):
            records.put(key, value)
    with pytest.raises(TypeError):
        records.put("k", b"")
    with pytest.raises(TypeError):
        records.put(b"k", "")
    with pytest.raises(errors.InvalidError, match="the text is none"):
        records.go_on("")
    with pytest.raises(errors.InvalidError, match="it is of table"):
        records.go_on(client.records("other").session)
    with pytest.raises(holdfast.HoldfastError):
        records.make(tablets=3)
    assert records.table in [one.table for one in client.record_tables()]
    # None of it has disturbed the session.
    assert records.put(b"k", b"v") == 1


def test_a_closed_one_begins_another_session_and_a_child_is_refused(node, records):
    records.put(b"k", b"1")
    seen = records.session
    records.close()
    records.close()
    assert records.session != seen and records.get(b"k", at_least=1) == (1, b"1")
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            try:
                records.get(b"k")
            except ValueError as e:
                refused = int("fork" in str(e))
        finally:
            os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert records.get(b"k") == (1, b"1")
    with node.connect() as client:
        closed = client.records(records.table)
    with pytest.raises(ValueError, match="closed"):
        closed.get(b"k")


@pytest.fixture(scope="module")
def regions(tmp_path_factory):
    """Three regions, each a node with a log of its own; and their sockets."""
    data = tmp_path_factory.mktemp("regions") / "dev"
    port = free_port()
    ports = ["--port", str(port), "--http-port", "0", "--s3-port", "0"]
    command = [BINARY, "--json", "dev", "--data", str(data), "--nodes", "3", "--regions", *ports]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert line, "the regions ended at their start"
    sockets = [f"unix:{data}/node-{n}/holdfast.sock" for n in (1, 2, 3)]
    yield data, sockets
    process.send_signal(signal.SIGINT)
    process.wait()


def test_a_session_goes_along_from_region_to_region(regions):
    data, sockets = regions
    clients = [holdfast.connect(socket) for socket in sockets]
    tables = [client.records("users") for client in clients]
    for _ in range(1000):
        try:
            assert tables[0].make(mode="strong", tablets=3).regions == 3
            break
        except errors.RetryError:
            # They have not heard of each other yet.
            pass
    draw, model = random.Random(3), {}
    for n in range(60):
        here, there = draw.sample(tables, 2)
        key = b"%d" % draw.randrange(8)
        model[key] = here.put(key, b"%d" % n), b"%d" % n
        # As if a cookie had carried it.
        there.go_on(json.loads(json.dumps(here.session)))
        assert there.get(key, level="session") == model[key]
        if n == 30:
            dev = [BINARY, "dev", "--data", str(data)]
            subprocess.run([*dev, "kill", "3", "--hard"], check=True, stdout=subprocess.DEVNULL)
            tables.pop().close()
    for table in tables:
        assert table.get_many(sorted(model), level="strong") == [model[key] for key in sorted(model)]
        assert {row.key for row in table.scan()} <= set(model)
    for client in clients:
        client.close()


def _again(call, good=lambda answer: True, later=errors.RetryError):
    """Asks until the answer is good; regions that start hear of each other after a while."""
    for _ in range(2000):
        try:
            answer = call()
            if good(answer):
                return answer
        except later:
            pass
        time.sleep(0.02)
    raise AssertionError(f"never: {call}")


def test_what_a_lost_region_had_alone_comes_back_as_a_branch(regions):
    data, sockets = regions

    def order(what, region, *how):
        dev = [BINARY, "dev", "--data", str(data), what, str(region), *how]
        return subprocess.run(dev, capture_output=True, text=True)

    def table(region):
        return holdfast.connect(sockets[region - 1]).records("prices")

    # The test before killed it, where it was run.
    order("start", 3)
    here, lost = table(1), table(3)
    _again(here.make)
    assert lost.put(b"k", b"before") == 1
    with pytest.raises(errors.InvalidError):
        here.seal(7)
    with pytest.raises(errors.NotFoundError, match="no such branch"):
        here.resolve(b"k", keep="record")
    for keep in ("both", ""):
        with pytest.raises(errors.InvalidError, match="choose `record` or `branch`"):
            here.resolve(b"k", keep=keep)
    _again(lambda: [table(region).get(b"k", level="any") for region in (1, 2)], all)
    for region in (1, 2):
        order("kill", region, "--hard")
    assert lost.put(b"k", b"alone") == 2
    order("kill", 3, "--hard")
    for region in (1, 2):
        order("start", region)
    here = table(1)
    # Whoever was heard a moment ago is not lost.
    _again(lambda: here.seal(2), lambda _: True, errors.RetryError)
    assert here.put(b"k", b"meanwhile", if_version=1) == 2
    order("start", 3)
    [branch] = _again(lambda: list(here.branches()), bool)
    assert branch[0] == b"k" and branch[2:] == (1, 2, b"alone")
    with pytest.raises(errors.NotFoundError, match="no such branch"):
        here.resolve(b"k", keep="branch", place="0.0.0")
    here.resolve(b"k", keep="branch", place=branch.place)
    assert here.get(b"k", level="latest").value == b"alone"
    for region in (1, 2, 3):
        _again(lambda: list(table(region).branches()), lambda left: not left)
