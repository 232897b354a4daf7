"""What is seen of a job: the line on a terminal, and the picture of what each node did when."""

import io
import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

from holdfast import progress
from holdfast.timeline import SAMPLES_MAX, Samples, Task, Timeline

SVG = "{http://www.w3.org/2000/svg}"


def test_the_line_says_phase_bytes_rate_and_what_is_left():
    line = progress.Line()
    line.tell("sample", 0, 0, "", 100.0)
    assert line.text(100.0) == "sample"
    line.tell("1 of 2: map", 0, 400_000_000, "", 101.0)
    assert line.text(101.0) == f"1 of 2: map [{' ' * 24}] 0 B of 400 MB"
    line.tell("1 of 2: map", 100_000_000, 400_000_000, ", 2 lost", 111.0)
    assert line.text(111.0) == f"1 of 2: map [{'#' * 6}{' ' * 18}] 100 MB of 400 MB, 10.0 MB/s, 0:30 left, 2 lost"
    # Nothing comes any more.
    assert "5.0 MB/s, 1:00 left" in line.text(121.0)
    # The rate is that of late.
    for second in range(112, 142):
        line.tell("1 of 2: map", 100_000_000 + (second - 111) * 1_000_000, 400_000_000, "", second)
    assert "130 MB of 400 MB, 1.0 MB/s, 4:30 left" in line.text(141.0)
    line.tell("2 of 2: finish", 0, 5, "", 142.0)
    assert line.text(142.0).startswith("2 of 2: finish [ ") and "/s" not in line.text(142.0)
    assert [progress.size(n) for n in (999, 1000, 99_949, 123_456, 5 * 10**13)] == ["999 B", "1.0 kB", "99.9 kB", "123 kB", "50.0 TB"]
    assert [progress.span(s) for s in (0, 61, 3600)] == ["0:00", "1:01", "1:00:00"]


