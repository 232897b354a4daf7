"""Jobs whose driver is killed, or ends early, and that go on at the next call."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest

import holdfast
from holdfast import errors

ray = pytest.importorskip("ray", reason="jobs over many machines are not tried: `make python-ray` installs Ray")

from test_ray import counted, gnu_sort, lines, parts, start, stop, table, total, words  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    cluster = start(2)
    ray.cloudpickle.register_pickle_by_value(sys.modules["test_ray"])
    yield cluster
    stop(cluster)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(lines(6, 60_000))
    return path


#: A driver of its own, which kills itself when so many partitions are finished.
DRIVER = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
import holdfast, ray, test_ray
from holdfast.target import Target
ray.init(address={address!r}, logging_level="error", log_to_driver=False)
ray.cloudpickle.register_pickle_by_value(test_ray)
left = {partitions}
note = Target.note
def noted(self, *what):
    global left
    note(self, *what)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
Target.note = noted
options = dict(ray="auto", memory={memory}, split_bytes=300_000, temp=[{temp!r}])
if {job!r} == "sort":
    holdfast.sort([{text!r}], {out!r}, parts={parts}, **options)
else:
    holdfast.mapreduce([{text!r}], {out!r}, map=test_ray.words, reduce=test_ray.total, **options)
"""
SMALL = 4 << 20


