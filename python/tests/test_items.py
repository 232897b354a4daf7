"""Topics of items against a node: sessions read what they wrote, rides give each item once, and who follows
hears of every change, held against a plain dictionary."""

import json
import random
import threading
import time

import pytest

import holdfast
from conftest import Node
from holdfast import errors


@pytest.fixture
def topic(client, request):
    with client.items(request.node.name.translate(str.maketrans("[]", ".."))[:80]) as topic:
        yield topic


def drawn(topic, draw, model, rounds):
    """Draws changes, and makes them here and there."""
    for _ in range(rounds):
        changes = []
        for _ in range(draw.randrange(1, 6)):
            key = (draw.choice(["a", "b"]), b"%d/%d" % (draw.randrange(20), draw.randrange(3)))
            value = None if draw.randrange(4) == 0 else draw.randbytes(draw.randrange(40))
            changes.append((*key, value))
        topic.change(changes)
        for collection, key, value in changes:
            model.pop((collection, key), None)
            if value is not None:
                model[collection, key] = value


def newest(items):
    return {(item.collection, item.key): item.value for item in items}


def test_a_session_reads_what_it_wrote(topic):
    topic.make("a", hashed="until=/")
    topic.make("b", hashed="2")
    assert topic.collections == [("a", "until=/", False), ("b", "2", False)]
    topic.run_view("memory")
    draw, model = random.Random(1), {}
    for _ in range(60):
        drawn(topic, draw, model, 1)
        keys = [(c, b"%d/%d" % (draw.randrange(20), n)) for c in "ab" for n in range(3)]
        found = topic.get_many(keys)
        assert [None if one is None else one.value for one in found] == [model.get(key) for key in keys]
        assert all(one is None or (one.collection, one.key) == key for one, key in zip(found, keys))
    for n in range(20):
        prefix = b"%d/" % n
        expected = sorted((key, value) for (c, key), value in model.items() if c == "a" and key.startswith(prefix))
        assert [(item.key, item.value) for item in topic.scan("a", prefix)] == expected


def test_another_session_waits_for_what_it_is_told_of(node, topic):
    topic.make("a")
    topic.run_view("memory")
    with node.connect() as client, client.items(topic.topic) as other:
        for n in range(50):
            topic.put("a", b"k", b"%d" % n)
            assert other.get("a", b"k", reached=topic.reached) == b"%d" % n
        # Of an entry that is still to come.
        late = topic.reached + 1
        told = []
        reader = threading.Thread(target=lambda: told.append(other.get("a", b"k", reached=late)))
        reader.start()
        topic.delete("a", b"k")
        reader.join()
        assert told == [None]


def test_versions_are_there_until_the_horizon(topic):
    topic.make("a")
    topic.run_view("disk")
    first, second = topic.put("a", b"k", b"1"), topic.put("a", b"k", b"2")
    gone = topic.delete("a", b"k")
    assert [topic.get("a", b"k", at=at) for at in (first - 1, first, second, gone, None)] == [None, b"1", b"2", None, None]
    assert topic.trim(second) == second == topic.horizon
    # A view that has not come to that entry still shows older versions, but not to the session that made it.
    with pytest.raises(holdfast.HoldfastError, match="horizon|version"):
        topic.get("a", b"k", at=first)
    assert topic.get("a", b"k", at=second) == b"2"


