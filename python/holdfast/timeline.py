"""What each node did when: recorded while a job runs, and drawn as SVG, so that a straggler is seen. Times are
the driver's; what a task did is spread evenly over the time that it took.
"""

import html
from dataclasses import dataclass, field

#: Samples that are kept of one receiver; with more, every other one is left out, and so are those to come.
SAMPLES_MAX = 512
#: Of the picture.
_WIDTH, _LEFT, _RIGHT, _TOP = 1100, 150, 90, 60
_STRIP, _LANE, _GAP = 46, 7, 10
_BINS = 240
_COLOURS = {"map": "#4e79a7", "finish": "#59a14f", "received": "#b07aa1", "read": "#4e79a7", "written": "#e15759", "memory": "#9c755f"}


@dataclass
class Samples:
    """Of one receiver's process: time, bytes received, written and read until then, and resident memory."""

    node: str
    taken: list = field(default_factory=list)
    every: int = 1
    seen: int = 0

    def add(self, sample):
        self.seen += 1
        if self.seen % self.every:
            return
        self.taken.append(sample)
        if len(self.taken) > SAMPLES_MAX:
            self.taken = self.taken[1::2]
            self.every *= 2


@dataclass
class Task:
    """A split that was mapped, or a partition that was finished."""

    node: str
    what: str
    begin: float
    end: float
    #: Of the split or partition.
    bytes: int
    #: Of a partition this is in the receiver's samples.
    read: int = 0
    written: int = 0


@dataclass
class Timeline:
    """What happened, in seconds from the job's beginning."""

    mapped: list = field(default_factory=list)
    finished: list = field(default_factory=list)
    #: When, and what: receivers and attempts.
    lost: list = field(default_factory=list)
    receivers: dict = field(default_factory=dict)
    end: float = 0.0

    def sampled(self, receiver, node, *sample):
        self.receivers.setdefault(receiver, Samples(node)).add(sample)

    def nodes(self):
        """Ids of all nodes that did something."""
        tasks = [task.node for task in self.mapped + self.finished]
        return sorted({*tasks, *(samples.node for samples in self.receivers.values())})

    def rates(self, node):
        """Bytes a second that a node received, read and wrote, and memory of its receivers: a list of each."""
        rates = {name: [0.0] * _BINS for name in ("received", "read", "written", "memory")}
        for task in self.mapped + self.finished:
            if task.node == node:
                self.spread(rates["read"], task.read, task.begin, task.end)
                self.spread(rates["written"], task.written, task.begin, task.end)
        for samples in self.receivers.values():
            if samples.node != node:
                continue
            last = (samples.taken[0][0] if samples.taken else 0.0, 0, 0, 0, 0)
            for sample in samples.taken:
                for name, before, now in zip(("received", "written", "read"), last[1:], sample[1:]):
                    self.spread(rates[name], now - before, last[0], sample[0])
                # What it held until then, at each moment.
                self.spread(rates["memory"], sample[4] * (sample[0] - last[0]), last[0], sample[0])
                last = sample
        return rates

    def spread(self, bins, amount, begin, end):
        """Adds an amount evenly to the bins of a time, as an amount a second."""
        width = max(self.end, 1e-3) / len(bins)
        # What took no time took a bin's.
        begin = min(begin, self.end - width)
        end = max(end, begin + width)
        for at in range(int(begin / width), min(len(bins), int(end / width) + 1)):
            covered = min(end, (at + 1) * width) - max(begin, at * width)
            if covered > 0:
                bins[at] += amount * covered / (end - begin) / width

    def svg(self, title="A job"):
        """The picture: for each node its tasks, and rates and memory in scales that all nodes share."""
        drawing, nodes = Drawing(max(self.end, 1e-3)), self.nodes()
        rates = {node: self.rates(node) for node in nodes}
        most = {name: max([1.0, *(max(rates[node][name]) for node in nodes)]) for name in ("received", "read", "written", "memory")}
        most["read"] = most["written"] = max(most["read"], most["written"])
        for node in nodes:
            drawing.heading(f"node {node[:8]}")
            drawing.tasks("map", [task for task in self.mapped if task.node == node])
            drawing.tasks("finish", [task for task in self.finished if task.node == node])
            drawing.strip("received", [("received", rates[node]["received"])], most["received"], "B/s")
            drawing.strip("read, written", [(name, rates[node][name]) for name in ("read", "written")], most["read"], "B/s")
            drawing.strip("memory", [("memory", rates[node]["memory"])], most["memory"], "B")
        return drawing.document(title, self.lost)


