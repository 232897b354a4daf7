"""pymemcache over TLS, against HOST PORT, trusting the certificates of FILE."""

import ssl
import sys

from pymemcache.client.base import Client

host, port, trusted = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context(cafile=trusted)
clients = [Client((host, port), tls_context=context) for _ in range(5)]
for i, client in enumerate(clients):
    value = b"%d" % i * 900_000
    assert client.set("k%d" % i, value, noreply=False)
    assert client.get("k%d" % i) == value
many = {"key%d" % i: b"value%d" % i * (i + 1) for i in range(300)}
assert clients[0].set_many(many, noreply=False) == []
assert clients[1].get_many(list(many)) == many
assert clients[2].raw_command(b"refresh_certs") == b"OK"
assert Client((host, port), tls_context=context).get("key7") == many["key7"]
