"""Two clients that people have, pymemcache and pylibmc (libmemcached), against a cache or a router at HOST PORT."""

import sys

import pylibmc
from pymemcache.client.base import Client
from pymemcache.client.hash import HashClient

host, port = sys.argv[1], int(sys.argv[2])


client = Client((host, port), connect_timeout=5, timeout=30)
client.flush_all(noreply=False)
assert client.set("a", b"1", noreply=False) and client.get("a") == b"1"
assert client.get("missing") is None
assert client.add("a", b"2", noreply=False) is False
assert client.replace("a", b"2", noreply=False) is True
assert client.append("a", b"3", noreply=False) and client.prepend("a", b"1", noreply=False)
assert client.get("a") == b"123"
value, cas = client.gets("a")
assert client.cas("a", b"x", cas, noreply=False) is True
assert client.cas("a", b"y", cas, noreply=False) is False
assert client.cas("nothing", b"y", cas, noreply=False) is None
many = {"key%d" % i: b"value%d" % i * (i + 1) for i in range(300)}
assert client.set_many(many, noreply=False) == []
assert client.get_many(list(many)) == many
assert client.delete_many(list(many)[:100], noreply=False)
assert len(client.get_many(list(many))) == 200
assert client.set("n", b"10", noreply=False)
assert client.incr("n", 5) == 15 and client.decr("n", 20) == 0
assert client.touch("n", 100, noreply=False)
assert client.delete("n", noreply=False) and not client.delete("n", noreply=False)
assert client.set("quiet", b"1", noreply=True) is True
# Through a router, a get over UDP may overtake a store that nobody waits for.
while client.get("quiet") != b"1":
    pass
large = bytes(range(256)) * 8000
assert client.set("large", large, noreply=False) and client.get("large") == large
assert client.version().startswith(b"1.6.")
assert int(client.stats()[b"cmd_get"]) > 0
client.flush_all(noreply=False)
assert client.get("a") is None
client.close()
pymemcache_hash = HashClient([(host, port)], timeout=30)
assert pymemcache_hash.set("h", b"1", noreply=False) and pymemcache_hash.get("h") == b"1"

lib = pylibmc.Client(["%s:%d" % (host, port)], behaviors={"tcp_nodelay": True, "cas": True})
assert lib.set("a", {"some": ["object", 1]}) and lib.get("a") == {"some": ["object", 1]}
assert lib.set_multi({"m%d" % i: "v" * i for i in range(200)}) == []
assert lib.get_multi(["m%d" % i for i in range(250)]) == {"m%d" % i: "v" * i for i in range(200)}
value, cas = lib.gets("a")
assert lib.cas("a", 2, cas) and lib.get("a") == 2
assert lib.set("n", 7) and lib.incr("n", 3) == 10 and lib.decr("n") == 9
assert not lib.add("n", 1) and lib.replace("n", "t") and lib.append("n", "u")
assert lib.get("n") == "tu"
assert lib.touch("n", 100) and lib.delete("n") and lib.get("n") is None
assert lib.set("t", "x", time=1000) and lib.get("t") == "x"
assert lib.flush_all() and lib.get("t") is None
