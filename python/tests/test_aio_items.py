"""Tables, topics of items, rides and tables of records from asyncio."""

import asyncio
import os

import pytest

import holdfast.aio
from holdfast import errors


def run(node, work, **options):
    async def whole():
        async with await holdfast.aio.connect(node.server, **options) as client:
            return await work(client)

    return asyncio.run(whole())


def test_a_table_has_the_calls_of_a_mapping(node, place):
    async def work(client):
        table = await client.table(f"{place}/t")
        await asyncio.gather(*(table.put(f"k{n}", b"%d" % n) for n in range(50)))
        model = {f"k{n}": b"%d" % n for n in range(50)}
        assert await table["k7"] == b"7" and await table.get("no") is None and await table.get("no", 3) == 3
        with pytest.raises(KeyError):
            await table["no"]
        for gone in (table.delete("no"), table.pop("no")):
            with pytest.raises(KeyError):
                await gone
        assert [key async for key in table] == [key async for key in table.keys()] == sorted(model)
        assert {key: value async for key, value in table.items()} == model
        assert [value async for value in table.values()] == [model[key] for key in sorted(model)]
        assert await table.exists("k1") and not await table.exists("no") and await table.count() == 50
        assert await table.pop("k1") == b"1" and await table.pop("k1", None) is None
        assert await table.setdefault("k1", b"x") == await table.setdefault("k1", b"y") == b"x"
        await table.update({"k1": b"z"}, k2=b"z")
        assert (await table["k1"], await table["k2"]) == (b"z", b"z")
        assert await table.popitem() == ("k0", b"0") and not await table.exists("k0")
        await table.clear()
        assert await table.count() == 0
        with pytest.raises(KeyError):
            await table.popitem()
        for wrong in ("", "k1/"):
            assert not await table.exists(wrong)
            for use in (table.get, table.delete, table.pop):
                with pytest.raises(holdfast.errors.InvalidError, match="it is a name in a directory"):
                    await use(wrong)
        await client.table(f"{place}/t")
        await client.put(f"{place}/file", b"")
        with pytest.raises(FileExistsError):
            await client.table(f"{place}/file")

    run(node, work)


def test_a_session_of_items_and_its_rides(node):
    async def work(client):
        async with client.items("aio-items") as orders:
            await orders.make("a", hashed="until=/", json=True)
            await orders.run_view("disk")
            await orders.run_view("index", index=("a", "n"))
            # Pages are told of one after the other.
            made = await asyncio.gather(*(orders.put("a", b"x/%04d" % n, b'{"n": "%d"}' % (n % 2)) for n in range(1200)))
            assert len(set(made)) == 1200 and orders.reached == max(made)
            assert [item.key async for item in orders.scan("a", b"x/")] == [b"x/%04d" % n for n in range(1200)]
            assert [key async for key in orders.find("a", "n", "1")] == [b"x/%04d" % n for n in range(1, 1200, 2)]
            assert await orders.get("a", b"x/0001") == b'{"n": "1"}' and await orders.get("a", b"no/") is None
            assert (await orders.collections)[0][0] == "a" and await orders.horizon == 0
            async with await orders.ride() as ride:
                assert len([item async for item in ride]) == 1200
            change = [("a", b"x/0000", None), ("a", b"y/", b"{}")]
            index = await orders.change(change)
            found = await orders.get_many([("a", b"x/0000"), ("a", b"y/")])
            assert found[0] is None and found[1].index == index
            with pytest.raises(errors.NotFoundError):
                await orders.ride(at=await orders.mark(), servers=node.server)
            with pytest.raises(errors.InvalidError):
                await orders.ride(2, 1)

    run(node, work)


def test_a_step_of_a_ride_that_is_cancelled_loses_nothing(node):
    async def work(client):
        async with client.items("aio-follow") as orders:
            await orders.make("a")
            await orders.run_view("disk")
            await orders.put("a", b"first", b"")
            ride = await orders.ride(follow=True)
            assert (await ride.__anext__()).key == b"first"
            came, cancelled = [], 0
            for n in range(20):
                step = asyncio.ensure_future(ride.__anext__())
                await asyncio.sleep(0)
                step.cancel()
                await orders.put("a", b"%d" % n, b"")
                try:
                    # One that had come for an earlier step.
                    came.append((await step).key)
                except asyncio.CancelledError:
                    cancelled += 1
            came += [(await ride.__anext__()).key for _ in range(20 - len(came))]
            assert came == [b"%d" % n for n in range(20)] and ride.follows and cancelled
            # Several that wait take one each.
            steps = [asyncio.ensure_future(ride.__anext__()) for _ in range(3)]
            await orders.change([("a", b"%d" % n, b"") for n in range(3)])
            assert {(await step).key for step in steps} == {b"0", b"1", b"2"}
            await ride.close()
            assert [item async for item in ride] == []

    run(node, work)