def killed(cluster, job, text, out, partitions=2, parts=False):
    names = {"tests": os.path.dirname(__file__), "address": cluster.address, "memory": SMALL, "temp": f"{out}.tmp"}
    code = DRIVER.format(job=job, text=str(text), out=str(out), partitions=partitions, parts=parts, **names)
    done = subprocess.run([sys.executable, "-c", code], stderr=-1, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    manifest, = out.parent.glob(f".{out.name}*.manifest")
    return manifest


def options(out, **more):
    return {"ray": "auto", "memory": SMALL, "split_bytes": 300_000, "temp": [f"{out}.tmp"], "resume": True, **more}


def clean(out):
    return not list(out.parent.glob(f".{out.name}*"))


@pytest.mark.parametrize("parts_", [False, True])
def test_a_sort_goes_on_where_its_driver_was_killed(cluster, text, tmp_path, parts_):
    out = tmp_path / "out"
    manifest = killed(cluster, "sort", text, out, parts=parts_)
    # The last line was being written.
    with open(manifest, "ab") as file:
        file.write(b'{"partition": 0, "res')
    again = []
    observe = lambda kind, what, _: kind == "finish" and again.append(what)  # noqa: E731
    stats = holdfast.sort([text], out, parts=parts_, **options(out, observe=observe))
    assert (parts(out) if parts_ else out.read_bytes()) == gnu_sort(text)
    assert stats.resumed_partitions >= 2 and len(again) == stats.partitions - stats.resumed_partitions > 0
    assert stats.bytes == len(text.read_bytes()) and clean(out)


def test_a_mapreduce_goes_on_and_does_not_make_finished_parts_again(cluster, text, tmp_path):
    out = tmp_path / "out"
    manifest = killed(cluster, "mapreduce", text, out)
    finished = [json.loads(line)["partition"] for line in manifest.read_text().splitlines()[1:]]
    directory = manifest.with_suffix("")
    before = {p: (directory / f"part-{p:05}").stat().st_ino for p in finished}
    # A part that is not what was written down is none.
    damaged = directory / f"part-{finished[0]:05}"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (directory / "part-00099").touch()
    stats = holdfast.mapreduce([text], out, map=words, reduce=total, **options(out))
    assert table(out) == {word: str(n) for word, n in counted(text).items()}
    assert stats.resumed_partitions == len(finished) - 1 >= 1
    for p in finished[1:]:
        assert (out / f"part-{p:05}").stat().st_ino == before[p]
    assert not (out / "part-00099").exists() and clean(out)


def test_inputs_that_changed_are_refused_by_name(cluster, text, tmp_path):
    out, job = tmp_path / "out", {"map": words, "reduce": total}
    manifest = killed(cluster, "mapreduce", text, out)
    kept = manifest.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(b"more\n")
    with pytest.raises(errors.InvalidError, match=f"resume `{out}`: `{other}` is a new input since the job began"):
        holdfast.mapreduce([text, other], out, **job, **options(out))
    with pytest.raises(errors.InvalidError, match=f"`{text}` is an input no more"):
        holdfast.mapreduce([other], out, **job, **options(out))
    with pytest.raises(errors.InvalidError, match="it was another job .*reduce"):
        holdfast.mapreduce([text], out, delimiter=32, **job, **options(out))
    # What was refused has cost nothing of what is there.
    assert manifest.read_bytes() == kept
    manifest.write_bytes(kept.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(errors.UnsupportedError, match="another version of this package"):
        holdfast.mapreduce([text], out, **job, **options(out))
    manifest.write_bytes(kept)
    os.utime(text, ns=(1, 1))
    with pytest.raises(errors.InvalidError, match=f"`{text}` changed since the job began: leave out `resume`"):
        holdfast.mapreduce([text], out, **job, **options(out))
    holdfast.mapreduce([text], out, **job, **options(out, resume=False))
    assert table(out) == {word: str(n) for word, n in counted(text).items()}


def test_inputs_in_another_order_or_number_are_refused(cluster, text, tmp_path):
    """One that was given twice before and once now was found when all had been mapped, and what was finished was
    thrown away with that error."""
    other, out = tmp_path / "other", tmp_path / "out"
    other.write_bytes(lines(7, 60_000))
    done = []

    def interrupts(kind, partition, _):
        done.append(kind)
        if done.count("finish") == 4:
            raise KeyboardInterrupt

    def go_on(inputs, **more):
        return holdfast.mapreduce(inputs, out, map=words, reduce="sum", **options(out, **more))

    with pytest.raises(KeyboardInterrupt):
        go_on([text, other, text], observe=interrupts)
    for inputs in ([text, other], [other, text, text], [text, other, text, text]):
        with pytest.raises(errors.InvalidError, match="its inputs came in another order, or another number of times"):
            go_on(inputs)
    assert go_on([text, other, text]).resumed_partitions > 0
    expected = counted(text) + counted(text) + counted(other)
    assert table(out) == {word: str(n) for word, n in expected.items()}


def test_a_damaged_manifest_is_said(tmp_path):
    """It was an error of the reader of JSON."""
    from holdfast.places import Access
    from holdfast.target import Target

    target = {"parts": True, "doing": "reduce", "resume": True, "access": Access()}
    with pytest.raises(errors.RetryError), Target(str(tmp_path / "out"), **target) as first:
        first.plan([], "job", lambda: [])
        raise errors.RetryError("for now")
    manifest, = tmp_path.glob(".out*.manifest")
    manifest.write_bytes(manifest.read_bytes()[:20] + b"\n")
    for _ in range(2):
        with pytest.raises(errors.InvalidError, match="its manifest `.*manifest` is damaged: .*: leave out `resume`, or remove it"):
            Target(str(tmp_path / "out"), **target).__enter__()
    assert manifest.exists()


def test_an_interrupt_keeps_what_is_finished_where_the_call_resumes(cluster, text, tmp_path):
    out = tmp_path / "out"
    draw = random.Random(3)
    left = [1 + draw.randrange(3)]

    def interrupts(kind, *_):
        left[0] -= kind == "finish"
        if left[0] < 0:
            left[0] = 1000
            raise KeyboardInterrupt

    # There is nothing to resume: it begins.
    with pytest.raises(KeyboardInterrupt):
        holdfast.sort([text], out, **options(out, observe=interrupts))
    assert not clean(out)
    with open(next(out.parent.glob(".out*.manifest")), "ab") as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(errors.RetryError, match="another process works on it"):
            holdfast.sort([text], out, **options(out))
    stats = holdfast.sort([text], out, **options(out))
    assert out.read_bytes() == gnu_sort(text) and clean(out)
    assert stats.resumed_partitions <= stats.partitions
    left[0] = 1
    with pytest.raises(KeyboardInterrupt):
        holdfast.sort([text], tmp_path / "gone", **options(tmp_path / "gone", resume=False, observe=interrupts))
    assert clean(tmp_path / "gone")