def test_a_ride_gives_each_item_once(topic):
    topic.make("a", hashed="until=/")
    topic.make("b")
    topic.run_view("disk", part=0, of=2)
    topic.run_view("disk", part=1, of=2)
    draw, model = random.Random(2), {}
    drawn(topic, draw, model, 300)
    with topic.ride() as ride:
        items = list(ride)
        assert ride.index == topic.reached
    assert newest(items) == model and len(items) == len(model)
    # Every change, of which the last one of each key is what there is.
    changes = sorted(topic.ride(versions=True), key=lambda item: item.index)
    left = newest(changes)
    assert {key: value for key, value in left.items() if value is not None} == model
    assert len(changes) > len(items)
    parts = [newest(topic.ride(part, 3)) for part in range(3)]
    assert sum(map(len, parts)) == len(model) and {**parts[0], **parts[1], **parts[2]} == model
    assert newest(topic.ride(collections=["b"])) == {key: value for key, value in model.items() if key[0] == "b"}
    assert list(topic.ride(collections=[])) == []
    assert newest(topic.ride(keys_only=True)) == dict.fromkeys(model, b"")
    middle = changes[len(changes) // 2].index
    since = list(topic.ride(versions=True, since=middle))
    assert sorted(since) == sorted(item for item in changes if item.index >= middle)
    assert all(item.index < middle for item in topic.ride(versions=True, below=middle))


def test_a_ride_as_batches_of_arrow(topic):
    pyarrow = pytest.importorskip("pyarrow")
    topic.make("a")
    topic.run_view("disk")
    topic.change([("a", b"%d" % n, b"x" * n) for n in range(50)])
    topic.delete("a", b"7")
    table = pyarrow.Table.from_batches(topic.ride(versions=True).batches())
    rows = {(row["key"], row["index"]): row["value"] for row in table.to_pylist()}
    assert len(rows) == table.num_rows == 51 and rows[b"7", topic.reached] is None
    assert set(table.column("collection").to_pylist()) == {"a"}
    follows = topic.ride(follow=True).batches()
    next(follows)
    topic.put("a", b"new", b"1")
    assert next(follows).to_pylist() == [{"collection": "a", "key": b"new", "index": topic.reached, "value": b"1"}]


def test_who_follows_hears_of_every_change_behind_its_ride(node, topic):
    topic.make("a", hashed="until=/")
    topic.make("b")
    topic.run_view("disk", part=0, of=2)
    topic.run_view("disk", part=1, of=2)
    draw, model = random.Random(3), {}
    drawn(topic, draw, model, 50)
    ride = topic.ride(follow=True)
    drawn(topic, draw, model, 50)

    # Views are ridden one after the other, the second one as of a later entry, so an end may come with it; of one
    # that came by the log, all in front of it was heard. It is of a collection that was made since.
    topic.make("c")
    found, ends = {}, 0
    while not ride.follows:
        end = topic.put("c", b"%d" % ends, b"")
        ends += 1
        for item in ride:
            found[item.collection, item.key] = item.value
            if item.index == end:
                break
    assert [found.pop(("c", b"%d" % n)) for n in range(ends)] == [b""] * ends
    assert {key: value for key, value in found.items() if value is not None} == model
    # Deletions are told, and nothing twice.
    assert sum(value is None for value in found.values()) > 0
    topic.delete("c", b"0")
    assert next(ride) == ("c", b"0", topic.reached, None)
    ride.close()
    assert list(ride) == []


def test_fields_of_json_and_an_index_of_one(topic):
    topic.make("a", json=True)
    topic.make("raw")
    topic.run_view("disk")
    topic.run_view("index", index=("a", "tag"))
    for n in range(1500):
        topic.put("a", b"%05d" % n, json.dumps({"tag": ["x", f"t{n % 3}"], "n": n}).encode())
    assert list(topic.find("a", "tag", "t1")) == [b"%05d" % n for n in range(1, 1500, 3)]
    assert len(list(topic.find("a", "tag", "x"))) == 1500
    ride = topic.ride(fields=["n"], collections=["a"], follow=True)
    found = [json.loads(next(ride).value) for _ in range(1500)]
    assert sorted(one["n"] for one in found) == list(range(1500)) and all(len(one) == 1 for one in found)
    topic.put("a", b"new", b'{"n": 1, "tag": "x"}')
    assert next(ride).value == b'{"n":1}'


def test_who_follows_up_to_an_entry_comes_to_an_end(topic):
    topic.make("a")
    topic.run_view("disk")
    made = [topic.put("a", b"%d" % n, b"") for n in range(10)]
    ride = topic.ride(follow=True, below=made[-1] + 3)
    assert sorted(next(ride).key for _ in made) == [b"%d" % n for n in range(10)]
    for n in range(10, 20):
        made.append(topic.put("a", b"%d" % n, b""))
    assert [item.index for item in ride] == [index for index in made[10:] if index < made[9] + 3]
    assert list(ride) == [] and ride.follows


def test_an_error_behind_items_is_told_behind_them_and_ends_the_ride(topic):
    """Its entry was passed over, and the ride went on as if it had no changes."""
    topic.make("a", json=True)
    topic.run_view("disk")
    topic.put("a", b"1", b'{"n": 1}')
    ride = topic.ride(fields=["n"], follow=True)
    assert next(ride).key == b"1"
    topic.make("raw")
    for key in (b"2", b"3"):
        topic.put("a", key, b'{"n": 1}')
    topic.put("raw", b"4", b"bytes")
    topic.put("a", b"5", b'{"n": 1}')
    assert [next(ride).key for _ in range(2)] == [b"2", b"3"]
    for _ in range(2):
        with pytest.raises(errors.InvalidError, match="follow fields of values: those of collection `raw`"):
            next(ride)


def test_a_ride_of_images_is_as_of_their_mark(topic):
    topic.make("a")
    topic.run_view("disk")
    draw, model = random.Random(4), {}
    topic.make("b")
    drawn(topic, draw, model, 100)
    then = dict(model)
    mark = topic.mark()
    drawn(topic, draw, model, 100)
    # The image is written behind the mark; until it is there nothing can be ridden as of it.
    until = time.monotonic() + 60
    while True:
        try:
            found = newest(topic.ride(at=mark))
            break
        except errors.NotFoundError as e:
            assert "only images" in str(e) and time.monotonic() < until
    assert found == then and newest(topic.ride()) == model


def test_a_follower_goes_on_when_its_node_is_back(tmp_path):
    node = Node(tmp_path / "data")
    try:
        with node.connect(patience=0.0) as client, client.items("orders") as orders:
            orders.make("a")
            orders.run_view("disk")
            orders.put("a", b"1", b"1")
            ride = orders.ride(follow=True)
            assert next(ride).key == b"1"
            orders.put("a", b"2", b"2")
            assert next(ride).key == b"2"
            node.kill()
            with pytest.raises(errors.RetryError):
                next(ride)
            node.start()
            with node.connect() as again, again.items("orders") as other:
                other.put("a", b"3", b"3")
            # The same ride, and nothing is left out or comes twice.
            assert next(ride).key == b"3"
            # The session is another one.
            orders.put("a", b"4", b"4")
            assert next(ride)[1:] == (b"4", orders.reached, b"4")
    finally:
        node.stop()


def test_what_is_wrong_has_a_sentence(client, topic):
    with pytest.raises(errors.InvalidError, match="name a topic of items `a/b`"):
        client.items("a/b")
    topic.make("a")
    with pytest.raises(errors.NotFoundError, match="find collection `no` of topic .*: it has a: `make` it"):
        topic.put("no", b"k", b"v")
    with pytest.raises(errors.NotFoundError, match="none has hashes .*view run disk"):
        topic.ride()
    topic.run_view("disk")
    with pytest.raises(errors.InvalidError, match="ride part 3 of 3: parts count from 0"):
        topic.ride(3, 3)
    with pytest.raises(errors.InvalidError, match="leave out `dedicated`"):
        topic.ride(at=7, dedicated=True)
    with pytest.raises(errors.InvalidError, match="hashed=`until=xy`: give `all`"):
        topic.make("b", hashed="until=xy")
    with pytest.raises(errors.InvalidError, match="choose `disk`, `memory`, or `index`"):
        topic.run_view("index")
    with pytest.raises(holdfast.HoldfastError, match="make collection `a`: it is there, .* stays as it is"):
        topic.make("a", hashed="3")
    with pytest.raises(TypeError):
        topic.put("a", b"k", "text")
    with pytest.raises(holdfast.HoldfastError, match="key"):
        topic.put("a", b"", b"")
