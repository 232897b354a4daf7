"""Counts the words of files over a Ray cluster: ``python3 word_count.py ADDRESS OUT IN...``"""

import sys

import holdfast


def words(line):
    for word in line.lower().split():
        yield word, 1


def total(word, counts):
    return sum(counts)


if __name__ == "__main__":
    address, output, *inputs = sys.argv[1:]
    holdfast.mapreduce(inputs, output, map=words, combine=total, reduce=total, ray=address)
