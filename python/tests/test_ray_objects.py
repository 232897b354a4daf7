"""Jobs that read from and write to S3, a node's own and moto's, by the package s3fs."""

import collections
import json
import pathlib
import subprocess
import sys
import time
import urllib.request

import pytest

import holdfast
from holdfast import errors

ray = pytest.importorskip("ray", reason="jobs over many machines are not tried: `make python-ray` installs Ray")
s3fs = pytest.importorskip("s3fs", reason="jobs over S3 are not tried: `make python-ray` installs s3fs")

from conftest import SETTINGS, Node, free_port  # noqa: E402
from test_ray import MEMORY, lines, start, stop, total, words  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    cluster = start(2)
    ray.cloudpickle.register_pickle_by_value(sys.modules["test_ray"])
    yield cluster
    stop(cluster)


#: Where `make tools` puts it.
MOTO = pathlib.Path(__file__).resolve().parents[2] / "target/clients/bin/python"


def of_holdfast(tmp_path_factory):
    directory = tmp_path_factory.mktemp("objects") / "data"
    directory.mkdir()
    port = free_port()
    settings = SETTINGS.replace("s3_port = 0", f"s3_port = {port}").format(port=free_port())
    (directory / "holdfast.toml").write_text(settings)
    node = Node(directory)
    made = json.loads((directory / "credentials.json").read_text())
    yield {"endpoint": f"http://127.0.0.1:{port}", "key": made["access_key"], "secret": made["secret_key"]}
    node.stop()


