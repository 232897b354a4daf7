"""boto3 over TLS: ENDPOINT (https, localhost) ACCESS SECRET CA DOMAIN, buckets by path and by host."""

import socket
import sys
import urllib.request
import ssl

import boto3
from botocore.config import Config

endpoint, access, secret, ca, domain = sys.argv[1:]
port = int(endpoint.rsplit(":", 1)[1])
found = socket.getaddrinfo


def here(host, *rest, **more):
    """Names below the domain are this machine's; a resolver would know them."""
    return found("127.0.0.1" if host.lower().endswith(domain) else host, *rest, **more)


socket.getaddrinfo = here


def client(url, style):
    return boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=access,
        aws_secret_access_key=secret, verify=ca,
        config=Config(s3={"addressing_style": style}, signature_version="s3v4"),
    )


def fetch(url):
    with urllib.request.urlopen(url, context=ssl.create_default_context(cafile=ca)) as answer:
        return answer.read()


path = client(endpoint, "path")
host = client("https://%s:%d" % (domain, port), "virtual")
large = bytes(range(256)) * 40_000
path.create_bucket(Bucket="photos")
host.create_bucket(Bucket="by-host")
assert {b["Name"] for b in host.list_buckets()["Buckets"]} == {"photos", "by-host"}
for s3, other in [(path, host), (host, path)]:
    s3.put_object(Bucket="photos", Key="n/a b", Body=large)
    assert other.get_object(Bucket="photos", Key="n/a b")["Body"].read() == large
    assert other.list_objects_v2(Bucket="photos")["Contents"][0]["Key"] == "n/a b"
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "photos", "Key": "n/a b"})
    assert url.startswith("https://"), url
    assert fetch(url) == large
    # A host name may be written in any case; the signature is of what was sent.
    form = s3.generate_presigned_post("photos", "form")
    assert form["url"].startswith("https://"), form
# By what a bucket allows to who comes encrypted; a plain connection of this machine is none.
policy = """{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*",
    "Action": "s3:GetObject", "Resource": "arn:aws:s3:::photos/*",
    "Condition": {"Bool": {"aws:SecureTransport": "true"}}}]}"""
host.put_bucket_policy(Bucket="photos", Policy=policy)
assert fetch("https://PHOTOS.%s:%d/n/a%%20b" % (domain.upper(), port)) == large
try:
    fetch("http://photos.%s:%d/n/a%%20b" % (domain, port))
    raise SystemExit("a plain request was let in")
except urllib.error.HTTPError as e:
    assert e.code == 403, e
# Rules of a bucket hold for requests by host, too.
host.put_bucket_cors(Bucket="photos", CORSConfiguration={"CORSRules": [
    {"AllowedMethods": ["GET"], "AllowedOrigins": ["https://site.test"]}]})
ask = urllib.request.Request("https://photos.%s:%d/n/a%%20b" % (domain, port))
ask.add_header("Origin", "https://site.test")
with urllib.request.urlopen(ask, context=ssl.create_default_context(cafile=ca)) as answer:
    assert answer.headers["access-control-allow-origin"] == "https://site.test"
# A bucket with dots: no wildcard certificate is for its host, so it is asked by path.
path.create_bucket(Bucket="a.b.c")
path.put_object(Bucket="a.b.c", Key="k", Body=b"dots")
assert path.get_object(Bucket="a.b.c", Key="k")["Body"].read() == b"dots"