def test_many_who_follow_hold_up_nobody(node):
    """Each waits in a thread of its own."""

    async def work(client):
        async with client.items("aio-many") as orders:
            await orders.make("a")
            await orders.run_view("disk")
            first = await orders.put("a", b"first", b"")

            async def begin():
                ride = await orders.ride(follow=True)
                assert (await ride.__anext__()).index == first
                return ride

            rides = await asyncio.gather(*(begin() for _ in range(10)))
            steps = [asyncio.ensure_future(ride.__anext__()) for ride in rides]
            for _ in range(20):
                await client.ping()
            index = await orders.put("a", b"k", b"v")
            assert [(await step).index for step in steps] == [index] * 10
            await asyncio.gather(*(ride.close() for ride in rides))

    # Fewer threads than rides.
    run(node, work, connections=2)


def test_batches_of_arrow(node):
    pyarrow = pytest.importorskip("pyarrow")

    async def work(client):
        async with client.items("aio-batches") as orders:
            await orders.make("a")
            await orders.run_view("disk")
            await orders.change([("a", b"%d" % n, b"x" * n) for n in range(50)])
            batches = [batch async for batch in (await orders.ride()).batches()]
            assert pyarrow.Table.from_batches(batches).num_rows == 50

    run(node, work)


def test_records_and_what_else_waits_in_threads(node, place):
    async def work(client):
        async with client.records("aio") as records:
            await records.make()
            assert await records.put(b"k", b"1", if_absent=True) == 1
            with pytest.raises(errors.VersionError) as raised:
                await records.put(b"k", b"2", if_version=7)
            assert raised.value.version == 1 and await records.get(b"k") == (1, b"1")
            wins = await asyncio.gather(
                *(records.put(b"k", b"%d" % n, if_version=1) for n in range(5)), return_exceptions=True
            )
            assert sorted(map(str, wins))[0] == "2" and sum(isinstance(one, errors.VersionError) for one in wins) == 4
            await records.write([(b"%04d" % n, b"") for n in range(1500)])
            assert (await records.split(0, at=5)).hashes == [(0, 4), (5, 2**32 - 1)]
            assert [row.key async for row in records.scan(b"1")] == [b"%04d" % n for n in range(1000, 1500)]
            async with client.records("aio") as other:
                await other.go_on(await records.session)
                assert (await other.get_many([b"k", b"no"]))[1] is None
            assert await records.delete(b"k") == 3 and (await records.describe()).records == 1500
        assert "aio" in [one.table for one in await client.record_tables()]
        await client.put(f"{place}/a", b"0123456789")
        assert await client.buffer(f"{place}/a", 2, 5) == b"234"
        await client.symlink("a", f"{place}/link")
        await client.set_attributes(f"{place}/a", mode=0o600, metadata=b"mine")
        info = await client.stat(f"{place}/link", follow=True)
        assert (info.mode, info.metadata) == (0o600, b"mine")
        await client.make_dir(f"{place}/bag", kind="multifile")
        assert (await client.stat(f"{place}/bag")).kind == "multifile"
        indices = await client.log.append("aio/log", b"1", b"2", synced=False)
        await client.log.append("aio/log", b"3")
        # What is synced has synced what was in front of it.
        await client.log.trim("aio/log", indices[1])
        assert "aio/log" in [one.topic for one in await client.log.topics()]

    run(node, work)


def test_a_client_that_was_closed_or_is_of_before_a_fork_says_so(node):
    async def work():
        client = await holdfast.aio.connect(node.server)
        orders = client.items("aio-closed")
        await orders.make("a")
        child = os.fork()
        if child == 0:
            refused = 0
            try:
                try:
                    await orders.make("a")
                except ValueError as e:
                    refused = int("fork" in str(e))
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        await client.close()
        await client.close()
        # Calls over its one connection went on.
        for call in (client.get, client.stat, client.exists, client.open):
            with pytest.raises(ValueError, match="closed"):
                await call("/")
        with pytest.raises(ValueError, match="closed"):
            await orders.make("a")
        with pytest.raises(ValueError, match="closed"):
            await client.ping()

    asyncio.run(work())
