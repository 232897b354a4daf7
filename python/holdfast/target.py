"""A job's output: under a temporary name until it is whole, with a manifest beside it of the partitions that
are finished, by which a job that was interrupted goes on. Used by :mod:`holdfast.sort` and
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

from . import sources
from .errors import DeniedError, ExistsError, FullError, InvalidError, NotFoundError, RetryError, UnsupportedError

MARK = ".holdfast-sort-"
MANIFEST = ".manifest"
#: Of the manifest's form: docs/formats/shuffle.md.
VERSION = 1
#: After these the same call may end otherwise, so what there is is kept for it, if it said so.
WORTH_RESUMING = (RetryError, FullError, KeyboardInterrupt)


def part(directory, partition):
    """The name of a part; in the order of these is the order of the records."""
    return f"{directory}/part-{partition:05}"


def sync_directory(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Target:
    """An output for as long as a job takes: the file `output`, or with `parts` a directory of files; into
    Holdfast always the latter. With `resume` it is what an interrupted job left, if there is any."""

    def __init__(self, output, parts, *, doing, suffix="", replace=False, resume=False, secret=None):
        self.output, self.resume, self.secret = output, resume, secret
        self.doing, self.suffix = doing, suffix
        self.stored = sources.is_stored(output)
        self.parts = parts or self.stored
        if self.exists(output) and not replace:
            raise ExistsError(f"{doing} to `{output}`: it exists: choose another name")
        self.replace = replace
        self.directory, self.name = os.path.split(output.rstrip("/") if self.stored else os.path.abspath(output))
        self.temporary, self.found = None, None
        self.lock = None
        # What there is to go on with is not this job's before it has shown that it is the same.
        self.foreign = False

    def exists(self, path):
        if not self.stored:
            return os.path.lexists(path)
        client, name = sources.stored_client(path, self.secret)
        return client.exists(name)

    def __enter__(self):
        left = self.left() if self.resume else None
        if left:
            self.temporary = f"{self.directory}/{left}"
            self.found = self.read()
            if self.found and self.exists(self.temporary):
                self.foreign = True
                return self
            # It was ended before there was anything to go on with.
            self.forget()
        self.temporary = f"{self.directory}/.{self.name}{MARK}{secrets.token_hex(4)}"
        self.found = None
        if not self.stored:
            self.make_directory()
        if self.stored:
            client, name = sources.stored_client(self.temporary, self.secret)
            client.make_dir(name, parents=True)
        elif self.parts:
            os.mkdir(self.temporary)
        else:
            with open(self.temporary, "xb"):
                pass
        return self

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
        if self.stored:
            client, directory = sources.stored_client(self.directory, self.secret)
            with contextlib.suppress(NotFoundError):
                found = [(entry.info.mtime_ns, entry.name) for entry in client.list(directory)]
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.directory) as entries:
                found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if entry.name.startswith(front)]
        found = [(at, name) for at, name in found if name.startswith(front) and name.endswith(MANIFEST)]
        return max(found)[1][: -len(MANIFEST)] if found else None

    def read(self):
        """The whole lines of the manifest that is there."""
        path = self.temporary + MANIFEST
        if self.stored:
            client, name = sources.stored_client(path, self.secret)
            raw = client.get(name)
        else:
            self.hold(path)
            with open(path, "rb") as file:
                raw = file.read()
        *whole, _ = raw.split(b"\n")
        return [json.loads(line) for line in whole]

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
        inputs = [[path, list(stamp)] for path, stamp in dict.fromkeys((s.path, s.stamp) for s in splits)]
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
        anew = f"leave out `resume`, or remove `{self.temporary}{MANIFEST}`, to begin anew"
        if before.get("version") != VERSION:
            raise UnsupportedError(f"resume `{self.output}`: another version of this package wrote its manifest: {anew}")
        old, new = dict(map(tuple_of, before["inputs"])), dict(map(tuple_of, inputs))
        for path in [*old, *new]:
            if old.get(path) != new.get(path):
                what = "is an input no more" if path not in new else "is a new input" if path not in old else "changed"
                raise InvalidError(f"resume `{self.output}`: `{path}` {what} since the job began: {anew}")
        if list(old) != list(new) or before["job"] != job:
            raise InvalidError(f"resume `{self.output}`: it was another job ({before['job']}): {anew}")
        self.lines = [json.dumps(line) for line in self.found]
        if not self.stored:
            # What follows must not be behind a line that is cut.
            with open(self.temporary + MANIFEST, "r+b") as file:
                file.truncate(sum(len(line) + 1 for line in self.raw()))

    def raw(self):
        with open(self.temporary + MANIFEST, "rb") as file:
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
        if self.stored:
            client, name = sources.stored_client(self.temporary, self.secret)
            return {entry.name: entry.info.size for entry in client.list(name)}
        with os.scandir(self.temporary) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}

    def remove(self, path):
        if self.stored:
            client, name = sources.stored_client(path, self.secret)
            with contextlib.suppress(NotFoundError):
                client.delete(name, recursive=True)
        elif os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)

    def note(self, partition, result, sums):
        """Writes down a partition that is durable."""
        if not self.stored and self.parts:
            sync_directory(self.temporary)
        self.write({"partition": partition, "result": result, "sums": sums})

    def write(self, line):
        self.lines.append(json.dumps(line))
        path = self.temporary + MANIFEST
        if self.stored:
            client, name = sources.stored_client(path, self.secret)
            client.put(name, "".join(f"{line}\n" for line in self.lines).encode(), replace=True)
            return
        if self.lock is None:
            self.hold(path)
            sync_directory(self.directory)
        self.lock.write(self.lines[-1].encode() + b"\n")
        self.lock.flush()
        os.fsync(self.lock.fileno())

    def complete(self, length):
        """Gives it its name, when all of it is durable."""
        if self.stored:
            client, name = sources.stored_client(self.output, self.secret)
            _, temporary = sources.stored_client(self.temporary, self.secret)
            if self.replace:
                self.remove(self.output)
            client.rename(temporary, name)
        else:
            if not self.parts:
                os.truncate(self.temporary, length)
            elif os.path.isdir(self.output):
                shutil.rmtree(self.output)
            os.rename(self.temporary, self.output)
            for directory in {self.output, self.directory}:
                if os.path.isdir(directory):
                    sync_directory(directory)
        self.remove(self.temporary + MANIFEST)

    def __exit__(self, kind, *_):
        if kind and not self.foreign and not (self.resume and issubclass(kind, WORTH_RESUMING)):
            self.forget()
        elif self.lock is not None:
            self.lock.close()

    def forget(self):
        for path in (self.temporary, self.temporary + MANIFEST):
            self.remove(path)
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def tuple_of(pair):
    return pair[0], list(pair[1])
