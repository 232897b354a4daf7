"""Sessions of a web log: ``python3 sessions.py ADDRESS OUT IN...``, of lines ``USER SECONDS PATH``. Half an
hour without a request ends a session; what is written is user, begin, length and requests of each."""

import sys

import holdfast

PAUSE_S = 30 * 60


def requests(line):
    user, seconds, _ = line.decode().split(" ", 2)
    yield user, int(seconds)


def sessions(user, moments):
    begin = last = None
    count = 0
    # All of one user's moments are in memory here: they are small.
    for moment in sorted(moments):
        if last is not None and moment - last > PAUSE_S:
            yield f"{user} {begin} {last - begin} {count}"
            begin, count = None, 0
        begin = moment if begin is None else begin
        last, count = moment, count + 1
    yield f"{user} {begin} {last - begin} {count}"


if __name__ == "__main__":
    address, output, *inputs = sys.argv[1:]
    holdfast.mapreduce(inputs, output, map=requests, reduce=sessions, ray=address)
