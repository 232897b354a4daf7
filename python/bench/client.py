"""The Python client beside the Rust client, and a scan of Parquet beside s3fs, all from one node: ``python3
python/bench/client.py BINARY``, of which BINARY is an optimised `holdfast`, as the package is by `make wheel`.
Nothing else may run. In turns, medians.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

MIB = 1 << 20


def rust(binary, *arguments):
    """What the Rust client comes to, with a node of its own: bytes a second, and the median of a request in
    microseconds."""
    command = [binary, "--json", "bench", "iobench", "-e", "1", *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told = json.loads(said.splitlines()[-1])
    return told["bytes_per_second"], told["latency_us"]["p50"]


def read(client, length):
    """Bytes a second of reading a file in pieces of 512 KiB into the caller's memory."""
    into, took = bytearray(512 << 10), 0
    began = time.perf_counter()
    while time.perf_counter() < began + 1:
        with client.open("/read", buffering=0) as file:
            while n := file.readinto(into):
                took += n
    return took / (time.perf_counter() - began)


def get(client):
    """The median of a get of four bytes, in microseconds."""
    times = []
    for _ in range(20_000):
        began = time.perf_counter_ns()
        client.get("/four")
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1000


def write_parquet(path, length):
    import numpy
    import pyarrow
    import pyarrow.parquet

    draw = numpy.random.default_rng(1)
    rows = length // 32
    table = pyarrow.table({name: draw.random(rows) for name in "abcd"})
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False, row_group_size=1 << 20)


def scan(fs, path):
    """Seconds of a scan of all columns."""
    import pyarrow.dataset

    began = time.perf_counter()
    found = pyarrow.dataset.dataset(path, filesystem=fs, format="parquet").scanner(use_threads=True)
    rows = sum(batch.num_rows for batch in found.to_batches())
    return time.perf_counter() - began, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--parquet", type=int, default=1000, metavar="MB")
    options = parser.parse_args()
    os.environ["HOLDFAST_BIN"] = options.binary
    import conftest
    import fsspec
    import s3fs

    import holdfast

    settings = conftest.SETTINGS.replace('dram = "64MiB"', 'dram = "1GiB"').replace("s3_port = 0", "s3_port = {s3}")
    with tempfile.TemporaryDirectory(dir=".") as directory:
        data = pathlib.Path(directory).resolve() / "data"
        data.mkdir()
        ports = {"port": conftest.free_port(), "s3": conftest.free_port()}
        (data / "holdfast.toml").write_text(settings.format(**ports))
        node = conftest.Node(data)
        try:
            secret = str(data / "secret")
            with holdfast.connect(node.ready["native"], secret=secret) as client:
                client.put("/read", bytes(256 * MIB), storage_class="dram")
                client.put("/four", b"four", storage_class="dram")
                found = {"read": [], "rust read": [], "get": [], "rust get": [], "holdfast": [], "s3fs": []}
                for _ in range(options.runs):
                    found["rust read"].append(rust(options.binary, "-t", "readSequential", "-s", "512K")[0])
                    found["read"].append(read(client, 256 * MIB))
                    found["rust get"].append(rust(options.binary, "-t", "getKey", "-s", "4")[1])
                    found["get"].append(get(client))
                whole = f"{directory}/whole.parquet"
                write_parquet(whole, options.parquet * 10**6)
                keys = json.loads((data / "credentials.json").read_text())
                objects = s3fs.S3FileSystem(
                    endpoint_url=f"http://127.0.0.1:{ports['s3']}", key=keys["access_key"], secret=keys["secret_key"]
                )
                objects.mkdir("scan")
                objects.put(whole, "scan/whole.parquet")
                files = fsspec.filesystem("holdfast", servers=node.ready["native"], secret=secret)
                files.put(whole, "/whole.parquet")
                rows = set()
                for _ in range(options.runs):
                    for name, fs, path in (("holdfast", files, "/whole.parquet"), ("s3fs", objects, "scan/whole.parquet")):
                        seconds, count = scan(fs, path)
                        found[name].append(seconds)
                        rows.add(count)
                assert len(rows) == 1, rows
        finally:
            node.stop()
    print(json.dumps(found))
    middle = {name: statistics.median(values) for name, values in found.items()}
    ratios = {"read, of the Rust client's": middle["read"] / middle["rust read"],
              "get of 4 B, p50, of the Rust client's": middle["get"] / middle["rust get"],
              "scan of Parquet, times as fast as s3fs": middle["s3fs"] / middle["holdfast"]}
    print(json.dumps({name: round(ratio, 2) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
