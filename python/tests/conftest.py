"""A node of its own for the tests, as a user would start one."""

import json
import os
import pathlib
import re
import socket
import subprocess

import pytest

import holdfast

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("HOLDFAST_BIN", str(ROOT / "target" / "debug" / "holdfast"))
SETTINGS = """native_port = {port}
http_port = 0
cache_port = 0
s3_port = 0
dram = "64MiB"
workers = 2
capacity = "16GiB"
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Node:
    """`holdfast up` on ports of its own choice, in a directory of its own; or a node that joins another one's
    cluster."""

    def __init__(self, directory, joins=None, dram="64MiB", settings=""):
        self.directory = directory
        self.dram = dram
        self.settings = settings
        self.process = None
        self.joins = joins
        self.start()

    def start(self):
        config = self.directory / "holdfast.toml"
        if not config.exists():
            self.directory.mkdir(parents=True)
            config.write_text(SETTINGS.format(port=free_port()).replace("64MiB", self.dram) + self.settings)
        command = [BINARY, "--json", "up", "--data", str(self.directory)]
        if self.joins is not None:
            first = self.joins
            command[2:3] = ["node", "run"]
            command += ["--join", first.ready["native"], "--secret", str(first.directory / "secret")]
        # What it tells goes to this process's standard error, where pytest shows it.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        # It says when it serves.
        line = self.process.stdout.readline()
        assert line, "the node ended at its start, see what it told"
        self.ready = json.loads(line)
        assert self.ready["event"] == "ready", line

    @property
    def server(self):
        return f"unix:{self.directory}/holdfast.sock"

    def connect(self, **options):
        return holdfast.connect(self.server, **options)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait()


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    node = Node(tmp_path_factory.mktemp("node") / "data")
    yield node
    node.stop()


@pytest.fixture
def client(node):
    with node.connect() as client:
        yield client


@pytest.fixture
def place(client, request):
    """A directory for one test."""
    # Brackets are a pattern to those who look for one.
    path = "/" + re.sub(r"[][/]", "_", request.node.name)[:80]
    client.make_dir(path)
    yield path
    client.delete(path, recursive=True)