def of_moto(_):
    if not MOTO.exists() or subprocess.run([MOTO, "-c", "import moto.server"], capture_output=True).returncode:
        pytest.skip("moto is not installed: jobs over another S3 than Holdfast's are not tried: `make tools` installs it")
    port = free_port()
    main = "import sys; from moto.server import main; main(sys.argv[1:])"
    command = [MOTO, "-c", main, "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as moto:
        endpoint = f"http://127.0.0.1:{port}"
        while True:
            try:
                urllib.request.urlopen(f"{endpoint}/moto-api/").close()
                break
            except OSError:
                assert moto.poll() is None, "moto ended"
                time.sleep(0.1)
        yield {"endpoint": endpoint, "key": "any", "secret": "any", "region": "us-east-1"}
        moto.terminate()


@pytest.fixture(scope="module", params=[of_holdfast, of_moto], ids=["holdfast", "moto"])
def s3(tmp_path_factory, request):
    """What a job's call says of a store of objects."""
    yield from request.param(tmp_path_factory)


@pytest.fixture
def fs(s3):
    return s3fs.S3FileSystem(
        endpoint_url=s3["endpoint"], key=s3["key"], secret=s3["secret"], use_listings_cache=False, skip_instance_cache=True
    )


@pytest.fixture
def bucket(fs, request):
    name = request.node.originalname.replace("_", "-")[:60].strip("-")
    fs.mkdir(name)
    return name


@pytest.fixture
def options(s3, tmp_path):
    return {"ray": "auto", "memory": MEMORY, "split_bytes": 300_000, "s3": s3, "temp": [str(tmp_path)]}


@pytest.fixture
def text():
    return lines(4, 30_000)


def objects(fs, bucket):
    return sorted(name.partition("/")[2] for name in fs.find(bucket))


def parts(fs, bucket, prefix):
    return b"".join(fs.cat_file(f"{bucket}/{name}") for name in objects(fs, bucket) if name.startswith(f"{prefix}/part-"))


def test_a_sort_reads_objects_and_writes_them(cluster, fs, bucket, options, text):
    fs.pipe_file(f"{bucket}/in", text)
    stats = holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/a/out", **options)
    assert parts(fs, bucket, "a/out") == b"".join(sorted(text.splitlines(keepends=True)))
    assert stats.splits > 3 and stats.bytes == len(text)
    # Readers of other engines look for this, and nothing else is left there.
    assert [name for name in objects(fs, bucket) if "part-" not in name] == ["a/out/_SUCCESS", "in"]
    with pytest.raises(errors.ExistsError, match="a/out`: it exists"):
        holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/a/out", **options)
    # Not while it is read: that would be neither the old nor the new one.
    with pytest.raises(errors.UnsupportedError, match="cannot be replaced all at once"):
        holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/a/out", replace=True, **options)


def test_words_are_counted_from_objects_to_objects(cluster, fs, bucket, options, text):
    fs.pipe_file(f"{bucket}/in", text)
    job = {"map": words, "combine": total, "reduce": total, **options}
    holdfast.mapreduce([f"s3://{bucket}/in"], f"s3://{bucket}/out", **job)
    found = dict(line.split("\t") for line in parts(fs, bucket, "out").decode().splitlines())
    assert found == {word: str(n) for word, n in collections.Counter(text.decode().split()).items()}

    def fails(word, counts):
        if word > "word5":
            raise ValueError(word)
        return sum(counts)

    fs.pipe_file(f"{bucket}/none/of-another", b"1")
    with pytest.raises(errors.ExistsError):
        holdfast.mapreduce([f"s3://{bucket}/in"], f"s3://{bucket}/none", **{**job, "reduce": fails})
    with pytest.raises(errors.HoldfastError, match="reduce key"):
        holdfast.mapreduce([f"s3://{bucket}/in"], f"s3://{bucket}/half", **{**job, "reduce": fails})
    assert [name for name in objects(fs, bucket) if not name.startswith("out/")] == ["in", "none/of-another"]


def test_rows_go_from_parquet_to_parquet(cluster, fs, bucket, options):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    rows = pyarrow.table({"k": [n % 5 for n in range(9000)], "v": list(range(9000))})
    with fs.open(f"{bucket}/a.parquet", "wb") as file:
        pyarrow.parquet.write_table(rows, file, row_group_size=1000)
    row = lambda k, values: {"k": k, "total": sum(values)}  # noqa: E731
    job = {"format": "parquet", "key": "k", "reduce": row, "output_format": "parquet", **options, "split_bytes": 20_000}
    holdfast.mapreduce([f"s3://{bucket}/a.parquet"], f"s3://{bucket}/out", **job)
    found = {}
    for name in fs.find(f"{bucket}/out"):
        if name.endswith(".parquet"):
            with fs.open(name) as file:
                found.update((one["k"], one["total"]) for one in pyarrow.parquet.read_table(file).to_pylist())
    assert found == {k: sum(range(k, 9000, 5)) for k in range(5)}

    def late(k, values):
        # Rows of other columns than the part has: it was begun, and none of it stays.
        return pyarrow.table({"n": [1]}) if k < 2 else pyarrow.table({"s": [1]})

    with pytest.raises(errors.InvalidError, match="columns"):
        holdfast.mapreduce([f"s3://{bucket}/a.parquet"], f"s3://{bucket}/late", **{**job, "reduce": late})
    assert not fs.exists(f"{bucket}/late")


def test_a_job_into_s3_goes_on_where_it_was_interrupted(cluster, fs, bucket, options, text):
    fs.pipe_file(f"{bucket}/in", text)
    options = {**options, "memory": 4 << 20}
    begun, left = [], [2]

    def interrupts(kind, what, _):
        if kind == "finish":
            begun.append(what)
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/out", resume=True, observe=interrupts, **options)
    assert not fs.exists(f"{bucket}/out/_SUCCESS")
    # Who does not know better is told what it is that lies there.
    with pytest.raises(errors.ExistsError, match="goes on with `resume`"):
        holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/out", **options)
    del begun[:]
    stats = holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/out", resume=True, observe=interrupts, **options)
    assert parts(fs, bucket, "out") == b"".join(sorted(text.splitlines(keepends=True)))
    assert stats.resumed_partitions == stats.partitions - len(begun) >= 1
    assert [name for name in objects(fs, bucket) if "part-" not in name] == ["in", "out/_SUCCESS"]


def test_an_object_that_is_replaced_while_it_is_read_ends_the_job(cluster, fs, bucket, options, text):
    fs.pipe_file(f"{bucket}/in", text)

    def replaces(*_):
        # Of the same length, perhaps in the same second.
        fs.pipe_file(f"{bucket}/in", text[::-1])

    with pytest.raises(errors.RetryError, match="changed since the job began"):
        holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/out", observe=replaces, **options)
    assert objects(fs, bucket) == ["in"]


def test_what_is_wrong_with_s3_is_said(cluster, fs, bucket, options, s3, text):
    fs.pipe_file(f"{bucket}/in", text)
    with pytest.raises(errors.NotFoundError, match="nowhere`: it does not exist"):
        holdfast.sort([f"s3://{bucket}/nowhere"], f"s3://{bucket}/out", **options)
    with pytest.raises(errors.NotFoundError, match="there is no bucket `nobodys`"):
        holdfast.sort([f"s3://{bucket}/in"], "s3://nobodys/out", **options)
    with pytest.raises(errors.InvalidError, match="give a bucket and a prefix"):
        holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/", **options)
    # moto takes any.
    if s3["secret"] != "any":
        with pytest.raises(errors.DeniedError, match="look at the keys"):
            holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/out", **{**options, "s3": {**s3, "secret": "no"}})
    with pytest.raises(errors.InvalidError, match="'adress'"):
        holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/out", **{**options, "s3": {"adress": "x"}})
    away = {**s3, "endpoint": f"http://127.0.0.1:{free_port()}"}
    with pytest.raises(errors.RetryError, match="connect to the endpoint.*look at the endpoint"):
        holdfast.sort([f"s3://{bucket}/in"], f"s3://{bucket}/out", **{**options, "s3": away})
    assert objects(fs, bucket) == ["in"]
