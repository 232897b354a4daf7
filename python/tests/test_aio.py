"""The client of asyncio."""

import asyncio
import random

import pytest

import holdfast.aio
import holdfast.errors


def run(node, work):
    async def whole():
        async with await holdfast.aio.connect(node.server) as client:
            return await work(client)

    return asyncio.run(whole())


def test_calls_go_side_by_side(node, place):
    files = {f"{place}/{i}": random.Random(i).randbytes(i * 3001) for i in range(200)}
    files[f"{place}/large"] = random.Random(0).randbytes((16 << 20) + 1)

    async def work(client):
        await asyncio.gather(*(client.put(path, data) for path, data in files.items()))
        read = await asyncio.gather(*(client.get(path) for path in files))
        assert read == list(files.values())
        parts = await client.get_ranges([(path, 10, 3000) for path in files])
        assert parts == [data[10:3000] for data in files.values()]
        names = [entry.name async for entry in client.list(place)]
        assert names == sorted(path.rpartition("/")[2] for path in files)
        assert (await client.usage(place)).files == len(files)
        await client.rename(f"{place}/1", f"{place}/one")
        await client.delete(f"{place}/2")
        there = [await client.exists(f"{place}/{name}") for name in ("1", "one", "2")]
        assert there == [False, True, False]
        assert (await client.stat(f"{place}/one")).size == 3001

    run(node, work)


def test_errors_are_those_of_the_other_client(node, place):
    async def work(client):
        with pytest.raises(FileNotFoundError):
            await client.get(f"{place}/no")
        await client.put(f"{place}/a", b"")
        with pytest.raises(FileExistsError):
            await client.put(f"{place}/a", b"")
        with pytest.raises(TypeError):
            await client.put(f"{place}/a", "text")

    run(node, work)


def test_a_call_that_is_cancelled_disturbs_no_other(node, place):
    async def work(client):
        await client.put(f"{place}/a", b"a")
        for _ in range(50):
            calls = [asyncio.ensure_future(client.get(f"{place}/a")) for _ in range(10)]
            for call in calls[::2]:
                call.cancel()
            assert await asyncio.gather(*calls[1::2]) == [b"a"] * 5

    run(node, work)


def test_a_client_outlives_the_loop_that_made_it(node, place):
    client = asyncio.run(holdfast.aio.connect(node.server))

    async def put():
        return await client.put(f"{place}/a", b"later", replace=True)

    assert asyncio.run(put()) != asyncio.run(put())
    asyncio.run(close(client))


async def close(client):
    await client.close()


# Around a piece, and what is asked for ahead.
@pytest.mark.parametrize("size", [0, 1, (512 << 10) - 1, 512 << 10, (512 << 10) + 1, (5 << 20) + 7])
def test_a_file_is_a_stream_both_ways(node, place, size):
    data = random.Random(size).randbytes(size)

    async def work(client):
        async with client.create(f"{place}/a") as file:
            for at in range(0, size, 100_003):
                await file.write(data[at : at + 100_003])
            await file.flush()
            assert not await client.exists(f"{place}/a")
        assert (await client.stat(f"{place}/a")).id == file.id
        opened = await client.open(f"{place}/a")
        pieces = [piece async for piece in opened]
        assert b"".join(pieces) == data and opened.position == size == opened.size
        assert all(0 < len(piece) <= holdfast.aio.PIECE_BYTES for piece in pieces)
        again = await client.open(f"{place}/a")
        assert await again.read(10) + await again.read() + await again.read() == data
        places = [(size * n // 7, 1000 * n) for n in range(9)]
        read = await asyncio.gather(*(again.read_at(*place) for place in places))
        assert read == [data[at : at + length] for at, length in places]

    run(node, work)


def test_a_stream_that_is_given_up_leaves_no_file(node, place):
    async def work(client):
        with pytest.raises(KeyError):
            async with client.create(f"{place}/a") as file:
                await file.write(bytes(1 << 20))
                raise KeyError
        assert not await client.exists(f"{place}/a")
        await client.put(f"{place}/b", b"")
        with pytest.raises(FileExistsError):
            async with client.create(f"{place}/b") as file:
                await file.write(b"x")
        async with client.create(f"{place}/b", replace=True) as file:
            await file.write(b"x")
        with pytest.raises(holdfast.errors.InvalidError, match="it was closed"):
            await file.write(b"more")
        await file.close()
        assert await client.get(f"{place}/b") == b"x"
        with pytest.raises(TypeError):
            await client.create(f"{place}/c").write("text")
        with pytest.raises(FileNotFoundError):
            await client.open(f"{place}/no")

    run(node, work)


def test_writes_that_are_cancelled_are_made_in_their_order(node, place):
    """What is under way to the node cannot be taken back, and the next write must not overtake it."""
    pieces = [random.Random(n).randbytes(700_000) for n in range(12)]

    async def work(client):
        file = client.create(f"{place}/a")
        for n, piece in enumerate(pieces):
            write = asyncio.ensure_future(file.write(piece))
            # It has begun.
            await asyncio.sleep(0)
            if n % 2:
                write.cancel()
            else:
                assert await write == len(piece)
        await file.close()
        assert await client.get_ranges([(f"{place}/a", 0, None)]) == [b"".join(pieces)]

    run(node, work)


def test_the_log_is_appended_read_and_followed(node, place):
    topic = place[1:]

    async def work(client):
        with pytest.raises(FileNotFoundError):
            await client.log.info(topic)
        indices = await client.log.append(topic, b"first", b"second")
        assert [entry async for entry in client.log.read(topic)] == list(zip(indices, [b"first", b"second"]))
        assert [entry async for entry in client.log.read(topic, indices[1])] == [(indices[1], b"second")]
        followed = []

        async def follow():
            async for _, entry in client.log.tail(topic, indices[1]):
                followed.append(entry)
                if entry == b"end":
                    return

        following = asyncio.ensure_future(follow())
        for n in range(20):
            await client.log.append(topic, b"%d" % n)
        await client.log.append(topic, b"end")
        await following
        assert followed == [b"second", *(b"%d" % n for n in range(20)), b"end"]
        assert (await client.log.info(topic)).next == indices[0] + 23

    run(node, work)
