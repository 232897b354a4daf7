"""Which lines a word is in: ``python3 inverted_index.py ADDRESS OUT IN...``, of lines ``NAME<tab>TEXT``."""

import sys

import holdfast


def places(line):
    name, _, text = line.decode().partition("\t")
    for word in set(text.lower().split()):
        yield word, name


def index(word, names):
    return f"{word}\t{' '.join(sorted(set(names)))}"


if __name__ == "__main__":
    address, output, *inputs = sys.argv[1:]
    holdfast.mapreduce(inputs, output, map=places, reduce=index, ray=address)
