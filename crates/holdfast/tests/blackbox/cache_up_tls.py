"""pymemcache with the cache of a node: PORT CA, over TLS and plain from the same machine."""

import ssl
import sys

from pymemcache.client.base import Client

port, trusted = int(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile=trusted)
plain, tls = Client(("localhost", port)), Client(("localhost", port), tls_context=context)
value = b"v" * 900_000
assert tls.set("k", value, noreply=False) and plain.get("k") == value
assert plain.set("l", b"plain", noreply=False) and tls.get("l") == b"plain"
assert tls.raw_command(b"refresh_certs") == b"OK"
