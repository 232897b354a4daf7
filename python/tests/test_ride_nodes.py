"""Rides over two nodes at once, of which one is killed in the middle."""

import json
import os
import random
import subprocess
import time

import pytest

import holdfast
from conftest import BINARY, Node
from holdfast import errors

#: More than the streams of one ride hold while nobody takes from them: 20 MB.
ITEMS = 100
VALUE_BYTES = 200_000


class Pair:
    """Two nodes of one cluster. The first keeps the log; which has which views, each test says."""

    def __init__(self, directory):
        self.first = Node(directory / "1")
        self.second = Node(directory / "2", joins=self.first)
        self.servers = [self.first.server, self.second.server]

    def end(self):
        for node in (self.second, self.first):
            node.kill()


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    yield pair
    pair.end()


def wait_for(what, seconds=60):
    until = time.monotonic() + seconds
    while True:
        try:
            return what()
        except errors.HoldfastError:
            if time.monotonic() > until:
                raise


def filled(orders, items=ITEMS, value_bytes=VALUE_BYTES):
    model = {b"k%03d" % n: random.Random(n).randbytes(value_bytes) for n in range(items)}
    for key, value in model.items():
        orders.put("nodes", key, value)
    return model


def test_views_of_two_nodes_are_ridden_at_once(pair):
    with holdfast.connect(pair.servers) as client, holdfast.connect(pair.servers[1]) as second:
        with client.items("orders") as orders, second.items("orders") as other:
            orders.make("nodes")
            orders.run_view("disk", part=0, of=2)
            wait_for(lambda: other.run_view("disk", part=1, of=2))
            model = filled(orders, 500, 20)
            # A part of it is not here.
            with pytest.raises(errors.NotFoundError, match="none has hashes"):
                orders.ride()
            with orders.ride(servers=pair.servers) as ride:
                found = [(item.key, item.value) for item in ride]
                assert ride.index > 0 and ride.token is None and ride.left_out == [] and not ride.follows
            assert sorted(found) == sorted(model.items())
            halves = [{item.key for item in orders.ride(part, 2, servers=",".join(pair.servers))} for part in (0, 1)]
            assert not halves[0] & halves[1] and halves[0] | halves[1] == set(model)
            assert {item.key for item in orders.ride(0, 2, servers=[pair.servers[0]], dedicated=True)} == halves[0]
            # One that follows goes on with the log, of all of it.
            with orders.ride(servers=pair.servers, follow=True, keys_only=True) as ride:
                assert {next(ride).key for _ in model} == set(model)
                made = orders.put("nodes", b"new", b"1")
                orders.delete("nodes", b"k000")
                assert [next(ride)[1:] for _ in range(2)] == [(b"new", made, b""), (b"k000", orders.reached, None)]
                assert ride.follows
            ended = orders.ride(servers=pair.servers, follow=True, below=made)
            assert {item.key for item in ended} == set(model) - {b"k000"}

            with pytest.raises(errors.InvalidError, match="every node that was named is left out"):
                orders.ride(servers=pair.servers, leave_out=pair.servers)
            with pytest.raises(errors.NotFoundError, match="none has hashes"):
                orders.ride(servers=pair.servers, leave_out=pair.servers[1])
            with pytest.raises(errors.RetryError):
                orders.ride(servers="unix:/no/such.sock")
            # It does without one that does not answer, where the others have all.
            ride = orders.ride(1, 2, servers=[pair.servers[1], "unix:/no/such.sock"])
            assert {item.key for item in ride} - {b"new"} == halves[1] - {b"k000"}
            assert "/no/such.sock" in ride.left_out[0]
            with pytest.raises(errors.InvalidError):
                orders.ride(servers=["no server"])


def riders(server):
    told = subprocess.run([BINARY, "--json", "--server", server, "view", "status"], check=True, capture_output=True)
    return sum(json.loads(line)["riders"] for line in told.stdout.splitlines())


def test_a_node_that_is_set_apart_is_ridden_however_much_smaller_others_views_are(pair):
    first, second = pair.servers
    with holdfast.connect(first) as client, holdfast.connect(second) as other:
        orders = client.items("orders")
        orders.make("nodes")
        orders.run_view("disk")
        for part in (0, 1):
            wait_for(lambda part=part: other.items("orders").run_view("disk", part=part, of=2))
        model = filled(orders)
        for apart, ridden in [((), second), (first, first), ([second, "unix:/other"], second)]:
            before = {server: riders(server) for server in pair.servers}
            with orders.ride(servers=pair.servers, apart=apart) as ride:
                more = [server for server in pair.servers if riders(server) > before[server]]
                assert more == [ridden], apart
                assert sorted((item.key, item.value) for item in ride) == sorted(model.items())
        with pytest.raises(errors.InvalidError, match="set apart for rides, and left out"):
            orders.ride(servers=pair.servers, apart=first, leave_out=first)


