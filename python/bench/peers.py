"""Sort and word count beside Ray Data and Spark, one after the other on this machine: ``python3 python/bench/peers.py
sort|words``. A peer is left out where its package (`ray[data]`, `pyspark` with a Java) is not there.

Processor seconds are those of the whole machine while a job runs, so nothing else may run; each engine has started, and
done a small job, before. Results are compared.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
RECORD_BYTES, KEY_BYTES = 100, 10
#: Text is so often the same, which saves drawing it; no engine looks that far back.
TEXT_BYTES = 64 * MIB
VOCABULARY = 100_000


def busy_seconds():
    """What all processors did since the machine began."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def write_text(path, length):
    """Words of a vocabulary as Zipf has it, ten a line, of 5.9 letters in the mean."""
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(draw.choices(letters, k=draw.randrange(2, 11))) for _ in range(VOCABULARY)]
    weights = [1 / rank for rank in range(1, VOCABULARY + 1)]
    text, words = bytearray(), iter(())
    while len(text) < min(TEXT_BYTES, length):
        words = draw.choices(vocabulary, weights, k=100_000)
        text += "".join(" ".join(words[n : n + 10]) + "\n" for n in range(0, len(words), 10)).encode()
    os.mkdir(path)
    # Files, as Ray Data reads one by one task.
    for n in range(max(1, round(length / len(text)))):
        pathlib.Path(f"{path}/{n:03}").write_bytes(text)


def write_records(path, length, peers):
    """Records of a random key, as they are and for peers as Parquet."""
    import pyarrow.compute
    import pyarrow.parquet

    os.makedirs(f"{path}.parquet", exist_ok=True)
    with open(path, "wb") as file:
        step = 64 * MIB // RECORD_BYTES * RECORD_BYTES
        for n in range(0, length, step):
            count = min(step, length - n) // RECORD_BYTES
            records = os.urandom(count * RECORD_BYTES)
            file.write(records)
            if not peers:
                continue
            whole = pyarrow.Array.from_buffers(pyarrow.binary(RECORD_BYTES), count, [None, pyarrow.py_buffer(records)])
            key = pyarrow.compute.binary_slice(whole.cast(pyarrow.binary()), 0, KEY_BYTES)
            value = pyarrow.compute.binary_slice(whole.cast(pyarrow.binary()), KEY_BYTES, RECORD_BYTES)
            table = pyarrow.table({"key": key, "value": value})
            pyarrow.parquet.write_table(table, f"{path}.parquet/{n:012}.parquet", compression="none", use_dictionary=False)


def counted(batch):
    """The words of lines, and how often each is there."""
    import pyarrow.compute

    words = pyarrow.compute.list_flatten(pyarrow.compute.split_pattern(batch["line"], " "))
    found = words.value_counts()
    return pyarrow.table({"word": found.field("values"), "n": found.field("counts")})


class Holdfast:
    """On nodes of Ray of one processor each."""

    def __init__(self, options):
        import ray
        from ray.cluster_utils import Cluster

        self.ray, self.options = ray, options
        node = {"num_cpus": 2 if options.nodes == 1 else 1, "object_store_memory": 80 * MIB}
        self.cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        for _ in range(options.nodes - 1):
            self.cluster.add_node(**node)
        ray.init(address=self.cluster.address, logging_level="error", log_to_driver=False)
        ray.cloudpickle.register_pickle_by_value(sys.modules["__main__"])

    def job(self, output):
        return {"ray": "auto", "memory": self.options.memory * MIB, "temp": [f"{output}.temp"]}

    def sort(self, path, output):
        import holdfast
        from holdfast.sort import Order

        order = Order(record=RECORD_BYTES, end=KEY_BYTES)
        self.stats = holdfast.sort([path], output, order=order, **self.job(output))

    def words(self, path, output):
        import holdfast

        paths = sorted(map(str, pathlib.Path(path).iterdir()))

        def words(batch):
            return holdfast.mapreduce.count_words(batch["line"])

        job = {"format": "lines", "map": words, "key": "word", "combine": "sum", "reduce": "sum"}
        self.stats = holdfast.mapreduce(paths, output, **job, **self.job(output))

    def stop(self):
        self.ray.shutdown()
        self.cluster.shutdown()


class RayData:
    """Batches of Arrow, counted a batch and then summed; a sort of Parquet."""

    def __init__(self, options):
        import ray
        import ray.data

        self.ray = ray
        ray.init(num_cpus=2, object_store_memory=options.store * MIB, logging_level="error", log_to_driver=False, include_dashboard=False)
        ray.data.DataContext.get_current().enable_progress_bars = False

    def sort(self, path, output):
        self.ray.data.read_parquet(f"{path}.parquet").sort("key").write_parquet(output)

    def words(self, path, output):
        def count(batch):
            return counted(batch.rename_columns(["line"]))

        lines = self.ray.data.read_text(path)
        counts = lines.map_batches(count, batch_format="pyarrow", batch_size=65536)
        counts.groupby("word").sum("n").write_parquet(output)

    def stop(self):
        self.ray.shutdown()


