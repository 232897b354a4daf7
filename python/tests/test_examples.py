"""The examples, as a user runs them: programs of their own, against one Ray that this module starts."""

import collections
import os
import pathlib
import random
import subprocess
import sys

import pytest

ray = pytest.importorskip("ray", reason="examples of jobs are not tried: `make python-ray` installs Ray")
EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster

    cluster = Cluster(head_node_args={"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}, initialize_head=True)
    yield cluster.address
    cluster.shutdown()


def example(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr


def parts(directory):
    return [line for path in sorted(directory.iterdir()) for line in path.read_text().splitlines()]


def test_word_count(address, tmp_path):
    (tmp_path / "in").write_text("To be or not\nto be\n\n" * 500)
    example("word_count.py", address, tmp_path / "out", tmp_path / "in")
    assert parts(tmp_path / "out") == ["be\t1000", "not\t500", "or\t500", "to\t1000"]


def test_inverted_index(address, tmp_path):
    (tmp_path / "in").write_text("a\tone two\nb\ttwo three\nc\tTWO two\n")
    example("inverted_index.py", address, tmp_path / "out", tmp_path / "in")
    assert parts(tmp_path / "out") == ["one\ta", "three\tb", "two\ta b c"]


def test_sessions(address, tmp_path):
    draw = random.Random(1)
    requests = [(f"user{draw.randrange(20)}", draw.randrange(200_000)) for _ in range(2000)]
    (tmp_path / "in").write_text("".join(f"{user} {at} /page\n" for user, at in requests))
    example("sessions.py", address, tmp_path / "out", tmp_path / "in")
    expected = []
    for user in sorted({user for user, _ in requests}):
        moments = sorted(at for other, at in requests if other == user)
        sessions = [[moments[0]]]
        for before, at in zip(moments, moments[1:]):
            sessions[-1].append(at) if at - before <= 1800 else sessions.append([at])
        expected += [f"{user} {s[0]} {s[-1] - s[0]} {len(s)}" for s in sessions]
    assert parts(tmp_path / "out") == expected and len(expected) > 100


def test_pagerank(address, tmp_path):
    draw = random.Random(2)
    links = {f"p{n}": [f"p{draw.randrange(40)}" for _ in range(draw.randrange(5))] for n in range(40)}
    (tmp_path / "in").write_text("".join(f"{page}\t{' '.join(to)}\n" for page, to in links.items()))
    example("pagerank.py", address, tmp_path, 2, tmp_path / "in")
    ranks = dict.fromkeys(links, 1.0)
    for _ in range(2):
        given = collections.defaultdict(float)
        for page, to in links.items():
            for target in to:
                given[target] += ranks[page] / len(to)
        ranks = {page: 0.15 + 0.85 * given[page] for page in links}
    found = {line.split("\t")[0]: float(line.split("\t")[1]) for line in parts(tmp_path / "2")}
    assert found == {page: pytest.approx(rank) for page, rank in ranks.items()}
