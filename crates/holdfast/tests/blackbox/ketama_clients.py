"""HASHING ROUTER SERVER...: what libmemcached stores on the servers is found through the router, and the other way round."""

import sys

import pylibmc
from pymemcache.client.base import Client

hashing, router, servers = sys.argv[1], sys.argv[2], sys.argv[3:]
behaviors = {"ketama_weighted": {"ketama_weighted": True, "hash": "md5"}, "ketama": {"ketama": True}}
lib = pylibmc.Client(servers, behaviors={**behaviors[hashing], "tcp_nodelay": True})
host, port = router.split(":")
client = Client((host, int(port)), connect_timeout=5, timeout=30)

ours = {"%s-ours-%d" % (hashing, i): b"o%d" % i for i in range(500)}
theirs = {"%s-theirs-%d" % (hashing, i): b"t%d" % i for i in range(500)}
assert client.set_many(ours, noreply=False) == []
assert lib.set_multi(theirs) == []
assert lib.get_multi(list(ours)) == ours
assert client.get_many(list(theirs)) == theirs
# And not because all are on one server.
for server in servers:
    one = Client((server.split(":")[0], int(server.split(":")[1])), timeout=30)
    assert 50 < len(one.get_many(list(ours))) < 250
