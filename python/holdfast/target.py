"""A job's output: under a temporary name until it is whole, with a manifest beside it of the partitions that
are finished, by which a job that was interrupted goes on. In S3, where a prefix cannot be renamed, it has its name
at once, and is whole when it says so by an object of its own. Used by :mod:`holdfast.sort` and
:mod:`holdfast.mapreduce`; it knows places, and nothing of what is written there.

The manifest is lines of JSON: the inputs as they were and the boundaries, then a line for each partition that
is durable. A line that is cut is none.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil

from . import places, sources
from .errors import DeniedError, ExistsError, FullError, InvalidError, RetryError, UnsupportedError

MARK = ".holdfast-sort-"
PART = "part-"
MANIFEST = ".manifest"
#: Of the manifest's form: docs/formats/shuffle.md.
VERSION = 1
#: After these the same call may end otherwise, so what there is is kept for it, if it said so.
WORTH_RESUMING = (RetryError, FullError, KeyboardInterrupt)


def part(directory, partition):
    """The name of a part; in the order of these is the order of the records."""
    return f"{directory}/{PART}{partition:05}"


def sync_directory(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Target:
    """An output for as long as a job takes: the file `output`, or with `parts` a directory of files. In Holdfast
    one file is a multifile, which has parts and is read as one; in S3 there are always parts. With `resume` it is what
    an interrupted job left, if there is any."""

    def __init__(self, output, parts, *, doing, suffix="", replace=False, resume=False, access):
        self.output, self.resume, self.access = output, resume, access
        self.doing, self.suffix = doing, suffix
        self.remote = places.is_remote(output)
        #: Whether an output gets its name when it is whole.
        self.renames = not self.remote or self.place(output)[0].renames
        if not self.renames:
            self.check_key(replace)
        self.in_one = self.remote and self.renames and not parts
        self.parts = parts or self.remote
        self.replace = replace
        self.directory, self.name = os.path.split(output.rstrip("/") if self.remote else os.path.abspath(output))
        if self.exists(output) and not replace and not (resume and not self.renames and self.left()):
            why = "" if self.renames else f"; what has no `{places.SUCCESS}` was interrupted, and goes on with `resume`"
            raise ExistsError(f"{doing} to `{output}`: it exists: choose another name{why}")
        if self.exists(output) and replace and not self.remote and self.is_directory() != self.parts:
            what, made = ("a directory", "one file") if self.is_directory() else ("no directory", "a directory of parts")
            raise ExistsError(f"{doing} to `{output}`: it is {what}, and the output is {made}: choose another name, or remove it")
        self.temporary, self.found = None, None
        self.lock = None
        # What there is to go on with is not this job's before it has shown that it is the same.
        self.foreign = False

    def place(self, path):
        return places.remote(path, self.access)

    def check_key(self, replace):
        if "/" not in self.output[len(places.S3) :].strip("/"):
            raise InvalidError(f"{self.doing} to `{self.output}`: give a bucket and a prefix, s3://BUCKET/PREFIX")
        if replace:
            raise UnsupportedError(
                f"{self.doing} to `{self.output}`: objects cannot be replaced all at once: choose another prefix, or remove "
                "these first"
            )

    def exists(self, path):
        if not self.remote:
            return os.path.lexists(path)
        place, name = self.place(path)
        return place.exists(name)

    def is_directory(self):
        """Whether there is one; a link to one can be replaced, and not what it points to."""
        return os.path.isdir(self.output) and not os.path.islink(self.output)

    def __enter__(self):
        left = self.left() if self.resume else None
        if left:
            self.named(left)
            self.found = self.read()
            if self.found and self.exists(self.temporary):
                self.foreign = True
                return self
            # It was ended before there was anything to go on with.
            self.forget()
        self.named(f".{self.name}{MARK}{secrets.token_hex(4)}")
        self.found = None
        if self.remote:
            place, name = self.place(self.temporary)
            place.make_directory(name, in_one=self.in_one)
            return self
        self.make_directory()
        if self.parts:
            os.mkdir(self.temporary)
        else:
            with open(self.temporary, "xb"):
                pass
        return self

    def named(self, temporary):
        """Where parts are written, and where the manifest is."""
        self.manifest = f"{self.directory}/{temporary}{MANIFEST}"
        self.temporary = f"{self.directory}/{temporary}" if self.renames else self.output.rstrip("/")

    def make_directory(self):
        """The output's directory with those above it, as users of other engines expect."""
        made, at = [], self.directory
        while not os.path.isdir(at):
            made.append(at)
            at = os.path.dirname(at)
        try:
            os.makedirs(self.directory, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InvalidError(f"{self.doing} to `{self.output}`: `{self.directory}` is no directory") from None
        except PermissionError as e:
            raise DeniedError(f"{self.doing} to `{self.output}`: make `{e.filename}`: permission denied") from None
        for path in made:
            sync_directory(os.path.dirname(path))

    def left(self):
        """The temporary name whose manifest is the newest."""
        front, found = f".{self.name}{MARK}", []
        if self.remote:
            place, directory = self.place(self.directory)
            found = [(mtime_ns, name) for name, _, mtime_ns in place.list(directory)]
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.directory) as entries:
                found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if entry.name.startswith(front)]
        found = [(at, name) for at, name in found if name.startswith(front) and name.endswith(MANIFEST)]
        return max(found)[1][: -len(MANIFEST)] if found else None

    def read(self):
        """The whole lines of the manifest that is there."""
        if self.remote:
            place, name = self.place(self.manifest)
            raw = place.get(name)
        else:
            self.hold(self.manifest)
            with open(self.manifest, "rb") as file:
                raw = file.read()
        *whole, _ = raw.split(b"\n")
        try:
            return [json.loads(line) for line in whole]
        except ValueError as e:
            self.unlock()
            raise InvalidError(
                f"resume `{self.output}`: its manifest `{self.manifest}` is damaged: {e}: leave out `resume`, or remove it, to "
                "begin anew"
            ) from None

    def hold(self, path):
        """Keeps other drivers out for as long as this process lives."""
        self.lock = open(path, "ab")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RetryError(f"resume `{self.output}`: another process works on it: wait for its end") from None

    def plan(self, splits, job, boundaries):
        """The boundaries of the job: those of the job that is resumed, whose inputs must be the same, or of
        `boundaries()`. `job` says in text whatever else must be equal."""
        # One that is given twice is there twice: each time its first split.
        inputs = [[s.path, list(s.stamp)] for s in splits if s.start == 0]
        if self.found:
            self.check(inputs, job)
            self.foreign = False
            return [(bytes.fromhex(body), alone) for body, alone in self.found[0]["boundaries"]]
        made = boundaries()
        written = [[body.hex(), alone] for body, alone in made]
        self.lines = []
        self.write({"version": VERSION, "inputs": inputs, "job": job, "boundaries": written})
        return made

    def check(self, inputs, job):
        before = self.found[0]
        anew = f"leave out `resume`, or remove `{self.manifest}`, to begin anew"
        if before.get("version") != VERSION:
            raise UnsupportedError(f"resume `{self.output}`: another version of this package wrote its manifest: {anew}")
        old, new = dict(map(tuple_of, before["inputs"])), dict(map(tuple_of, inputs))
        for path in [*old, *new]:
            if old.get(path) != new.get(path):
                what = "is an input no more" if path not in new else "is a new input" if path not in old else "changed"
                raise InvalidError(f"resume `{self.output}`: `{path}` {what} since the job began: {anew}")
        if [path for path, _ in before["inputs"]] != [path for path, _ in inputs]:
            raise InvalidError(f"resume `{self.output}`: its inputs came in another order, or another number of times: {anew}")
        if before["job"] != job:
            raise InvalidError(f"resume `{self.output}`: it was another job ({before['job']}): {anew}")
        self.lines = [json.dumps(line) for line in self.found]
        if not self.remote:
            # What follows must not be behind a line that is cut.
            with open(self.manifest, "r+b") as file:
                file.truncate(sum(len(line) + 1 for line in self.raw()))

    def raw(self):
        with open(self.manifest, "rb") as file:
            *whole, _ = file.read().split(b"\n")
        return whole

    def finished(self, length_of):
        """What is finished: the result and the sums of each partition. `length_of` a result is that of its
        part, which must be there; parts that nobody finished are removed."""
        done = {line["partition"]: (line["result"], line["sums"]) for line in (self.found or [])[1:]}
        if self.parts:
            there = self.lengths()
            names = {p: part("", p)[1:] + self.suffix for p in done}
            done = {p: found for p, found in done.items() if there.get(names[p]) == length_of(found[0])}
            for name in there.keys() - {names[p] for p in done}:
                self.remove(f"{self.temporary}/{name}")
        return done

    def lengths(self):
        if self.remote:
            place, name = self.place(self.temporary)
            # Where parts are written to the output itself, what others put there is not the job's.
            return {entry: size for entry, size, _ in place.list(name) if self.renames or entry.startswith(PART)}
        with os.scandir(self.temporary) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}

    def remove(self, path):
        if self.remote:
            place, name = self.place(path)
            place.remove(name)
        elif os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    def note(self, partition, result, sums):
        """Writes down a partition that is durable."""
        if not self.remote and self.parts:
            sync_directory(self.temporary)
        self.write({"partition": partition, "result": result, "sums": sums})

    def write(self, line):
        self.lines.append(json.dumps(line))
        if self.remote:
            place, name = self.place(self.manifest)
            place.put(name, "".join(f"{line}\n" for line in self.lines).encode())
            return
        if self.lock is None:
            self.hold(self.manifest)
            sync_directory(self.directory)
        try:
            self.lock.write(self.lines[-1].encode() + b"\n")
            self.lock.flush()
            os.fsync(self.lock.fileno())
        except OSError as e:
            raise sources.unwritten(self.manifest, e) from e

    def complete(self, length):
        """Gives it its name, when all of it is durable."""
        if not self.renames:
            place, name = self.place(f"{self.temporary}/{places.SUCCESS}")
            place.put(name, b"")
        elif self.remote:
            place, name = self.place(self.output)
            if self.replace:
                self.remove(self.output)
            place.rename(self.place(self.temporary)[1], name)
        else:
            if not self.replace and os.path.lexists(self.output):
                raise ExistsError(f"{self.doing} to `{self.output}`: somebody made it meanwhile: it stands, and nothing was written")
            if not self.parts:
                os.truncate(self.temporary, length)
            elif os.path.isdir(self.output):
                shutil.rmtree(self.output)
            os.rename(self.temporary, self.output)
            for directory in {self.output, self.directory}:
                if os.path.isdir(directory):
                    sync_directory(directory)
        self.remove(self.manifest)

    def __exit__(self, kind, *_):
        if kind and not self.foreign and not (self.resume and issubclass(kind, WORTH_RESUMING)):
            self.forget()
        else:
            self.unlock()

    def unlock(self):
        if self.lock is not None:
            # Where there was no room for a line, there is none now.
            with contextlib.suppress(OSError):
                self.lock.close()
            self.lock = None

    def forget(self):
        if self.renames:
            self.remove(self.temporary)
        else:
            for name in self.lengths():
                self.remove(f"{self.temporary}/{name}")
        self.remove(self.manifest)
        self.unlock()


def tuple_of(pair):
    return pair[0], list(pair[1])
