"""Measures jobs on nodes of Ray that it starts on this machine: ``python3 python/bench/jobs.py skew|killed``.

skew     a mapreduce of whose pairs one key has half, beside one of as many pairs whose keys are alike: walls,
         and the most memory that a receiver had
killed   a sort over four nodes, undisturbed, and with one of them killed in the middle of each phase
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import tempfile

import ray
from ray.cluster_utils import Cluster

import holdfast


def start(nodes):
    options = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    for _ in range(nodes - 1):
        cluster.add_node(**options)
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    return cluster


def stop(cluster):
    ray.shutdown()
    cluster.shutdown()


def write_lines(path, count, hot):
    """Lines of a key and 80 bytes; the share `hot` of them has one key."""
    draw = random.Random(1)
    with open(path, "w") as file:
        for n in range(count):
            key = "hot" if draw.random() < hot else f"key{draw.randrange(count // 10):08}"
            file.write(f"{key} {n:080}\n")


def pair(line):
    key, _, value = line.partition(b" ")
    yield key, value


def count(key, values):
    return sum(1 for _ in values)


def receivers_memory(stats):
    """The least and the most that one had: the least is Python's and Ray's."""
    held = [sample[4] for samples in stats.timeline.receivers.values() for sample in samples.taken]
    return [min(held), max(held)]


def run_skew(place, options):
    cluster = start(2)
    try:
        for name, hot in (("uniform", 0.0), ("half of the values have one key", 0.5)):
            write_lines(place / "in", options.lines, hot)
            for again in range(options.runs):
                job = {"map": pair, "reduce": count, "ray": "auto", "memory": options.memory << 20, "split_bytes": options.split << 20}
                stats = holdfast.mapreduce([place / "in"], place / "out", temp=[str(place / "temp")], **job)
                told = {
                    "case": name,
                    "input_bytes": (place / "in").stat().st_size,
                    "seconds": round(stats.seconds, 1),
                    "phases": {phase: round(seconds, 1) for phase, seconds in stats.phases.items()},
                    "partitions": stats.partitions,
                    "largest_partition_bytes": max(task.bytes for task in stats.timeline.finished),
                    "receiver_resident_bytes": receivers_memory(stats),
                    "cpu_seconds": round(stats.cpu_seconds, 1),
                }
                print(json.dumps(told), flush=True)
                if options.picture:
                    pathlib.Path(f"{options.picture}-{hot}-{again}.svg").write_text(stats.picture())
                shutil.rmtree(place / "out")
    finally:
        stop(cluster)


def run_killed(place, options):
    if options.input:
        (place / "in").symlink_to(pathlib.Path(options.input).resolve())
    else:
        write_lines(place / "in", options.lines, 0.0)
    walls = {}
    for phase in (None, "map", "finish"):
        for again in range(options.runs):
            cluster = start(4)
            try:
                stats = sort(place, options, cluster, phase)
            finally:
                stop(cluster)
            walls.setdefault(phase, []).append(stats.seconds)
            told = {
                "case": f"a node killed in {phase}" if phase else "undisturbed",
                "seconds": round(stats.seconds, 1),
                "of_undisturbed": round(stats.seconds / min(walls[None]), 2),
                "phases": {name: round(seconds, 1) for name, seconds in stats.phases.items()},
                "lost": [stats.lost_attempts, stats.lost_receivers],
                "cpu_seconds": round(stats.cpu_seconds, 1),
            }
            print(json.dumps(told), flush=True)
            if options.picture:
                pathlib.Path(f"{options.picture}-{phase}-{again}.svg").write_text(stats.picture())
            os.unlink(place / "out")


def sort(place, options, cluster, phase):
    seen = {"map": 0, "finish": 0}

    def observe(kind, _, job):
        seen[kind] += 1
        middle = {"map": len(job.splits), "finish": job.stats.partitions}
        if kind == phase and seen[kind] == middle[kind] // 2:
            node = cluster.worker_nodes and next(iter(cluster.worker_nodes))
            cluster.remove_node(node, allow_graceful=False)
            # A machine takes its processes along.
            for slot in job.slots:
                if slot.node == node.node_id:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(slot.pid, signal.SIGKILL)

    job = {"ray": "auto", "memory": options.memory << 20, "split_bytes": options.split << 20, "observe": observe}
    return holdfast.sort([place / "in"], place / "out", temp=[str(place / "temp")], **job)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=["skew", "killed"])
    parser.add_argument("--lines", type=int, default=2_000_000, help="of about 92 bytes")
    parser.add_argument("--input", metavar="FILE", help="lines to sort instead, as `holdfast sort gen --ascii` makes them")
    parser.add_argument("--split", type=int, default=8, metavar="MIB", help="of the input, a task")
    parser.add_argument("--memory", type=int, default=64, metavar="MIB", help="of a node")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--dir", default=None, help="for inputs, outputs and what is under way")
    parser.add_argument("--picture", metavar="PREFIX", help="draw each run")
    chosen = parser.parse_args()
    ray.cloudpickle.register_pickle_by_value(__import__("__main__"))
    if chosen.dir is not None:
        os.makedirs(chosen.dir, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=chosen.dir) as directory:
        {"skew": run_skew, "killed": run_killed}[chosen.case](pathlib.Path(directory), chosen)
