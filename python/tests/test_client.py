"""The client against a node: names, small files, ranges, errors, threads, processes."""

import array
import errno
import gc
import os
import random
import subprocess
import threading

import pytest

import holdfast
from conftest import BINARY
from holdfast import errors


def test_a_file_comes_back_with_what_is_known_of_it(client, place):
    id = client.put(f"{place}/a", b"hello", mode=0o600, mtime_ns=7, metadata=b"mine")
    assert client.get(f"{place}/a") == b"hello"
    info = client.stat(f"{place}/a")
    told = (info.id, info.kind, info.size, info.mode, info.mtime_ns, info.metadata)
    assert told == (id, "file", 5, 0o600, 7, b"mine")
    assert info.is_file() and not info.is_dir()


# Inline answers, slices and chunks end at these sizes.
@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (16 << 20) + 1])
def test_bytes_of_every_size_come_back(client, place, size):
    data = random.Random(size).randbytes(size)
    client.put(f"{place}/a", data)
    assert client.get(f"{place}/a") == data
    part = client.get_ranges([(f"{place}/a", size // 3, size // 2), (f"{place}/a", size // 2, None)])
    assert part == [data[size // 3 : size // 2], data[size // 2 :]]


def test_whatever_can_be_seen_as_bytes_is_stored(client, place):
    numbers = array.array("i", [1, 2, 3])
    for data in (b"abc", bytearray(b"abc"), memoryview(b"xabcx")[1:4], numbers):
        client.put(f"{place}/a", data, replace=True)
        assert client.get(f"{place}/a") == bytes(memoryview(data).cast("B"))
    for wrong in ("abc", 3, None):
        with pytest.raises(TypeError):
            client.put(f"{place}/a", wrong, replace=True)


def test_ranges_end_where_their_files_do(client, place):
    client.put(f"{place}/a", b"0123456789")
    ranges = [(f"{place}/a", start, end) for start, end in [(8, 100), (10, 11), (99, None), (5, 3)]]
    assert client.get_ranges(ranges) == [b"89", b"", b"", b""]
    assert client.get_ranges([]) == []
    with pytest.raises(FileNotFoundError):
        client.get_ranges([(f"{place}/a", 0, 1), (f"{place}/no", 0, 1)])


def test_errors_are_of_their_kind_and_pythons_own(client, place):
    client.put(f"{place}/a", b"")
    with pytest.raises(errors.NotFoundError) as raised:
        client.get(f"{place}/no")
    assert isinstance(raised.value, FileNotFoundError) and raised.value.errno == errno.ENOENT
    assert f"{place}/no" in str(raised.value)
    with pytest.raises(FileExistsError):
        client.put(f"{place}/a", b"")
    with pytest.raises(errors.InvalidError):
        client.put("no/root", b"")
    with pytest.raises(ValueError):
        client.make_dir(f"{place}/d", kind="bucket")
    for kind in ("retry", "full", "denied", "of a later build"):
        assert issubclass(errors.class_of(kind), holdfast.HoldfastError)


def test_a_wrong_secret_is_denied(node, tmp_path):
    wrong = tmp_path / "secret"
    wrong.write_text("0" * 64 + "\n")
    with pytest.raises(PermissionError):
        holdfast.connect(node.ready["native"], secret=str(wrong))
    secret = str(node.directory / "secret")
    with holdfast.connect(node.ready["native"], secret=secret) as client:
        client.ping()


def test_the_next_server_answers_for_one_that_is_away(node):
    with holdfast.connect(["unix:/no/such.sock", node.server], patience=0) as client:
        client.ping()
    with pytest.raises(holdfast.HoldfastError):
        holdfast.connect("unix:/no/such.sock", patience=0)


def test_directories_are_listed_in_order_over_pages(client, place):
    names = sorted(f"{i:04}" for i in range(2500))
    for name in names:
        client.put(f"{place}/{name}", b"")
    assert [entry.name for entry in client.list(place)] == names
    usage = client.usage(place)
    assert (usage.files, usage.bytes) == (2500, 0)


def test_names_move_and_go(client, place):
    client.put(f"{place}/d/a", b"a", parents=True)
    client.rename(f"{place}/d", f"{place}/e")
    assert client.exists(f"{place}/e/a") and not client.exists(f"{place}/d/a")
    client.symlink("e/a", f"{place}/link")
    assert client.stat(f"{place}/link").target == "e/a"
    assert client.stat(f"{place}/link", follow=True).size == 1
    with pytest.raises(holdfast.HoldfastError):
        client.delete(f"{place}/e")
    client.delete(f"{place}/e", recursive=True)
    assert [entry.name for entry in client.list(place)] == ["link"]


def test_a_table_is_a_mapping(client, place):
    table = client.table(f"{place}/t")
    model = {}
    draw = random.Random(1)
    for _ in range(300):
        key = f"k{draw.randrange(20)}"
        if draw.random() < 0.7:
            model[key] = table[key] = draw.randbytes(draw.randrange(9))
        elif key in model:
            assert table.pop(key) == model.pop(key)
        else:
            with pytest.raises(KeyError):
                del table[key]
        assert (key in table, table.get(key)) == (key in model, model.get(key))
    assert dict(table) == model and len(table) == len(model) and list(table) == sorted(model)
    assert dict(client.table(f"{place}/t")) == model, "made twice is made"
    client.make_dir(f"{place}/d")
    with pytest.raises(FileExistsError):
        client.table(f"{place}/d")


def test_what_is_no_key_is_not_the_table_or_another_key(client, place):
    """An empty key was the table itself, which was deleted with it; one with a slash behind it was that without."""
    table = client.table(f"{place}/t")
    for wrong in ("", "a/", "a/b", "/"):
        assert wrong not in table
        for use in (table.get, table.pop, lambda key: table.put(key, b"1"), table.delete):
            with pytest.raises(holdfast.errors.InvalidError, match="it is a name in a directory"):
                use(wrong)
    # Bytes were kept under the name that Python prints for them.
    for wrong in (b"a", 5, None):
        assert wrong not in table
        with pytest.raises(TypeError, match="a key is text"):
            table[wrong] = b"1"
    assert client.exists(f"{place}/t") and len(table) == 0


def test_a_topic_is_appended_read_and_followed(client, node):
    log = client.log
    first, second = log.append("python/a", b"0", b"1")
    assert list(log.read("python/a")) == [(first, b"0"), (second, b"1")]
    seen = []

    def follow():
        with node.connect() as other:
            for index, entry in other.log.tail("python/a", first):
                seen.append((index, entry))
                if entry == b"last":
                    return

    follower = threading.Thread(target=follow)
    follower.start()
    entries = [b"%d" % i for i in range(2, 5000)]
    for start in range(0, len(entries), 500):
        log.append("python/a", *entries[start : start + 500], synced=False)
    log.append("python/a", b"last")
    follower.join()
    assert [entry for _, entry in seen] == [b"0", b"1", *entries, b"last"]
    assert list(log.read("python/a")) == seen
    info = log.info("python/a")
    assert (info.topic, info.next) == ("python/a", first + len(seen))
    assert "python/a" in [info.topic for info in log.topics()]
    with pytest.raises(FileNotFoundError):
        log.info("python/no")


def test_what_a_writer_sends_twice_is_read_once(client, node):
    append = [str(BINARY), "--server", node.server, "log", "append", "--writer", "w", "--number"]
    for number in (1, 2, 2, 1, 3):
        subprocess.run([*append, str(number), "python/w", f"entry {number}"], check=True)
    read = [entry for _, entry in client.log.read("python/w")]
    assert read == [b"entry 1", b"entry 2", b"entry 3"]


def test_threads_use_one_client_side_by_side(node, place):
    wrong = []
    # Fewer connections than threads: calls wait for one another, and none for ever.
    with node.connect(connections=3) as client:

        def work(thread):
            try:
                for i in range(50):
                    path = f"{place}/{thread}-{i}"
                    client.put(path, path.encode())
                    assert client.get(path) == path.encode()
            except BaseException as e:
                wrong.append(e)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_who_waits_for_entries_holds_up_no_call(node):
    """More followers than connections had all of them, and a call waited for as long as nothing came."""
    with node.connect(connections=2) as client:
        client.log.append("python/waits", b"first")
        seen = []
        begun = threading.Semaphore(0)

        def follow():
            for _, entry in client.log.tail("python/waits", 1):
                if entry == b"last":
                    seen.append(entry)
                    return
                begun.release()

        followers = [threading.Thread(target=follow) for _ in range(8)]
        for follower in followers:
            follower.start()
        for _ in followers:
            begun.acquire()
        for _ in range(200):
            client.ping()
        client.log.append("python/waits", b"last")
        for follower in followers:
            follower.join()
        assert seen == [b"last"] * 8


def test_a_client_from_before_a_fork_connects_anew(node, place):
    """Both processes had the parent's socket, and each got the other's answers."""
    with node.connect() as client:
        client.put(f"{place}/a", b"parent")
        child = os.fork()
        if child == 0:
            right = False
            try:
                for i in range(100):
                    client.put(f"{place}/child-{i}", b"child")
                right = all(client.get(f"{place}/a") == b"parent" for _ in range(100))
            finally:
                os._exit(0 if right else 1)
        for _ in range(100):
            assert client.get(f"{place}/a") == b"parent"
        assert os.waitpid(child, 0)[1] == 0
        assert client.get(f"{place}/child-99") == b"child"


def test_a_file_from_before_a_fork_is_left_alone(node, place):
    """The child's reads took the parent's answers, of other files, and its end closed the session."""
    with node.connect() as client:
        client.put(f"{place}/a", b"a" * (3 << 20))
        reader = client.open(f"{place}/a", buffering=0)
        writer = client.open(f"{place}/b", "wb", buffering=0)
        writer.write(b"b" * (3 << 20))
        child = os.fork()
        if child == 0:
            refused = 0
            try:
                for use in (lambda: reader.read(10), lambda: writer.write(b"x"), writer.abandon):
                    try:
                        use()
                    except ValueError as e:
                        refused += "fork" in str(e)
                del reader, writer, client
                gc.collect()
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert reader.read(-1) == b"a" * (3 << 20)
        writer.write(b"c")
        writer.close()
        assert client.get(f"{place}/b") == b"b" * (3 << 20) + b"c"


def test_a_closed_client_says_so(node, place):
    client = node.connect()
    with client.open(f"{place}/a", "wb") as file:
        client.close()
        file.write(b"goes on")
    with pytest.raises(ValueError, match="closed"):
        client.get(f"{place}/a")


def test_a_call_goes_on_when_its_node_comes_back(tmp_path):
    from conftest import Node

    node = Node(tmp_path / "data")
    try:
        client = node.connect()
        client.put("/a", b"kept")
        node.kill()
        node.start()
        assert client.get("/a") == b"kept"
        client.put("/b", b"")
    finally:
        node.kill()
