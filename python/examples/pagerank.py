"""PageRank by an iteration of jobs: ``python3 pagerank.py ADDRESS DIRECTORY ROUNDS IN...``, of lines
``PAGE<tab>LINK LINK ...``. Round N writes DIRECTORY/N, lines of page, rank and links."""

import pathlib
import sys

import holdfast

DAMPING = 0.85


def spread(line):
    """A page keeps its links, and gives its rank to them in equal parts."""
    page, *rest = line.decode().split("\t")
    rank, links = (float(rest[0]), rest[1]) if len(rest) == 2 else (1.0, rest[0] if rest else "")
    yield page, links
    targets = links.split()
    for target in targets:
        yield target, rank / len(targets)


def gather(page, values):
    rank, links = 1 - DAMPING, ""
    for value in sorted(values, key=str):
        if isinstance(value, str):
            links = value or links
        else:
            rank += DAMPING * value
    return f"{page}\t{rank!r}\t{links}"


def run(address, directory, rounds, inputs):
    for number in range(1, rounds + 1):
        output = pathlib.Path(directory) / str(number)
        holdfast.mapreduce(inputs, output, map=spread, reduce=gather, ray=address)
        inputs = sorted(output.iterdir())
    return inputs


if __name__ == "__main__":
    address, directory, rounds, *inputs = sys.argv[1:]
    run(address, directory, int(rounds), inputs)