class Spark:
    """DataFrames, by two executors of a processor each."""

    def __init__(self, options):
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master("local-cluster[2,1,2048]").config("spark.executor.memory", "2g")
        self.spark = builder.config("spark.ui.enabled", "false").config("spark.local.dir", options.dir).getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")

    def sort(self, path, output):
        self.spark.read.parquet(f"file://{path}.parquet").orderBy("key").write.parquet(f"file://{output}")

    def words(self, path, output):
        from pyspark.sql import functions

        lines = self.spark.read.text(f"file://{path}")
        words = lines.select(functions.explode(functions.split("value", " ")).alias("word"))
        words.groupBy("word").count().withColumnRenamed("count", "n").write.parquet(f"file://{output}")

    def stop(self):
        self.spark.stop()


ENGINES = {"holdfast": Holdfast, "ray-data": RayData, "spark": Spark}


def check_sort(engine, path, output, length):
    """All records are there, and in order."""
    if engine == "holdfast":
        last, count = b"", 0
        with open(output, "rb") as file:
            while some := file.read(RECORD_BYTES * 10_000):
                keys = [some[n : n + KEY_BYTES] for n in range(0, len(some), RECORD_BYTES)]
                assert last <= keys[0] and keys == sorted(keys), "not in order"
                last, count = keys[-1], count + len(keys)
    else:
        import pyarrow.parquet

        count = sum(pyarrow.parquet.ParquetFile(part).metadata.num_rows for part in pathlib.Path(output).glob("*.parquet"))
    assert count == length // RECORD_BYTES, (count, length)


def counts(engine, output):
    found = collections.Counter()
    if engine == "holdfast":
        for part in sorted(os.listdir(output)):
            with open(f"{output}/{part}") as file:
                found.update({word: int(n) for word, n in (line.rstrip("\n").split("\t") for line in file)})
        return found
    import pyarrow.parquet

    for part in pathlib.Path(output).glob("*.parquet"):
        table = pyarrow.parquet.read_table(part)
        found.update(dict(zip(table.column("word").to_pylist(), table.column(1).to_pylist())))
    return found


def one(options):
    """One engine, in a process of its own."""
    path, length = f"{options.dir}/in", options.gigabytes * 10**9
    length -= length % RECORD_BYTES
    engine = ENGINES[options.one](options)
    work = getattr(engine, options.case)
    with open("/dev/null", "w") as nowhere, contextlib.redirect_stderr(nowhere):
        work(f"{options.dir}/small", f"{options.dir}/out.small")
        began, began_busy = time.monotonic(), busy_seconds()
        work(path, f"{options.dir}/out")
        wall, busy = time.monotonic() - began, busy_seconds() - began_busy
    engine.stop()
    told = {"engine": options.one, "case": options.case, "gigabytes": options.gigabytes, "wall_seconds": round(wall, 1),
            "cpu_seconds_a_gigabyte": round(busy / options.gigabytes, 2)}
    if options.case == "sort":
        check_sort(options.one, path, f"{options.dir}/out", length)
    else:
        found = counts(options.one, f"{options.dir}/out")
        told["words"], told["distinct"] = sum(found.values()), len(found)
    if hasattr(engine, "stats"):
        stats = engine.stats
        told["own_cpu_seconds_a_gigabyte"] = {what: round(spent / options.gigabytes, 2) for what, spent in stats.cpu.items()}
        told["read_and_written"] = [round((stats.bytes + stats.spool_read_bytes) / max(1, stats.bytes), 2),
                                    round((stats.spool_written_bytes + stats.output_bytes) / max(1, stats.bytes), 2)]
        told["crossed"] = round(stats.crossed_bytes / max(1, stats.bytes), 2)
    print(json.dumps(told), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=["sort", "words"])
    parser.add_argument("--engines", default=",".join(ENGINES), help="of " + ", ".join(ENGINES))
    parser.add_argument("--gigabytes", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=4, help="of Ray, for Holdfast's jobs")
    parser.add_argument("--memory", type=int, default=512, metavar="MIB", help="of a node, for Holdfast's jobs")
    parser.add_argument("--store", type=int, default=6144, metavar="MIB", help="of Ray's objects, for Ray Data")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--dir", default=None, help="for inputs and outputs")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(options)
    peers = options.engines != "holdfast"
    write = functools.partial(write_records, peers=peers) if options.case == "sort" else write_text
    if options.dir is not None:
        os.makedirs(options.dir, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir) as options.dir:
        length = options.gigabytes * 10**9
        write(f"{options.dir}/in", length - length % RECORD_BYTES)
        write(f"{options.dir}/small", 10**6)
        words = set()
        for _ in range(options.runs):
            for engine in options.engines.split(","):
                command = [sys.executable, __file__, options.case, "--one", engine]
                for name in ("gigabytes", "nodes", "memory", "store", "dir"):
                    command += [f"--{name}", str(getattr(options, name))]
                done = subprocess.run(command, capture_output=True, text=True)
                lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
                print(lines[-1] if lines else f"{engine}: left out: {done.stderr.strip().splitlines()[-1:]}", flush=True)
                if lines and options.case == "words":
                    told = json.loads(lines[-1])
                    words.add((told["words"], told["distinct"]))
                for name in os.listdir(options.dir):
                    if name.startswith("out"):
                        path = f"{options.dir}/{name}"
                        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        assert len(words) < 2, f"engines counted otherwise: {words}"


if __name__ == "__main__":
    main()
