"""Scribe's service by a Thrift library that people have (thriftpy2), from the interface's definition: with
a version in front of each message, as newer clients send, and without, as Scribe's own do."""

import io
import sys

import thriftpy2
from thriftpy2.protocol.binary import TBinaryProtocolFactory
from thriftpy2.rpc import make_client
from thriftpy2.transport.framed import TFramedTransportFactory

INTERFACE = """
enum fb_status { DEAD = 0, STARTING = 1, ALIVE = 2, STOPPING = 3, STOPPED = 4, WARNING = 5 }
enum ResultCode { OK, TRY_LATER }
struct LogEntry { 1: string category, 2: string message }
service FacebookService {
  string getName(),
  string getVersion(),
  fb_status getStatus(),
  string getStatusDetails(),
  map<string, i64> getCounters(),
  i64 getCounter(1: string key),
  void setOption(1: string key, 2: string value),
  string getOption(1: string key),
  map<string, string> getOptions(),
  string getCpuProfile(1: i32 profileDurationInSec),
  i64 aliveSince(),
  oneway void reinitialize(),
  oneway void shutdown()
}
service scribe extends FacebookService { ResultCode Log(1: list<LogEntry> messages) }
"""

scribe = thriftpy2.load_fp(io.StringIO(INTERFACE), "scribe_thrift")
host, port, category = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def connect(strict):
    return make_client(
        scribe.scribe,
        host,
        port,
        proto_factory=TBinaryProtocolFactory(strict_read=strict, strict_write=strict),
        trans_factory=TFramedTransportFactory(),
        timeout=60000,
    )


def entry(message, category=category):
    return scribe.LogEntry(category=category, message=message)


for strict in (True, False):
    client = connect(strict)
    assert client.getName() == "scribe"
    assert client.getVersion().startswith("holdfast ")
    assert client.getStatus() == scribe.fb_status.ALIVE, client.getStatusDetails()
    assert client.aliveSince() > 1_600_000_000
    assert client.getOptions() == {} and client.getOption("x") == "" and client.getCpuProfile(1) == ""
    # Strangers change nothing.
    client.setOption("a", "b")
    client.shutdown()
    client.reinitialize()
    before = client.getCounter("scribe_overall:received good")
    bad = client.getCounter("scribe_overall:received bad")
    name = "strict" if strict else "old"
    lines = [entry(f"{name} {i} äöü\n") for i in range(100)]
    assert client.Log(lines) == scribe.ResultCode.OK
    assert client.Log([]) == scribe.ResultCode.OK
    # Never can be: OK, and counted, or they would come for ever.
    never = [entry("x", "../a"), entry("x", "a\0b"), entry("x", ""), entry("x" * (600 << 10))]
    assert client.Log(never + [entry(f"{name} last")]) == scribe.ResultCode.OK
    assert client.getCounter("scribe_overall:received good") == before + 101
    assert client.getCounter("scribe_overall:received bad") == bad + len(never)
    assert client.getCounters()[f"{category}:received good"] >= 101
    client.close()
