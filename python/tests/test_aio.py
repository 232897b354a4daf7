"""The client of asyncio."""

import asyncio
import random

import pytest

import holdfast.aio


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