def test_nothing_is_drawn_where_nobody_sees_or_wants_it(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, wanted, drawn in [(io.StringIO(), True, False), (Terminal(), False, False), (Terminal(), True, True)]:
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.shown(wanted) as bar:
            bar.tell("1 of 2: map", 1, 2)
        assert ("1 of 2: map" in stream.getvalue()) == drawn
        # Nothing of it stays.
        assert not drawn or stream.getvalue().endswith("\r\x1b[K")


def test_rates_add_up_to_what_was_moved():
    timeline = Timeline(end=60.0)
    timeline.mapped = [Task("a", "split 0", 0.0, 20.0, 4000, 4000), Task("b", "split 1", 59.9, 60.0, 500, 500)]
    # It took no time.
    timeline.finished = [Task("a", "partition 0", 60.0, 60.0, 9, written=700)]
    for n in range(61):
        timeline.sampled((0, 1), "a", float(n), n * 10, n * 20, 0, 1 << 20)
        # Of another process on its node.
        timeline.sampled((0, 2), "a", float(n), 0, 0, n, 1 << 20)
    width = 60.0 / len(timeline.rates("a")["read"])
    moved = {name: pytest.approx(sum(bins) * width) for name, bins in timeline.rates("a").items()}
    assert moved == {"received": 600, "written": 1200 + 700, "read": 60 + 4000, "memory": 60 * (2 << 20)}
    assert sum(timeline.rates("b")["read"]) * width == pytest.approx(500)
    # While it was mapped, and not behind it.
    reads = timeline.rates("a")["read"]
    assert reads[10] == pytest.approx(201) and reads[200] == pytest.approx(1)


def test_samples_of_a_long_job_are_thinned_evenly():
    samples = Samples("a")
    for n in range(10_000):
        samples.add((n, 0, 0, 0, 0))
    times = [taken[0] for taken in samples.taken]
    assert SAMPLES_MAX // 2 <= len(times) <= SAMPLES_MAX
    assert len({after - before for before, after in zip(times, times[1:])}) == 1 and times[-1] > 9_900


def drawn(svg):
    """Of a picture: its texts, and what its bars tell."""
    root = xml.fromstring(svg)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    told = [title.text for title in root.iter(f"{SVG}title")]
    return texts, told, root


def test_a_picture_has_a_lane_for_each_task_at_once():
    timeline = Timeline(end=10.0)
    timeline.mapped = [Task("a<b", f"split {n}", n, n + 3.0, 10) for n in range(5)]
    timeline.lost = [(4.0, "receiver 1: a & b")]
    texts, told, root = drawn(timeline.svg("a & b"))
    assert "a & b" in texts and "node a<b" in texts and "map (5)" in texts and "finish (0)" in texts
    assert "split 3: 10 B in 3.0 s" in told and "receiver 1: a & b" in told
    lanes = {rect.get("y") for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None}
    assert len(lanes) == 3
    # A job of nothing.
    assert drawn(Timeline().svg())[0]


ray = pytest.importorskip("ray", reason="jobs over many machines are not tried: `make python-ray` installs Ray")

from test_ray import at_a_drawn_moment, gnu_sort, kill_a_receiver, lines, sort, start, stop  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    cluster = start(2)
    yield cluster
    stop(cluster)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(lines(9, 60_000))
    return path


def test_who_looks_on_is_told_the_share_of_what_the_disks_can_do(cluster, text, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    from holdfast import exchange

    for least, told in ((1, True), (2 << 30, False)):
        monkeypatch.setattr(exchange, "PACE_FROM_BYTES", least)
        monkeypatch.setattr(sys, "stderr", Terminal())
        sort(text, tmp_path / f"out{least}", progress=True)
        assert ("of the disks' pace" in sys.stderr.getvalue()) == told


def test_a_job_is_drawn_with_each_node_and_what_was_lost(cluster, text, tmp_path):
    stats = sort(text, tmp_path / "out", observe=at_a_drawn_moment(1, kill_a_receiver))
    assert stats.lost_receivers >= 1
    texts, told, _ = drawn(stats.picture())
    assert sum(text.startswith("node ") for text in texts) == 2
    splits = {one.partition(":")[0] for one in told if one.startswith("split ") and " in " in one}
    assert splits == {f"split {n}" for n in range(stats.splits)}
    partitions = {one.partition(":")[0] for one in told if one.startswith("partition ")}
    assert partitions == {f"partition {n}" for n in range(stats.partitions)}
    assert any(re.match(r"receiver \d on node [0-9a-f]{8}: ", one) for one in told)
    # Each receiver was sampled at least once, and its memory is that of a process.
    samples = [sample for receiver in stats.timeline.receivers.values() for sample in receiver.taken]
    assert samples and all(sample[4] > 1 << 20 for sample in samples)
    assert "timeline" not in stats.to_json() and stats.to_json()["bytes"] == stats.bytes


def command(cluster, text, out, *options):
    return [sys.executable, "-m", "holdfast.sort", "--ray", cluster.address, "-T", f"{out}.tmp", "-o", str(out), str(text), *options]


def test_a_line_is_drawn_on_a_terminal_and_nowhere_else(cluster, text, tmp_path):
    ours, theirs = pty.openpty()
    # As a person's.
    process = subprocess.Popen(command(cluster, text, tmp_path / "out"), stderr=theirs, env={**os.environ, "COLUMNS": "100"})
    os.close(theirs)
    shown = b""
    try:
        while some := os.read(ours, 1 << 16):
            shown += some
    except OSError:
        # A terminal that nobody has any more.
        pass
    assert process.wait() == 0 and (tmp_path / "out").read_bytes() == gnu_sort(text)
    for phase in (b"connect to Ray", b"sample", b"1 of 2: map [", b"2 of 2: finish ["):
        assert phase in shown, shown
    assert shown.rstrip().endswith(b"\r\x1b[K") or b"\r\x1b[K" in shown
    for options in ([], ["--picture", str(tmp_path / "job.svg")]):
        done = subprocess.run(command(cluster, text, tmp_path / f"piped{len(options)}", *options), stderr=-1)
        assert done.returncode == 0 and b"map" not in done.stderr and b"\x1b" not in done.stderr, done.stderr
    assert drawn((tmp_path / "job.svg").read_text())[1]
    done = subprocess.run(command(cluster, text, tmp_path / "o", "--picture", str(tmp_path / "no" / "job.svg")), stderr=-1)
    assert done.returncode == 0 and b"draw `" in done.stderr and (tmp_path / "o").exists()