def test_a_ride_of_a_mark_goes_on_elsewhere_and_by_its_token(pair):
    first, second = pair.servers
    with holdfast.connect(first) as client, holdfast.connect(second) as other:
        orders = client.items("orders")
        orders.make("nodes")
        orders.run_view("disk")
        halves = other.items("orders")
        for part in (0, 1):
            wait_for(lambda part=part: halves.run_view("disk", part=part, of=2))
        model = filled(orders)
        mark = orders.mark()
        for server in pair.servers:
            wait_for(lambda server=server: orders.ride(at=mark, servers=server).close())

        # The halves are ridden, for smaller views are preferred; when their node dies, the rest comes from the
        # other's whole.
        ride = orders.ride(at=mark, servers=[second, first], follow=True)
        assert ride.index == mark and ride.token.startswith("ride.")
        came = [next(ride) for _ in range(5)]
        pair.second.kill()
        came += [next(ride) for _ in range(ITEMS - 5)]
        assert sorted((item.key, item.value) for item in came) == sorted(model.items())
        # And it goes on with the log of who is left.
        made = orders.put("nodes", b"new", b"1")
        assert next(ride)[1:] == (b"new", made, b"1")
        assert ride.left_out and second in ride.left_out[0]
        ride.close()

        # What nobody is left to give, a token takes up again, in another process or another client.
        ride = orders.ride(at=mark)
        came = [next(ride)]
        while ride._ready:
            came.append(next(ride))
        token = ride.token
        assert token != orders.ride(at=mark).token
        pair.first.kill()
        with pytest.raises(errors.RetryError, match="ride topic `orders`: ride at"):
            while True:
                came.append(next(ride))
        with pytest.raises(errors.RetryError):
            next(ride)
        token = ride.token
        pair.first.start()
    with holdfast.connect(first) as client, client.items("orders") as orders:
        left = wait_for(lambda: list(orders.ride(token=token)))
        assert len(came) + len(left) == ITEMS and left
        assert sorted((item.key, item.value) for item in came + left) == sorted(model.items())
        with pytest.raises(errors.InvalidError, match="other options"):
            orders.ride(token=token, versions=True)
        with pytest.raises(errors.InvalidError, match="no token"):
            orders.ride(token=token[:-2])
        with pytest.raises(errors.InvalidError, match="leave out `at`"):
            orders.ride(token=token, at=mark)
        with pytest.raises(errors.NotFoundError, match="only images"):
            orders.ride(at=mark + 1)


def test_a_ride_of_the_present_is_over_when_its_node_is(pair):
    with holdfast.connect(pair.servers[0]) as client, holdfast.connect(pair.servers[1]) as other:
        orders = client.items("orders")
        orders.make("nodes")
        orders.run_view("disk")
        wait_for(lambda: other.items("orders").run_view("disk"))
        filled(orders)
        ride = orders.ride(servers=pair.servers[1])
        next(ride)
        here = {"servers": pair.servers[0], "leave_out": pair.servers[1], "reached": orders.reached}
        elsewhere = other.items("orders").ride(**here)
        pair.second.kill()
        # Of one that has all of it, the client's own node need not be there.
        assert len(list(elsewhere)) == ITEMS
        with pytest.raises(errors.RetryError):
            list(ride)
        with pytest.raises(errors.RetryError):
            next(ride)
        ride.close()
        assert list(ride) == []


def test_what_is_half_taken_comes_again_and_a_child_leaves_it_alone(node, client):
    with client.items("halftaken") as orders:
        orders.make("nodes")
        orders.run_view("disk")
        model = filled(orders, 50, 10)
        mark = orders.mark()
        ride = wait_for(lambda: orders.ride(at=mark))
        taken = []
        while not ride._ready:
            begun = ride.token
            taken.append(next(ride).key)
        assert ride.token == begun, "others came with the last one"
        child = os.fork()
        if child == 0:
            refused = 0
            try:
                try:
                    next(iter(orders.ride(at=mark)))
                    [next(ride) for _ in range(50)]
                except ValueError as e:
                    refused = int("fork" in str(e))
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        again = {item.key for item in orders.ride(token=ride.token)}
        # The command line takes the same token.
        command = [BINARY, "--json", "--server", node.server, "ride", "halftaken", "--from", ride.token, "--print"]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        assert {json.loads(line)["key"].encode() for line in told[:-1]} == again
        rest = {item.key for item in ride}
        assert again == rest | {taken[-1]} and rest == set(model) - set(taken) and ride.token != begun
        assert list(orders.ride(token=ride.token)) == []
