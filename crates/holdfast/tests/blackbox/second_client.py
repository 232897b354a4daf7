"""A client written from docs/formats/wire.md and secret.md alone: standard library, nothing of the
Rust client's. Checks the page's golden frames, then greets, puts, gets and lists over TCP.

    second_client.py PAGE HOST PORT SECRET_FILE
"""

import hmac
import os
import re
import socket
import struct
import sys

REQUEST, RESPONSE = 1, 2
HELLO, PROVE, OPEN_SESSION, PUT, GET, LIST = 0x0010, 0x0011, 0x0002, 0x0303, 0x0302, 0x0307


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(kind, opcode, request, status, meta, body=b""):
    head = b"HFN1" + struct.pack("<BBHQIII", 1, kind, opcode, request, status, len(meta), len(body))
    check = crc32c(head + struct.pack("<I", crc32c(meta)))
    return head + struct.pack("<I", check) + meta + body


def parse(data):
    """Kind, opcode, id, status, meta, body of a whole frame."""
    magic, version, kind, opcode, request, status, metas, bodies, check = struct.unpack(
        "<4sBBHQIIII", data[:32]
    )
    assert (magic, version) == (b"HFN1", 1), data[:32]
    meta, body = data[32 : 32 + metas], data[32 + metas :]
    assert len(body) == bodies, (len(body), bodies)
    assert crc32c(data[:28] + struct.pack("<I", crc32c(meta))) == check, "the frame's checksum"
    return kind, opcode, request, status, meta, body


def string(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def bytes(self):
        length = self.take("I")
        self.at += length
        return self.data[self.at - length : self.at]

    def info(self):
        info = dict(id=self.take("Q"), kind=self.take("B"), mode=self.take("H"))
        info.update(mtime_ns=self.take("q"), size=self.take("Q"), storage=self.take("H"))
        info.update(target=self.bytes().decode(), metadata=self.bytes())
        return info


def key(secret, purpose):
    return hmac.digest(secret, purpose, "sha256")


def proof(secret, side, role, client, server):
    return hmac.digest(
        key(secret, b"holdfast native 1"), side + bytes([role]) + client + server, "sha256"
    )


def put_meta(session, sequence, path, body):
    call = struct.pack("<QQQ", session, sequence, sequence)
    # A file of mode 0644, at the epoch, of its directory's class; replaces; makes parents.
    node = string(path) + struct.pack("<BHqBBB", 2, 0o644, 0, 0, 1, 1) + string("")
    return call + node + struct.pack("<I", crc32c(body))


def get_meta(path):
    return string(path) + struct.pack("<BQIB", 1, 0, 1 << 20, 0)


def list_meta(path):
    return string(path) + string("") + struct.pack("<I", 1000)


def golden(page):
    """Name to bytes of the page's golden frames."""
    block = page.split("## Golden frames", 1)[1].split("```", 2)[1]
    frames = {}
    for name, text in re.findall(r"^([^:\n]+):((?:\s+[0-9a-f]+)+)$", block, re.M):
        frames[name] = bytes.fromhex("".join(text.split()))
    return frames


def own():
    """The requests of the page, and the greeting's answer, as this client makes them."""
    secret, client, server = b"\x07" * 32, b"\x11" * 32, b"\x22" * 32
    body = b"hello"
    return {
        "HELLO": frame(REQUEST, HELLO, 1, 0, b"\x01\x01" + client),
        "HELLO answered": frame(
            RESPONSE, HELLO, 1, 0,
            server + proof(secret, b"holdfast server 1", 1, client, server),
        ),
        "PROVE": frame(
            REQUEST, PROVE, 2, 0, proof(secret, b"holdfast client 1", 1, client, server)
        ),
        "PROVE answered": frame(RESPONSE, PROVE, 2, 0, b""),
        "OPEN_SESSION": frame(REQUEST, OPEN_SESSION, 1, 0, b""),
        "OPEN_SESSION answered": frame(RESPONSE, OPEN_SESSION, 1, 0, struct.pack("<Q", 7)),
        "PUT": frame(REQUEST, PUT, 2, 0, put_meta(7, 1, "/p", body), body),
        "GET": frame(REQUEST, GET, 3, 0, get_meta("/p")),
        "LIST": frame(REQUEST, LIST, 4, 0, list_meta("/")),
        "GET refused": frame(RESPONSE, GET, 3, 3, string("there is no such file")),
    }


class Client:
    def __init__(self, host, port, secret):
        self.socket = socket.create_connection((host, port))
        self.next = 1
        nonce = os.urandom(32)
        answer, _ = self.ask(HELLO, b"\x01\x01" + nonce)
        server, proved = answer[:32], answer[32:]
        expected = proof(secret, b"holdfast server 1", 1, nonce, server)
        assert hmac.compare_digest(proved, expected), "the server does not know the secret"
        self.ask(PROVE, proof(secret, b"holdfast client 1", 1, nonce, server))

    def exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the server closed the connection"
            data += more
        return data

    def ask(self, opcode, meta, body=b""):
        request, self.next = self.next, self.next + 1
        self.socket.sendall(frame(REQUEST, opcode, request, 0, meta, body))
        head = self.exactly(32)
        rest = self.exactly(sum(struct.unpack("<II", head[20:28])))
        kind, answered, to, status, meta, body = parse(head + rest)
        assert (kind, answered, to) == (RESPONSE, opcode, request), (kind, answered, to)
        if status:
            raise RuntimeError("status %d: %s" % (status, Reader(meta).bytes().decode()))
        return meta, body


def main(page, host, port, secret_file):
    frames = golden(open(page).read())
    mine = own()
    assert set(frames) == set(mine), set(frames) ^ set(mine)
    for name, data in frames.items():
        assert frame(*parse(data)) == data == mine[name], name

    secret = bytes.fromhex(open(secret_file).read().strip())
    try:
        Client(host, int(port), b"\x00" * 32)
    except AssertionError as wrong:
        assert "does not know the secret" in str(wrong)
    else:
        raise AssertionError("a wrong secret is good enough")

    client = Client(host, int(port), secret)
    meta, _ = client.ask(OPEN_SESSION, b"")
    session = Reader(meta).take("Q")
    body = b"written from the page alone"
    client.ask(PUT, put_meta(session, 1, "/pages/one", body), body)
    meta, read = client.ask(GET, get_meta("/pages/one"))
    reader = Reader(meta)
    info = reader.info()
    assert (info["kind"], info["size"], reader.take("B")) == (2, len(body), 1), info
    assert reader.take("I") == crc32c(read) and read == body, read
    meta, _ = client.ask(LIST, list_meta("/pages"))
    reader = Reader(meta)
    names = [(reader.bytes().decode(), reader.info()["size"]) for _ in range(reader.take("I"))]
    assert names == [("one", len(body))] and reader.take("B") == 0, names
    try:
        client.ask(GET, get_meta("/pages/none"))
    except RuntimeError as refused:
        assert "status 3" in str(refused), refused
    else:
        raise AssertionError("a file that is not there was read")
    print("the page is right")


if __name__ == "__main__":
    main(*sys.argv[1:])
