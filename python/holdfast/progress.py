"""The line that a job draws on a terminal while it runs: phase, bytes, rate and what is left. Nothing is drawn
where standard error is no terminal.
"""

import contextlib
import shutil
import sys
import time

#: Between two drawings, and how far back the rate looks.
EVERY_S = 0.2
RATE_S = 15.0
_BAR = 24


def size(count):
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            break
        count /= 1000
    else:
        unit = "TB"
    return f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.1f} {unit}"


def span(seconds):
    """Seconds for people."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Line:
    """What is drawn, by what it was told. Reads no clock."""

    def __init__(self):
        self.phase, self.total, self.note = "", 0, ""
        #: When it was told of how many bytes, back to where the rate looks.
        self.told = []

    def tell(self, phase, done, total, note, now):
        if phase != self.phase:
            self.phase, self.told = phase, [(now, done)]
        self.total, self.note = total, note
        if done > self.told[-1][1]:
            self.told.append((now, done))
        while len(self.told) > 2 and self.told[1][0] <= now - RATE_S:
            del self.told[0]

    def text(self, now):
        if not self.total:
            return self.phase
        (begin, first), done = self.told[0], self.told[-1][1]
        share = min(1.0, done / self.total)
        bar = ("#" * int(share * _BAR)).ljust(_BAR)
        text = f"{self.phase} [{bar}] {size(done)} of {size(self.total)}"
        if done > first and now > begin:
            # Up to now: where nothing comes any more, the rate falls.
            rate = (done - first) / (now - begin)
            text += f", {size(rate)}/s, {span((self.total - done) / rate)} left"
        return text + self.note


class Bar:
    """Draws a line, over itself, on a terminal; nothing without one."""

    def __init__(self, stream):
        self.stream, self.line, self.drawn = stream, Line(), 0.0

    @property
    def is_seen(self):
        return self.stream is not None

    def tell(self, phase, done=0, total=0, note=""):
        if self.stream is None:
            return
        now = time.monotonic()
        is_new = phase != self.line.phase
        self.line.tell(phase, done, total, note, now)
        if is_new or now >= self.drawn + EVERY_S:
            self.drawn = now
            width = shutil.get_terminal_size().columns - 1
            self.write("\r" + self.line.text(now)[:width] + "\x1b[K")

    def clear(self):
        if self.line.phase:
            self.write("\r\x1b[K")

    def write(self, text):
        # A terminal that went away is no reason to end a job.
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()


@contextlib.contextmanager
def shown(wanted):
    """A bar for as long as a job takes, which draws nothing where nobody sees or wants it."""
    seen = wanted and sys.stderr is not None and sys.stderr.isatty()
    bar = Bar(sys.stderr if seen else None)
    try:
        yield bar
    finally:
        bar.clear()