class Drawing:
    """A picture, from the top down."""

    def __init__(self, seconds):
        self.seconds, self.y, self.shapes = seconds, _TOP, []

    def x(self, at):
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, at / self.seconds))

    def text(self, x, y, text, anchor="start"):
        self.shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>')

    def line(self, x1, y1, x2, y2, colour):
        self.shapes.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>')

    def heading(self, name):
        self.y += 20
        self.text(8, self.y, name)
        self.y += 8

    def tasks(self, kind, tasks):
        """A lane for each that runs at once."""
        ends = []
        top = self.y
        for task in sorted(tasks, key=lambda task: (task.begin, task.end)):
            lane = next((n for n, end in enumerate(ends) if end <= task.begin), len(ends))
            ends[lane : lane + 1] = [task.end]
            x, width = self.x(task.begin), max(1.0, self.x(task.end) - self.x(task.begin) - 0.5)
            told = f"{task.what}: {amount(task.bytes)}B in {task.end - task.begin:.1f} s"
            self.shapes.append(
                f'<rect x="{x:.1f}" y="{top + lane * _LANE:.1f}" width="{width:.1f}" height="{_LANE - 1}" '
                f'fill="{_COLOURS[kind]}"><title>{html.escape(told)}</title></rect>'
            )
        height = max(1, len(ends)) * _LANE
        self.text(_LEFT - 8, top + height / 2 + 4, f"{kind} ({len(tasks)})", "end")
        self.y = top + height + _GAP

    def strip(self, name, series, most, unit):
        bottom = self.y + _STRIP
        self.line(_LEFT, bottom, _WIDTH - _RIGHT, bottom, "#ccc")
        for what, values in series:
            step = (_WIDTH - _LEFT - _RIGHT) / len(values)
            points = " ".join(
                f"{_LEFT + step * (at + 0.5):.1f},{bottom - _STRIP * value / most:.1f}" for at, value in enumerate(values)
            )
            self.shapes.append(f'<polyline points="{points}" fill="none" stroke="{_COLOURS[what]}"/>')
        self.text(_LEFT - 8, bottom - _STRIP / 2 + 4, name, "end")
        self.text(_WIDTH - _RIGHT + 6, self.y + 10, f"{amount(most)}{unit}")
        self.y = bottom + _GAP

    def document(self, title, lost):
        height = self.y + 40
        for at, what in lost:
            x = self.x(at)
            self.shapes.append(
                f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{self.y}" stroke="#d62728" stroke-dasharray="4 3">'
                f"<title>{html.escape(what)}</title></line>"
            )
        for n in range(6):
            at = self.seconds * n / 5
            self.text(self.x(at), self.y + 18, f"{at:.1f} s", "middle")
        legend = "colours: read is blue and written is red; a red line is what was lost" if lost else "read is blue, written is red"
        self.text(8, 24, title)
        self.text(8, 44, legend)
        shapes = "\n".join(self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" font-family="monospace" '
            f'font-size="12">\n<rect width="{_WIDTH}" height="{height:.0f}" fill="white"/>\n{shapes}\n</svg>\n'
        )


def amount(value):
    """A number with its power of a thousand."""
    for unit in ("", "k", "M", "G"):
        if value < 1000:
            break
        value /= 1000
    else:
        unit = "T"
    return f"{value:.0f} {unit}" if value >= 100 or not unit else f"{value:.1f} {unit}"
