"""S3 as boto3 sees it, by the documentation of S3. Arguments: endpoint, access key, secret key.

Each function whose name begins with `test_` is one case, in a bucket of its own. Prints what failed
and ends with status 1 if anything did.
"""

import base64
import datetime
import hashlib
import io
import json
import socket
import sys
import threading
import traceback
import urllib.error
import urllib.parse
import urllib.request
import zlib

import boto3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.client import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

ENDPOINT, ACCESS, SECRET = sys.argv[1:4]


def client(access=ACCESS, secret=SECRET, **config):
    config = Config(
        signature_version="s3v4",
        retries={"max_attempts": 1},
        s3={"addressing_style": "path"},
        **config,
    )
    return boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=config,
    )


S3 = client()
NEXT = iter(range(1, 10_000))


def bucket(**more):
    name = f"bucket-{next(NEXT)}"
    S3.create_bucket(Bucket=name, **more)
    return name


def refused(code, call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        got = error.response["Error"]["Code"]
        assert got in (code if isinstance(code, tuple) else (code,)), f"{got}, not {code}: {error}"
        return error.response
    raise AssertionError(f"{call.__name__} was not refused with {code}")


def http(method, url, headers=None, body=None):
    request = urllib.request.Request(url, method=method, headers=headers or {}, data=body)
    names = lambda headers: {name.lower(): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, names(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, names(error.headers), error.read()


def keys(answer):
    return [found["Key"] for found in answer.get("Contents", [])]


def test_buckets_are_made_listed_and_removed():
    name = bucket()
    assert name in [b["Name"] for b in S3.list_buckets()["Buckets"]]
    S3.head_bucket(Bucket=name)
    assert S3.get_bucket_location(Bucket=name)["LocationConstraint"] is None
    S3.put_object(Bucket=name, Key="a", Body=b"")
    # In this region one's own bucket may be made again, and keeps what is in it.
    S3.create_bucket(Bucket=name)
    assert keys(S3.list_objects_v2(Bucket=name)) == ["a"]
    refused("BucketAlreadyOwnedByYou", S3.create_bucket, Bucket=name, ObjectLockEnabledForBucket=True)
    refused("BucketNotEmpty", S3.delete_bucket, Bucket=name)
    S3.delete_object(Bucket=name, Key="a")
    S3.delete_bucket(Bucket=name)
    refused("404", S3.head_bucket, Bucket=name)
    refused("NoSuchBucket", S3.list_objects_v2, Bucket=name)
    refused("NoSuchBucket", S3.put_object, Bucket=name, Key="a", Body=b"")
    refused("NoSuchBucket", S3.get_object, Bucket=name, Key="a")


def test_objects_come_back_as_they_were():
    name = bucket()
    for size in (0, 1, 1000, 65536, 65537, 1 << 20, (8 << 20) + 1, 20 << 20):
        body = bytes(i * 7 % 251 for i in range(1000)) * (size // 1000 + 1)
        body = body[:size]
        put = S3.put_object(
            Bucket=name,
            Key=f"size/{size}",
            Body=body,
            ContentType="image/x-test",
            CacheControl="no-cache",
            ContentDisposition="attachment",
            ContentLanguage="de",
            Metadata={"colour": "blue", "other": "1"},
        )
        assert put["ETag"] == f'"{hashlib.md5(body).hexdigest()}"', size
        got = S3.get_object(Bucket=name, Key=f"size/{size}")
        assert got["Body"].read() == body, size
        assert got["ContentLength"] == size and got["ContentType"] == "image/x-test"
        assert got["CacheControl"] == "no-cache" and got["ContentLanguage"] == "de"
        assert got["Metadata"] == {"colour": "blue", "other": "1"}
        head = S3.head_object(Bucket=name, Key=f"size/{size}")
        assert head["ETag"] == put["ETag"] and head["ContentLength"] == size
        age = datetime.datetime.now(datetime.timezone.utc) - head["LastModified"]
        assert abs(age) < datetime.timedelta(minutes=1)
    refused("NoSuchKey", S3.get_object, Bucket=name, Key="none")
    refused("404", S3.head_object, Bucket=name, Key="none")
    S3.put_object(Bucket=name, Key="plain", Body=b"x")
    assert S3.get_object(Bucket=name, Key="plain")["ContentType"] == "binary/octet-stream"


def test_answers_have_ids_and_errors_say_them():
    name = bucket()
    first = S3.head_bucket(Bucket=name)["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"]
    status, headers, body = http("GET", f"{ENDPOINT}/{name}/none")
    assert status == 403 and headers["x-amz-request-id"] != first
    assert f"<RequestId>{headers['x-amz-request-id']}</RequestId></Error>".encode() in body
    # The service itself is listed, nothing else.
    status, headers, body = http("PUT", f"{ENDPOINT}/")
    assert (status, headers["allow"]) == (405, "GET") and b"MethodNotAllowed" in body


def test_an_overwrite_replaces_and_a_delete_removes():
    name = bucket()
    S3.put_object(Bucket=name, Key="a", Body=b"one")
    S3.put_object(Bucket=name, Key="a", Body=b"two and more")
    assert S3.get_object(Bucket=name, Key="a")["Body"].read() == b"two and more"
    assert keys(S3.list_objects_v2(Bucket=name)) == ["a"]
    S3.delete_object(Bucket=name, Key="a")
    S3.delete_object(Bucket=name, Key="a")
    refused("NoSuchKey", S3.get_object, Bucket=name, Key="a")


def test_ranges():
    name = bucket()
    body = bytes(range(256)) * 1000
    S3.put_object(Bucket=name, Key="a", Body=body)
    for text, part in [
        ("bytes=0-0", body[:1]),
        ("bytes=100-199", body[100:200]),
        ("bytes=65530-65600", body[65530:65601]),
        ("bytes=-10", body[-10:]),
        ("bytes=255990-", body[255990:]),
        ("bytes=255990-9999999", body[255990:]),
    ]:
        got = S3.get_object(Bucket=name, Key="a", Range=text)
        assert got["Body"].read() == part, text
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert got["ContentRange"].endswith(f"/{len(body)}")
    refused("InvalidRange", S3.get_object, Bucket=name, Key="a", Range="bytes=256000-256001")
    S3.put_object(Bucket=name, Key="empty", Body=b"")
    refused("InvalidRange", S3.get_object, Bucket=name, Key="empty", Range="bytes=0-1")


def test_a_download_goes_on_with_what_it_began_with():
    """If-Range was ignored: a download of one object went on with the bytes of another."""
    name = bucket()
    S3.put_object(Bucket=name, Key="a", Body=b"0123456789")
    url = S3.generate_presigned_url("get_object", Params={"Bucket": name, "Key": "a"}, ExpiresIn=60)
    _, begun, _ = http("GET", url)
    rest = lambda validator: http("GET", url, {"Range": "bytes=4-", "If-Range": validator})[::2]
    for validator in (begun["etag"], begun["last-modified"]):
        assert rest(validator) == (206, b"456789"), validator
    S3.put_object(Bucket=name, Key="a", Body=b"abcdefghij")
    for validator in (begun["etag"], "W/" + begun["etag"], "Tue, 14 Nov 2023 22:13:20 GMT", "*"):
        assert rest(validator) == (200, b"abcdefghij"), validator


def test_what_is_not_one_range_is_the_whole():
    """As in S3. A range that is signed the library refuses, and the signature would not be right without it."""
    name = bucket()
    S3.put_object(Bucket=name, Key="a", Body=b"0123456789")
    url = S3.generate_presigned_url("get_object", Params={"Bucket": name, "Key": "a"}, ExpiresIn=60)
    for text in ("bytes=0-1,4-5", "bytes=5-2", "bytes=-", "bytes=x-y", "lines=1-2", "bytes=0-99999999999999999999"):
        status, headers, body = http("GET", url, {"Range": text})
        assert (status, body) == (200, b"0123456789") and "content-range" not in headers, text
    assert http("GET", url, {"Range": "bytes=1-2"})[::2] == (206, b"12")
    assert http("GET", url, {"Range": "bytes=10-11"})[0] == 416
    refused("InvalidArgument", S3.get_object, Bucket=name, Key="a", Range="bytes=0-1,4-5")


def test_a_part_that_is_only_asked_about_has_the_status_of_a_part():
    name = bucket()
    S3.put_object(Bucket=name, Key="a", Body=b"0123456789")
    got = S3.head_object(Bucket=name, Key="a", Range="bytes=-3")
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert (got["ContentLength"], got["ContentRange"]) == (3, "bytes 7-9/10")
    assert S3.head_object(Bucket=name, Key="a")["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_objects_of_no_bytes_are_followed_by_others_on_the_same_connection():
    """boto3 announces bodies, of no bytes too, and took the answer to one for that to the next request."""
    name = bucket()
    one = client(max_pool_connections=1, read_timeout=300)
    for i in range(3):
        for body in (b"", b"x", b"", b""):
            put = one.put_object(Bucket=name, Key=f"{i}", Body=body)
            assert put["ETag"] == f'"{hashlib.md5(body).hexdigest()}"', put
        refused("NoSuchBucket", one.put_object, Bucket="no-such-bucket", Key="a", Body=b"")
        put = one.put_object(Bucket=name, Key=f"{i}", Body=b"y")
        assert put["ETag"] == f'"{hashlib.md5(b"y").hexdigest()}"', put
        assert one.get_object(Bucket=name, Key=f"{i}")["Body"].read() == b"y"


def test_conditions_of_reads_and_writes():
    name = bucket()
    etag = S3.put_object(Bucket=name, Key="a", Body=b"1")["ETag"]
    S3.get_object(Bucket=name, Key="a", IfMatch=etag)
    refused("PreconditionFailed", S3.get_object, Bucket=name, Key="a", IfMatch='"other"')
    refused("304", S3.get_object, Bucket=name, Key="a", IfNoneMatch=etag)
    S3.get_object(Bucket=name, Key="a", IfNoneMatch='"other"')
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    refused("304", S3.get_object, Bucket=name, Key="a", IfModifiedSince=now + day)
    S3.get_object(Bucket=name, Key="a", IfModifiedSince=now - day)
    refused("PreconditionFailed", S3.get_object, Bucket=name, Key="a", IfUnmodifiedSince=now - day)
    refused("PreconditionFailed", S3.put_object, Bucket=name, Key="a", Body=b"2", IfNoneMatch="*")
    S3.put_object(Bucket=name, Key="b", Body=b"2", IfNoneMatch="*")
    refused("PreconditionFailed", S3.put_object, Bucket=name, Key="a", Body=b"3", IfMatch='"x"')
    S3.put_object(Bucket=name, Key="a", Body=b"3", IfMatch=etag)
    assert S3.get_object(Bucket=name, Key="a")["Body"].read() == b"3"


def test_one_of_many_conditional_writers_wins():
    name = bucket()
    won = []

    def write(i):
        try:
            client().put_object(Bucket=name, Key="a", Body=b"%d" % i, IfNoneMatch="*")
            won.append(i)
        except ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed", error

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(won) == 1, won
    assert S3.get_object(Bucket=name, Key="a")["Body"].read() == b"%d" % won[0]


def test_lists_with_prefix_delimiter_and_pages():
    name = bucket()
    names = ["a", "b/1", "b/2", "b/c/3", "b0", "c/4", "d", "ü", "z//x"]
    for key in names:
        S3.put_object(Bucket=name, Key=key, Body=b"x")
    for call in (S3.list_objects_v2, S3.list_objects):
        assert keys(call(Bucket=name)) == sorted(names, key=lambda k: k.encode())
        answer = call(Bucket=name, Delimiter="/")
        assert keys(answer) == ["a", "b0", "d", "ü"]
        assert [p["Prefix"] for p in answer["CommonPrefixes"]] == ["b/", "c/", "z/"]
        answer = call(Bucket=name, Prefix="b/", Delimiter="/")
        assert keys(answer) == ["b/1", "b/2"]
        assert [p["Prefix"] for p in answer["CommonPrefixes"]] == ["b/c/"]
        assert keys(call(Bucket=name, Prefix="nothing")) == []
        answer = call(Bucket=name, Delimiter="")
        assert len(keys(answer)) == len(names) and "Delimiter" not in answer
    for size in (1, 2, 3, 1000):
        found, prefixes, token = [], [], None
        while True:
            more = {"ContinuationToken": token} if token else {}
            answer = S3.list_objects_v2(Bucket=name, Delimiter="/", MaxKeys=size, **more)
            found += keys(answer)
            prefixes += [p["Prefix"] for p in answer.get("CommonPrefixes", [])]
            assert answer["KeyCount"] <= size
            token = answer.get("NextContinuationToken")
            if not answer["IsTruncated"]:
                break
        assert (found, prefixes) == (["a", "b0", "d", "ü"], ["b/", "c/", "z/"]), size
    marker, found = "", []
    while True:
        answer = S3.list_objects(Bucket=name, MaxKeys=2, Marker=marker)
        found += keys(answer)
        if not answer["IsTruncated"]:
            break
        marker = found[-1]
    assert found == sorted(names, key=lambda k: k.encode())
    assert keys(S3.list_objects_v2(Bucket=name, StartAfter="c/4")) == ["d", "z//x", "ü"]
    assert S3.list_objects_v2(Bucket=name, MaxKeys=0)["KeyCount"] == 0
    assert len(keys(S3.list_objects_v2(Bucket=name, ContinuationToken=""))) == len(names)
    refused("InvalidArgument", S3.list_objects_v2, Bucket=name, ContinuationToken="!")


def test_keys_of_any_characters():
    name = bucket()
    odd = [
        "a b", "a+b", "a%2Fb", "..", "../x", "x/../y", "a//b", "/lead", "ä/ö ü", "日本", "a&b=c",
        "q?x=1", "#frag", "'\"<>", "tab\tx", "k" * 1024, "\U0001f600", "a\\b", "~-_.!*()",
    ]
    for key in odd:
        S3.put_object(Bucket=name, Key=key, Body=key.encode())
    for key in odd:
        assert S3.get_object(Bucket=name, Key=key)["Body"].read() == key.encode(), key
    found = keys(S3.list_objects_v2(Bucket=name))
    assert found == sorted(odd, key=lambda k: k.encode()), found
    refused("KeyTooLongError", S3.put_object, Bucket=name, Key="k" * 1025, Body=b"")
    for key in odd:
        S3.delete_object(Bucket=name, Key=key)
    assert keys(S3.list_objects_v2(Bucket=name)) == []


def test_many_deletes_at_once():
    name = bucket()
    for i in range(10):
        S3.put_object(Bucket=name, Key=f"k{i}", Body=b"x")
    wanted = [{"Key": f"k{i}"} for i in range(9)] + [{"Key": "none"}]
    answer = S3.delete_objects(Bucket=name, Delete={"Objects": wanted})
    assert len(answer["Deleted"]) == 10 and "Errors" not in answer
    assert keys(S3.list_objects_v2(Bucket=name)) == ["k9"]
    quiet = S3.delete_objects(Bucket=name, Delete={"Objects": [{"Key": "k9"}], "Quiet": True})
    assert "Deleted" not in quiet
    many = {"Objects": [{"Key": f"x{i}"} for i in range(1001)]}
    refused("MalformedXML", S3.delete_objects, Bucket=name, Delete=many)


def test_keys_that_cannot_be_are_not_deleted():
    """One of 65,536 bytes stopped the view of the whole cluster, at each start again."""
    name = bucket()
    for versioning in (None, "Enabled", "Suspended"):
        if versioning:
            S3.put_bucket_versioning(
                Bucket=name, VersioningConfiguration={"Status": versioning}
            )
        S3.put_object(Bucket=name, Key="a", Body=b"1")
        for length in (1025, 65_000, 65_535, 65_536, 200_000):
            wrong = {"Key": "x" * length}
            one = wrong | {"VersionId": "null"}
            found = S3.delete_objects(Bucket=name, Delete={"Objects": [wrong, one, {"Key": "a"}]})
            assert [e["Code"] for e in found["Errors"]] == ["KeyTooLongError"] * 2, found["Errors"]
            assert [d["Key"] for d in found["Deleted"]] == ["a"], found["Deleted"]
        raw = client(parameter_validation=False)
        refused(
            "MalformedXML",
            raw.delete_objects,
            Bucket=name,
            Delete={"Objects": [{"Key": "a"}, {"Key": ""}]},
        )
    found = S3.list_object_versions(Bucket=name)
    listed = found.get("Versions", []) + found.get("DeleteMarkers", [])
    assert {one["Key"] for one in listed} == {"a"}, listed


def test_copies():
    name, other = bucket(), bucket()
    body = b"copied" * 2_000_000
    S3.put_object(Bucket=name, Key="a b", Body=body, ContentType="text/x", Metadata={"m": "1"})
    source = {"Bucket": name, "Key": "a b"}
    copied = S3.copy_object(Bucket=other, Key="c", CopySource=source)
    assert copied["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    got = S3.get_object(Bucket=other, Key="c")
    assert got["Body"].read() == body and got["ContentType"] == "text/x" and got["Metadata"] == {"m": "1"}
    S3.copy_object(
        Bucket=other, Key="d", CopySource=source, MetadataDirective="REPLACE",
        ContentType="text/y", Metadata={"n": "2"},
    )
    got = S3.head_object(Bucket=other, Key="d")
    assert got["ContentType"] == "text/y" and got["Metadata"] == {"n": "2"}
    refused("InvalidRequest", S3.copy_object, Bucket=name, Key="a b", CopySource=source)
    S3.copy_object(Bucket=name, Key="a b", CopySource=source, MetadataDirective="REPLACE")
    assert S3.head_object(Bucket=name, Key="a b")["Metadata"] == {}
    refused("NoSuchKey", S3.copy_object, Bucket=name, Key="x", CopySource={"Bucket": name, "Key": "none"})
    refused(
        "PreconditionFailed", S3.copy_object, Bucket=name, Key="x", CopySource=source,
        CopySourceIfMatch='"other"',
    )


def test_uploads_in_parts():
    name = bucket()
    mib = 1 << 20
    body = [bytes([65 + i]) * (5 * mib + i) for i in range(3)] + [b"last"]
    begun = S3.create_multipart_upload(
        Bucket=name, Key="m/ü", ContentType="text/x", Metadata={"a": "b"}
    )
    upload = {"Bucket": name, "Key": "m/ü", "UploadId": begun["UploadId"]}
    assert [u["Key"] for u in S3.list_multipart_uploads(Bucket=name)["Uploads"]] == ["m/ü"]
    etags = {}
    for number, part in reversed(list(zip((1, 2, 5, 9), body))):
        etags[number] = S3.upload_part(PartNumber=number, Body=part, **upload)["ETag"]
    S3.upload_part(PartNumber=2, Body=b"replaced soon", **upload)
    etags[2] = S3.upload_part(PartNumber=2, Body=body[1], **upload)["ETag"]
    S3.upload_part(PartNumber=7, Body=b"not wanted", **upload)
    listed = S3.list_parts(MaxParts=2, **upload)
    assert [p["PartNumber"] for p in listed["Parts"]] == [1, 2] and listed["IsTruncated"]
    refused("NoSuchKey", S3.get_object, Bucket=name, Key="m/ü")
    parts = [{"PartNumber": n, "ETag": etags[n]} for n in (1, 2, 5, 9)]
    done = S3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
    digests = b"".join(hashlib.md5(part).digest() for part in body)
    assert done["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-4"', done["ETag"]
    again = S3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
    assert again["ETag"] == done["ETag"], "completing twice gives the first answer"
    got = S3.get_object(Bucket=name, Key="m/ü")
    assert got["Body"].read() == b"".join(body)
    assert got["ContentType"] == "text/x" and got["Metadata"] == {"a": "b"}
    part = S3.get_object(Bucket=name, Key="m/ü", PartNumber=2)
    assert part["Body"].read() == body[1] and part["PartsCount"] == 4
    refused("InvalidRange", S3.get_object, Bucket=name, Key="m/ü", PartNumber=5)
    around = f"bytes={5 * mib - 3}-{5 * mib + 3}"
    assert S3.get_object(Bucket=name, Key="m/ü", Range=around)["Body"].read() == b"AAABBBB"
    attributes = S3.get_object_attributes(
        Bucket=name, Key="m/ü", ObjectAttributes=["ObjectParts", "ObjectSize", "ETag"]
    )
    assert attributes["ObjectParts"]["TotalPartsCount"] == 4
    assert attributes["ObjectSize"] == len(b"".join(body))


def test_uploads_in_parts_are_refused_when_wrong():
    name = bucket()
    upload = {"Bucket": name, "Key": "k"}
    upload["UploadId"] = S3.create_multipart_upload(**upload)["UploadId"]
    etag = S3.upload_part(PartNumber=1, Body=b"small", **upload)["ETag"]
    second = S3.upload_part(PartNumber=2, Body=b"small", **upload)["ETag"]
    parts = lambda *list: {"Parts": [{"PartNumber": n, "ETag": e} for n, e in list]}
    complete = S3.complete_multipart_upload
    refused("EntityTooSmall", complete, MultipartUpload=parts((1, etag), (2, second)), **upload)
    refused("InvalidPartOrder", complete, MultipartUpload=parts((2, second), (1, etag)), **upload)
    refused("InvalidPart", complete, MultipartUpload=parts((3, etag)), **upload)
    refused("InvalidPart", complete, MultipartUpload=parts((1, '"0"')), **upload)
    refused("InvalidArgument", S3.upload_part, PartNumber=0, Body=b"", **upload)
    refused("InvalidArgument", S3.upload_part, PartNumber=10001, Body=b"", **upload)
    S3.upload_part(PartNumber=10000, Body=b"last", **upload)
    S3.abort_multipart_upload(**upload)
    refused("NoSuchUpload", S3.upload_part, PartNumber=1, Body=b"", **upload)
    refused("NoSuchUpload", S3.abort_multipart_upload, **upload)
    refused("NoSuchUpload", complete, MultipartUpload=parts((1, etag)), **upload)
    assert "Uploads" not in S3.list_multipart_uploads(Bucket=name)


def test_parts_are_copied():
    name = bucket()
    body = b"0123456789" * 600_000
    S3.put_object(Bucket=name, Key="source", Body=body)
    upload = {"Bucket": name, "Key": "copy"}
    upload["UploadId"] = S3.create_multipart_upload(**upload)["UploadId"]
    source = {"Bucket": name, "Key": "source"}
    first = S3.upload_part_copy(
        PartNumber=1, CopySource=source, CopySourceRange="bytes=0-5999989", **upload
    )
    second = S3.upload_part_copy(
        PartNumber=2, CopySource=source, CopySourceRange="bytes=5999990-5999999", **upload
    )
    parts = [
        {"PartNumber": 1, "ETag": first["CopyPartResult"]["ETag"]},
        {"PartNumber": 2, "ETag": second["CopyPartResult"]["ETag"]},
    ]
    S3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)
    assert S3.get_object(Bucket=name, Key="copy")["Body"].read() == body
    upload["UploadId"] = S3.create_multipart_upload(Bucket=name, Key="copy")["UploadId"]
    refused(
        "InvalidRange", S3.upload_part_copy, PartNumber=1, CopySource=source,
        CopySourceRange="bytes=0-6000000", **upload,
    )


def test_the_transfer_manager_moves_large_files():
    name = bucket()
    body = bytes(i * i % 256 for i in range(65536)) * 400
    S3.upload_fileobj(io.BytesIO(body), name, "big")
    back = io.BytesIO()
    S3.download_fileobj(name, "big", back)
    assert back.getvalue() == body


def test_versions():
    name = bucket()
    S3.put_object(Bucket=name, Key="a", Body=b"0")
    assert "Status" not in S3.get_bucket_versioning(Bucket=name)
    S3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    assert S3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    first = S3.put_object(Bucket=name, Key="a", Body=b"1")["VersionId"]
    second = S3.put_object(Bucket=name, Key="a", Body=b"2")["VersionId"]
    assert first != second
    assert S3.get_object(Bucket=name, Key="a")["Body"].read() == b"2"
    assert S3.get_object(Bucket=name, Key="a", VersionId=first)["Body"].read() == b"1"
    assert S3.get_object(Bucket=name, Key="a", VersionId="null")["Body"].read() == b"0"
    marker = S3.delete_object(Bucket=name, Key="a")
    assert marker["DeleteMarker"] is True
    answer = refused("NoSuchKey", S3.get_object, Bucket=name, Key="a")
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-amz-delete-marker"] == "true"
    refused("MethodNotAllowed", S3.get_object, Bucket=name, Key="a", VersionId=marker["VersionId"])
    assert keys(S3.list_objects_v2(Bucket=name)) == []
    listed = S3.list_object_versions(Bucket=name)
    assert [v["VersionId"] for v in listed["Versions"]] == [second, first, "null"]
    assert [v["IsLatest"] for v in listed["Versions"]] == [False, False, False]
    assert [m["VersionId"] for m in listed["DeleteMarkers"]] == [marker["VersionId"]]
    S3.delete_object(Bucket=name, Key="a", VersionId=marker["VersionId"])
    assert S3.get_object(Bucket=name, Key="a")["Body"].read() == b"2", "the marker is gone"
    S3.delete_object(Bucket=name, Key="a", VersionId=second)
    assert S3.get_object(Bucket=name, Key="a")["Body"].read() == b"1"
    refused("NoSuchVersion", S3.get_object, Bucket=name, Key="a", VersionId=second)
    S3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"})
    S3.put_object(Bucket=name, Key="a", Body=b"null again")
    listed = S3.list_object_versions(Bucket=name)
    assert [v["VersionId"] for v in listed["Versions"]] == ["null", first]
    for version in ("null", first):
        S3.delete_object(Bucket=name, Key="a", VersionId=version)
    S3.delete_bucket(Bucket=name)


def test_versions_are_listed_in_pages():
    name = bucket()
    S3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    made = []
    for key in ("a", "b", "c"):
        for i in range(3):
            version = S3.put_object(Bucket=name, Key=key, Body=b"%d" % i)["VersionId"]
            made.append((key, version))
    expected = [pair for key in "abc" for pair in reversed([p for p in made if p[0] == key])]
    for size in (1, 2, 4, 9, 100):
        found, more = [], {}
        while True:
            answer = S3.list_object_versions(Bucket=name, MaxKeys=size, **more)
            found += [(v["Key"], v["VersionId"]) for v in answer.get("Versions", [])]
            if not answer["IsTruncated"]:
                break
            more = {"KeyMarker": answer["NextKeyMarker"]}
            if "NextVersionIdMarker" in answer:
                more["VersionIdMarker"] = answer["NextVersionIdMarker"]
        assert found == expected, size


def test_tags():
    name = bucket()
    S3.put_object(Bucket=name, Key="a", Body=b"x", Tagging="k2=v%202&k1=v1")
    tags = S3.get_object_tagging(Bucket=name, Key="a")["TagSet"]
    assert tags == [{"Key": "k1", "Value": "v1"}, {"Key": "k2", "Value": "v 2"}]
    assert S3.get_object(Bucket=name, Key="a")["TagCount"] == 2
    head = S3.head_object(Bucket=name, Key="a")["ResponseMetadata"]["HTTPHeaders"]
    assert head["x-amz-tagging-count"] == "2"
    wanted = [{"Key": "n", "Value": "m"}]
    S3.put_object_tagging(Bucket=name, Key="a", Tagging={"TagSet": wanted})
    assert S3.get_object_tagging(Bucket=name, Key="a")["TagSet"] == wanted
    S3.delete_object_tagging(Bucket=name, Key="a")
    assert S3.get_object_tagging(Bucket=name, Key="a")["TagSet"] == []
    many = [{"Key": f"k{i}", "Value": ""} for i in range(11)]
    refused("InvalidTag", S3.put_object_tagging, Bucket=name, Key="a", Tagging={"TagSet": many})
    refused("NoSuchTagSet", S3.get_bucket_tagging, Bucket=name)
    S3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": wanted})
    assert S3.get_bucket_tagging(Bucket=name)["TagSet"] == wanted
    S3.delete_bucket_tagging(Bucket=name)
    refused("NoSuchTagSet", S3.get_bucket_tagging, Bucket=name)


def test_presigned_urls():
    name = bucket()
    for seconds in (-1, 7 * 24 * 3600 + 1):
        url = S3.generate_presigned_url("get_object", Params={"Bucket": name, "Key": "a"}, ExpiresIn=seconds)
        status, _, body = http("GET", url)
        assert status == 400 and b"AuthorizationQueryParametersError" in body, (seconds, body)
    S3.put_object(Bucket=name, Key="a/ü b", Body=b"presigned")
    sign = lambda what, seconds=60, **more: S3.generate_presigned_url(
        what, Params={"Bucket": name, **more}, ExpiresIn=seconds
    )
    url = sign("get_object", Key="a/ü b")
    assert http("GET", url)[::2] == (200, b"presigned")
    other = url[:-1] + ("0" if url[-1] != "0" else "1")
    assert http("GET", other)[0] == 403, "another signature"
    assert http("GET", url.replace("b?", "c?"))[0] == 403, "another key"
    assert http("GET", sign("get_object", Key="a/ü b", seconds=-10))[0] in (400, 403)
    put = sign("put_object", Key="up")
    assert http("PUT", put, body=b"by url")[0] == 200
    assert S3.get_object(Bucket=name, Key="up")["Body"].read() == b"by url"
    disposition = sign("get_object", Key="up", ResponseContentDisposition="attachment; x")
    assert http("GET", disposition)[1]["content-disposition"] == "attachment; x"


def test_headers_that_no_signature_covers():
    """A presigned put took a stranger's x-amz-copy-source, and copied what its maker may read."""
    name = bucket()
    S3.put_object(Bucket=name, Key="secret", Body=b"secret")
    put = S3.generate_presigned_url("put_object", Params={"Bucket": name, "Key": "up"}, ExpiresIn=60)
    for header in ("x-amz-copy-source", "X-Amz-Copy-Source", "x-amz-meta-a", "x-amz-tagging"):
        status, _, body = http("PUT", put, {header: f"/{name}/secret"}, b"")
        assert status == 403 and b"AccessDenied" in body, (header, status, body)
    refused("404", S3.head_object, Bucket=name, Key="up")
    assert http("PUT", put, {"Content-Type": "text/plain"}, b"by url")[0] == 200


def test_an_older_version_is_copied_back():
    name = bucket()
    S3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    first = S3.put_object(Bucket=name, Key="a", Body=b"one")["VersionId"]
    S3.put_object(Bucket=name, Key="a", Body=b"two")
    S3.copy_object(Bucket=name, Key="a", CopySource={"Bucket": name, "Key": "a", "VersionId": first})
    assert S3.get_object(Bucket=name, Key="a")["Body"].read() == b"one"


def post(name, fields, body="hello", file="x.txt", more=None):
    edge = "edge" * 8
    part = lambda k: f'--{edge}\r\nContent-Disposition: form-data; name="{k}"; filename="{file}"\r\n\r\n'
    head = "".join(f"{part(k)}{v}\r\n" for k, v in fields.items())
    body = body.encode() if isinstance(body, str) else body
    body = (head + part("file")).encode() + body + f"\r\n--{edge}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={edge}", **(more or {})}
    status, headers, said = http("POST", f"{ENDPOINT}/{name}", headers, body)
    code = said.split(b"<Code>")[1].split(b"<")[0].decode() if b"<Code>" in said else None
    return status, code, headers, said


def test_post_forms():
    name, other = bucket(), bucket()
    sign = lambda conditions=[], most=1 << 22, **fields: S3.generate_presigned_post(
        name,
        "form/${filename}",
        Fields=fields,
        Conditions=[["content-length-range", 1, most], *conditions],
    )["fields"]
    # The name of the file is what is behind the last slash, of either kind.
    status, _, headers, _ = post(name, sign(), file="C:\\files\\x.txt")
    assert status == 204 and headers["etag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    assert S3.get_object(Bucket=name, Key="form/x.txt")["Body"].read() == b"hello"
    body = bytes(i * 13 % 256 for i in range(1 << 20)) + b"\r\n--edge" * 1000 + b"\r"
    assert post(name, sign(), body)[0] == 204
    assert S3.get_object(Bucket=name, Key="form/x.txt")["Body"].read() == body
    tags = "<Tagging><TagSet><Tag><Key>a&amp;b</Key><Value>c</Value></Tag></TagSet></Tagging>"
    tagged = sign(conditions=[["starts-with", "$tagging", ""]], tagging=tags)
    created = sign(conditions=[{"success_action_status": "201"}], success_action_status="201")
    assert post(name, tagged)[0] == 204
    tags = S3.get_object_tagging(Bucket=name, Key="form/x.txt")["TagSet"]
    assert tags == [{"Key": "a&b", "Value": "c"}]
    status, _, _, said = post(name, created)
    assert status == 201 and b"<Key>form/x.txt</Key>" in said and b"&quot;</ETag>" in said, said
    for code, fields, target, body in [
        ("EntityTooLarge", sign(most=10), name, b"x" * 11),
        ("EntityTooSmall", sign(), name, b""),
        ("AccessDenied", sign(), other, b"x"),
        ("AccessDenied", {**sign(), "key": "elsewhere"}, name, b"x"),
        ("AccessDenied", {**sign(), "x-amz-meta-a": "not in the policy"}, name, b"x"),
        ("AccessDenied", {"key": "unsigned"}, name, b"x"),
        ("NoSuchBucket", {"key": "unsigned"}, "no-such-bucket", b"x"),
        ("InvalidArgument", {k: v for k, v in sign().items() if k != "x-amz-signature"}, name, b"x"),
        ("InvalidArgument", {"acl": "private"}, name, b"x"),
        ("InvalidArgument", {**sign(), "key": ""}, name, b"x"),
        ("MethodNotAllowed", sign(), f"{name}/key", b"x"),
        ("AccessControlListNotSupported", {"key": "a", "acl": "public-read"}, name, b"x"),
        ("MaxPostPreDataLengthExceededError", {"key": "a", "b": "x" * (20 << 10)}, name, b"x"),
    ]:
        assert post(target, fields, body)[1] == code, (code, fields)
    # A policy that does not say of which bucket it is would be good for all.
    fields = sign()
    policy = json.loads(base64.b64decode(fields["policy"]))
    policy["conditions"] = [c for c in policy["conditions"] if c != {"bucket": name}]
    fields["policy"] = base64.b64encode(json.dumps(policy).encode()).decode()
    assert post(name, fields)[1] == "AccessDenied"
    # Who may not write is told so before the file is read.
    start = '--e\r\nContent-Disposition: form-data; name="{}"\r\n\r\n'
    for length, status in (("1000000", b"403"), (str(1 << 30), b"400")):
        with socket.create_connection(urllib.parse.urlsplit(ENDPOINT).netloc.split(":"), 30) as stream:
            head = f"POST /{name} HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data; boundary=e\r\n"
            form = start.format("key") + "a\r\n" + start.format("file")
            stream.sendall(f"{head}Content-Length: {length}\r\n\r\n{form}".encode())
            assert stream.recv(1000).startswith(b"HTTP/1.1 " + status), length


def test_signatures_that_are_wrong():
    name = bucket()
    refused("SignatureDoesNotMatch", client(secret="wrong").put_object, Bucket=name, Key="a", Body=b"")
    refused("InvalidAccessKeyId", client(access="NOBODY").put_object, Bucket=name, Key="a", Body=b"")
    assert http("GET", f"{ENDPOINT}/{name}/a")[0] == 403
    assert http("GET", f"{ENDPOINT}/")[0] == 403
    assert http("PUT", f"{ENDPOINT}/{name}/a", body=b"x")[0] == 403
    headers = {
        "Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS}/20200101/us-east-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature={'0' * 64}",
        "x-amz-date": "20200101T000000Z",
        "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
    }
    status, _, body = http("GET", f"{ENDPOINT}/{name}/a", headers)
    assert status == 403 and b"RequestTimeTooSkewed" in body, body


def test_checksums():
    name = bucket()
    body = b"123456789"
    wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    refused("BadDigest", S3.put_object, Bucket=name, Key="a", Body=body, ContentMD5=wrong)
    refused("InvalidDigest", S3.put_object, Bucket=name, Key="a", Body=body, ContentMD5="x")
    refused("NoSuchKey", S3.get_object, Bucket=name, Key="a")
    for algorithm, value in [
        ("CRC32", "y/Q5Jg=="),
        ("SHA1", base64.b64encode(hashlib.sha1(body).digest()).decode()),
        ("SHA256", base64.b64encode(hashlib.sha256(body).digest()).decode()),
    ]:
        put = S3.put_object(Bucket=name, Key=algorithm, Body=body, ChecksumAlgorithm=algorithm)
        field = f"Checksum{algorithm}"
        assert put[field] == value, (algorithm, put)
        got = S3.get_object(Bucket=name, Key=algorithm, ChecksumMode="ENABLED")
        assert got[field] == value and got["Body"].read() == body
    refused("BadDigest", S3.put_object, Bucket=name, Key="a", Body=body, ChecksumCRC32="AAAAAA==")
    refused("NoSuchKey", S3.get_object, Bucket=name, Key="a")


def test_a_multipart_upload_has_the_checksum_of_its_whole():
    name = bucket()
    parts = [b"\x07" * (5 << 20), b"the last one is short"]
    begun = S3.create_multipart_upload(
        Bucket=name, Key="a", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT"
    )
    at = {"Bucket": name, "Key": "a", "UploadId": begun["UploadId"]}
    done = []
    for number, part in enumerate(parts, 1):
        put = S3.upload_part(PartNumber=number, Body=part, ChecksumAlgorithm="CRC32", **at)
        done.append({"PartNumber": number, "ETag": put["ETag"], "ChecksumCRC32": put["ChecksumCRC32"]})
    whole = base64.b64encode(zlib.crc32(b"".join(parts)).to_bytes(4, "big")).decode()
    refused(
        "BadDigest", S3.complete_multipart_upload, MultipartUpload={"Parts": done},
        ChecksumType="FULL_OBJECT", ChecksumCRC32="AAAAAA==", **at,
    )
    made = S3.complete_multipart_upload(
        MultipartUpload={"Parts": done}, ChecksumType="FULL_OBJECT", ChecksumCRC32=whole, **at
    )
    assert (made["ChecksumCRC32"], made["ChecksumType"]) == (whole, "FULL_OBJECT"), made
    got = S3.get_object(Bucket=name, Key="a", ChecksumMode="ENABLED")
    assert got["ChecksumCRC32"] == whole and got["Body"].read() == b"".join(parts)
    refused(
        "InvalidRequest", S3.create_multipart_upload, Bucket=name, Key="b",
        ChecksumAlgorithm="SHA256", ChecksumType="FULL_OBJECT",
    )


def test_a_part_with_another_checksum_than_its_upload_is_told_so():
    """A trailing one was said to be missing."""
    name = bucket()
    begun = S3.create_multipart_upload(Bucket=name, Key="a", ChecksumAlgorithm="SHA256")
    at = {"Bucket": name, "Key": "a", "UploadId": begun["UploadId"], "PartNumber": 1}
    for part in (dict(ChecksumAlgorithm="CRC32"), dict(ChecksumCRC32="y/Q5Jg==")):
        refused("InvalidRequest", S3.upload_part, Body=b"123456789", **part, **at)
    # As boto3 sends it over TLS.
    kind = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    url = f"{ENDPOINT}/{name}/a?partNumber=1&uploadId={begun['UploadId']}"
    said = {"x-amz-trailer": "x-amz-checksum-crc32", "x-amz-decoded-content-length": "9"}
    request = AWSRequest("PUT", url, {**said, "content-encoding": "aws-chunked"})
    signer = S3SigV4Auth(Credentials(ACCESS, SECRET), "s3", "us-east-1")
    signer.payload = lambda _: kind
    signer.add_auth(request)
    body = b"9\r\n123456789\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n"
    status, _, told = http("PUT", url, dict(request.headers.items()), body)
    assert status == 400 and b"InvalidRequest" in told, told
    S3.upload_part(Body=b"123456789", ChecksumAlgorithm="SHA256", **at)


def test_listings_of_uploads_encode_what_they_repeat():
    name = bucket()
    S3.create_multipart_upload(Bucket=name, Key="a +\u00fc/b c")
    listed = S3.list_multipart_uploads(
        Bucket=name, Prefix="a +", Delimiter="/", KeyMarker="a *", EncodingType="url"
    )
    assert (listed["Prefix"], listed["KeyMarker"], listed["Delimiter"]) == ("a%20%2B", "a%20*", "/"), listed
    assert [p["Prefix"] for p in listed["CommonPrefixes"]] == ["a%20%2B%C3%BC/"]


def test_policies_let_others_in_and_nothing_else_does():
    name = bucket()
    S3.put_object(Bucket=name, Key="open/a", Body=b"open")
    S3.put_object(Bucket=name, Key="closed", Body=b"closed")
    refused("NoSuchBucketPolicy", S3.get_bucket_policy, Bucket=name)
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": "*",
                "Action": "s3:GetObject",
                "Resource": f"arn:aws:s3:::{name}/open/*",
            }
        ],
    }
    S3.put_bucket_policy(Bucket=name, Policy=json.dumps(policy))
    assert json.loads(S3.get_bucket_policy(Bucket=name)["Policy"]) == policy
    assert S3.get_bucket_policy_status(Bucket=name)["PolicyStatus"]["IsPublic"] is True
    assert http("GET", f"{ENDPOINT}/{name}/open/a")[::2] == (200, b"open")
    assert http("GET", f"{ENDPOINT}/{name}/closed")[0] == 403
    assert http("PUT", f"{ENDPOINT}/{name}/open/b", body=b"x")[0] == 403
    assert http("GET", f"{ENDPOINT}/{name}")[0] == 403
    assert http("GET", f"{ENDPOINT}/no-{name}/open/a")[0] == 404
    policy["Statement"][0]["Condition"] = {"StringEquals": {"aws:Weather": "fine"}}
    refused("MalformedPolicy", S3.put_bucket_policy, Bucket=name, Policy=json.dumps(policy))
    refused("MalformedPolicy", S3.put_bucket_policy, Bucket=name, Policy="{")
    S3.delete_bucket_policy(Bucket=name)
    assert http("GET", f"{ENDPOINT}/{name}/open/a")[0] == 403
    refused("AccessControlListNotSupported", S3.put_object, Bucket=name, Key="p", Body=b"", ACL="public-read")
    S3.put_object(Bucket=name, Key="p", Body=b"", ACL="private")
    assert S3.get_object_acl(Bucket=name, Key="p")["Grants"][0]["Permission"] == "FULL_CONTROL"


def test_policies_have_conditions():
    name = bucket()
    S3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    version = S3.put_object(Bucket=name, Key="open/a", Body=b"a", Tagging="for=all")["VersionId"]
    S3.put_object(Bucket=name, Key="open/b", Body=b"b", Tagging="for=us")
    S3.put_object(Bucket=name, Key="a+b", Body=b"ab")

    def allow(condition, *actions, resource=name):
        statement = {
            "Effect": "Allow",
            "Principal": {"AWS": "*"},
            "Action": list(actions) or "s3:*",
            "Resource": [f"arn:aws:s3:::{resource}", f"arn:aws:s3:::{resource}/*"],
            "Condition": condition,
        }
        S3.put_bucket_policy(Bucket=name, Policy=json.dumps({"Statement": statement}))

    referer = {"aws:Referer": "https://a.example/*"}
    here, prefix = {"aws:SourceIp": ["10.0.0.0/8", "127.0.0.0/8"]}, {"s3:prefix": "open/"}
    tag, set_tag = {"s3:ExistingObjectTag/for": "all"}, {"s3:RequestObjectTag/for": ["all", "more"]}
    source, plus = {"s3:x-amz-copy-source": f"{name}/open/a*"}, {"s3:x-amz-copy-source": f"{name}/a+b"}
    tags = b"<Tagging><TagSet><Tag><Key>for</Key><Value>%s</Value></Tag></TagSet></Tagging>"
    for condition, method, path, headers, body, expected in [
        ({"StringLike": referer}, "GET", "/open/a", {"Referer": "https://a.example/x"}, None, 200),
        ({"StringLike": referer}, "GET", "/open/a", {"Referer": "https://b.example/"}, None, 403),
        ({"StringLike": referer}, "GET", "/open/a", {}, None, 403),
        ({"StringLikeIfExists": referer}, "GET", "/open/a", {}, None, 200),
        ({"IpAddress": here}, "GET", "/open/a", {}, None, 200),
        ({"NotIpAddress": here}, "GET", "/open/a", {}, None, 403),
        ({"Bool": {"aws:SecureTransport": "true"}}, "GET", "/open/a", {}, None, 403),
        ({"StringEquals": prefix}, "GET", "?prefix=open%2F", {}, None, 200),
        ({"StringEquals": prefix}, "GET", "", {}, None, 403),
        ({"NumericLessThan": {"s3:max-keys": 10}}, "GET", "?max-keys=9", {}, None, 200),
        ({"StringEquals": tag}, "GET", "/open/a", {}, None, 200),
        ({"StringEquals": tag}, "GET", "/open/b", {}, None, 403),
        ({"StringEquals": set_tag}, "PUT", "/c", {"x-amz-tagging": "for=all"}, b"c", 200),
        ({"StringEquals": set_tag}, "PUT", "/c", {"x-amz-tagging": "for=us"}, b"c", 403),
        ({"StringEquals": set_tag}, "PUT", "/c", {}, b"c", 403),
        ({"StringEquals": set_tag}, "PUT", "/c?tagging", {}, tags % b"more", 200),
        ({"StringEquals": set_tag}, "PUT", "/c?tagging", {}, tags % b"us", 403),
        ({"StringLikeIfExists": source}, "PUT", "/d", {"x-amz-copy-source": f"/{name}/open%2Fa"}, b"", 200),
        ({"StringLikeIfExists": source}, "PUT", "/d", {"x-amz-copy-source": f"{name}/open/b"}, b"", 403),
        ({"StringLikeIfExists": plus}, "PUT", "/d", {"x-amz-copy-source": f"{name}/a+b"}, b"", 200),
        ({"Null": {"s3:x-amz-acl": "true"}}, "PUT", "/d", {"x-amz-acl": "private"}, b"", 403),
    ]:
        allow(condition)
        status, _, said = http(method, f"{ENDPOINT}/{name}{path}", headers, body)
        assert status == expected, (condition, method, path, headers, status, said)
    allow({"IpAddress": here})
    assert S3.get_bucket_policy_status(Bucket=name)["PolicyStatus"]["IsPublic"] is False
    # Versions, tags and the lifting of retentions are allowed by names of their own.
    for actions, expected in [(["s3:GetObject"], 403), (["s3:GetObjectVersion"], 200)]:
        allow({}, *actions, resource="*")
        assert http("GET", f"{ENDPOINT}/{name}/open/a?versionId={version}")[0] == expected
    for actions, expected in [(["s3:PutObject"], 403), (["s3:PutObject", "s3:PutObjectTagging"], 200)]:
        allow({}, *actions)
        assert http("PUT", f"{ENDPOINT}/{name}/c", {"x-amz-tagging": "a=b"}, b"")[0] == expected
    bypass = {"x-amz-bypass-governance-retention": "true"}
    for actions, expected in [(["s3:DeleteObject*"], 403), (["s3:DeleteObject*", "s3:Bypass*"], 204)]:
        allow({}, *actions)
        url = f"{ENDPOINT}/{name}/open/a?versionId={version}"
        assert http("DELETE", url, bypass)[0] == expected


def test_what_is_in_a_bucket_is_its_owners():
    name = bucket()
    everything = [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"]
    everybody = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": everything}
    S3.put_bucket_policy(Bucket=name, Policy=json.dumps({"Statement": [everybody]}))
    owner = S3.get_bucket_acl(Bucket=name)["Owner"]["ID"].encode()
    assert http("PUT", f"{ENDPOINT}/{name}/a", body=b"a")[0] == 200
    assert http("POST", f"{ENDPOINT}/{name}/a?uploads")[0] == 200
    for query in ("list-type=2&fetch-owner=true", "", "versions", "uploads"):
        said = http("GET", f"{ENDPOINT}/{name}?{query}")[2]
        assert b"<ID>%s</ID>" % owner in said, (query, said)


def test_public_access_blocks():
    name = bucket()
    S3.put_object(Bucket=name, Key="a", Body=b"a")
    get, put = S3.get_public_access_block, S3.put_public_access_block
    refused("NoSuchPublicAccessBlockConfiguration", get, Bucket=name)
    public = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{name}/*"}
    policy = {"Bucket": name, "Policy": json.dumps({"Statement": [public]})}
    S3.put_bucket_policy(**policy)
    assert http("GET", f"{ENDPOINT}/{name}/a")[0] == 200
    block = {"BlockPublicAcls": True, "BlockPublicPolicy": True, "RestrictPublicBuckets": True}
    put(Bucket=name, PublicAccessBlockConfiguration=block)
    assert get(Bucket=name)["PublicAccessBlockConfiguration"] == {**block, "IgnorePublicAcls": False}
    assert http("GET", f"{ENDPOINT}/{name}/a")[0] == 403
    refused("AccessDenied", S3.put_bucket_policy, **policy)
    refused("AccessDenied", S3.put_object, Bucket=name, Key="b", Body=b"", ACL="public-read")
    refused("AccessDenied", S3.put_bucket_acl, Bucket=name, ACL="authenticated-read")
    S3.delete_public_access_block(Bucket=name)
    S3.put_bucket_policy(**policy)
    assert http("GET", f"{ENDPOINT}/{name}/a")[0] == 200


def test_cross_origin_rules():
    name = bucket()
    refused("NoSuchCORSConfiguration", S3.get_bucket_cors, Bucket=name)
    rules = [{"AllowedMethods": ["GET"], "AllowedOrigins": ["https://ok.example"], "MaxAgeSeconds": 60}]
    S3.put_bucket_cors(Bucket=name, CORSConfiguration={"CORSRules": rules})
    assert S3.get_bucket_cors(Bucket=name)["CORSRules"] == rules
    ask = {"Origin": "https://ok.example", "Access-Control-Request-Method": "GET"}
    status, headers, _ = http("OPTIONS", f"{ENDPOINT}/{name}/a", ask)
    assert status == 200 and headers["access-control-allow-origin"] == "https://ok.example"
    assert headers["access-control-max-age"] == "60"
    # What a request announces is judged before what it is.
    assert http("PUT", f"{ENDPOINT}/{name}/a", ask)[1]["access-control-allow-methods"] == "GET"
    ask["Origin"] = "https://other.example"
    status, _, said = http("OPTIONS", f"{ENDPOINT}/{name}/a", ask)
    assert status == 403 and b"AccessForbidden" in said
    for missing in ask:
        status, _, said = http("OPTIONS", f"{ENDPOINT}/{name}/a", {k: v for k, v in ask.items() if k != missing})
        assert status == 400 and b"BadRequest" in said, missing
    S3.delete_bucket_cors(Bucket=name)
    refused("NoSuchCORSConfiguration", S3.get_bucket_cors, Bucket=name)


def test_lifecycle_rules_are_kept():
    name = bucket()
    refused("NoSuchLifecycleConfiguration", S3.get_bucket_lifecycle_configuration, Bucket=name)
    rules = [
        {
            "ID": "old",
            "Status": "Enabled",
            "Filter": {"Prefix": "logs/"},
            "Expiration": {"Days": 3},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
        }
    ]
    put = S3.put_bucket_lifecycle_configuration
    put(Bucket=name, LifecycleConfiguration={"Rules": rules})
    assert S3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"] == rules
    moving = [{**rules[0], "Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}]
    refused("NotImplemented", put, Bucket=name, LifecycleConfiguration={"Rules": moving})
    for code, wrong in [
        ("InvalidArgument", {"Expiration": {"Days": 0}}),
        ("InvalidArgument", {"Expiration": {"Date": datetime.datetime(2030, 1, 1, 12)}}),
        ("InvalidArgument", {"ID": "x" * 256}),
        ("MalformedXML", {"Expiration": {"Days": 1, "ExpiredObjectDeleteMarker": True}}),
        ("MalformedXML", {"Status": "enabled"}),
    ]:
        refused(code, put, Bucket=name, LifecycleConfiguration={"Rules": [{**rules[0], **wrong}]})
    # The day that follows the last whole one, and by which rule.
    answer = S3.put_object(Bucket=name, Key="logs/a", Body=b"x")
    end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=4)
    expected = f'expiry-date="{end:%a, %d %b %Y} 00:00:00 GMT", rule-id="old"'
    assert answer["Expiration"] == expected, (answer["Expiration"], expected)
    assert S3.head_object(Bucket=name, Key="logs/a")["Expiration"] == expected
    assert S3.get_object(Bucket=name, Key="logs/a")["Expiration"] == expected
    assert "Expiration" not in S3.put_object(Bucket=name, Key="a", Body=b"x")
    S3.delete_bucket_lifecycle(Bucket=name)


def test_object_lock():
    name = bucket(ObjectLockEnabledForBucket=True)
    assert S3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    version = S3.put_object(Bucket=name, Key="a", Body=b"kept")["VersionId"]
    S3.put_object_legal_hold(Bucket=name, Key="a", LegalHold={"Status": "ON"})
    refused("AccessDenied", S3.delete_object, Bucket=name, Key="a", VersionId=version)
    S3.put_object_legal_hold(Bucket=name, Key="a", LegalHold={"Status": "OFF"})
    until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    retention = {"Mode": "GOVERNANCE", "RetainUntilDate": until}
    S3.put_object_retention(Bucket=name, Key="a", Retention=retention)
    assert S3.get_object_retention(Bucket=name, Key="a")["Retention"]["Mode"] == "GOVERNANCE"
    refused("AccessDenied", S3.delete_object, Bucket=name, Key="a", VersionId=version)
    S3.delete_object(Bucket=name, Key="a", VersionId=version, BypassGovernanceRetention=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    configuration = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    S3.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=configuration)
    assert S3.get_object_lock_configuration(Bucket=name)["ObjectLockConfiguration"] == configuration
    version = S3.put_object(Bucket=name, Key="b", Body=b"kept")["VersionId"]
    refused(
        "AccessDenied", S3.delete_object, Bucket=name, Key="b", VersionId=version,
        BypassGovernanceRetention=True,
    )
    version = S3.put_object(
        Bucket=name, Key="c", Body=b"kept", ObjectLockMode="GOVERNANCE", ObjectLockRetainUntilDate=until
    )["VersionId"]
    put = lambda mode, until=until, **more: S3.put_object_retention(
        Bucket=name, Key="c", Retention={"Mode": mode, "RetainUntilDate": until}, **more
    )
    put("GOVERNANCE", until + datetime.timedelta(days=1))
    refused("AccessDenied", put, mode="COMPLIANCE", until=until + datetime.timedelta(days=2))
    refused("InvalidArgument", put, mode="GOVERNANCE", until=datetime.datetime(2020, 1, 1))
    S3.delete_object(Bucket=name, Key="c", VersionId=version, BypassGovernanceRetention=True)
    for code, enabled, length in [
        ("InvalidArgument", "Enabled", {"Days": 0}),
        ("InvalidArgument", "Enabled", {"Days": 36501}),
        ("MalformedXML", "Enabled", {"Days": 1, "Years": 1}),
        ("MalformedXML", "Disabled", {"Days": 1}),
    ]:
        wrong = {"ObjectLockEnabled": enabled, "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", **length}}}
        put = S3.put_object_lock_configuration
        refused(code, put, Bucket=name, ObjectLockConfiguration=wrong)
    plain = bucket()
    refused("ObjectLockConfigurationNotFoundError", S3.get_object_lock_configuration, Bucket=plain)
    S3.put_object(Bucket=plain, Key="a", Body=b"")
    refused("InvalidRequest", S3.get_object_retention, Bucket=plain, Key="a")
    refused("InvalidRequest", S3.get_object_legal_hold, Bucket=plain, Key="a")


def test_an_object_is_read_by_its_pointer():
    name = bucket()
    S3.put_object(Bucket=name, Key="a", Body=b"by pointer", ContentType="text/x")
    head = S3.head_object(Bucket=name, Key="a")["ResponseMetadata"]["HTTPHeaders"]
    pointer = head["x-holdfast-pointer"]
    status, headers, body = http("GET", f"{ENDPOINT}/n/{pointer}")
    assert (status, body, headers["content-type"]) == (200, b"by pointer", "text/x")
    chunk, slot, cookie = pointer.split(",")
    other = f"{int(cookie, 16) ^ 1:08x}"
    assert http("GET", f"{ENDPOINT}/n/{chunk},{slot},{other}")[0] == 404
    assert http("GET", f"{ENDPOINT}/n/{chunk},{int(slot) + 1000},{cookie}")[0] == 404
    assert http("GET", f"{ENDPOINT}/n/nonsense")[0] == 400
    assert http("PUT", f"{ENDPOINT}/n/{pointer}", body=b"x")[0] == 405


def test_what_is_not_there_says_so_by_name():
    name = bucket()
    for call, arguments in [
        (S3.get_bucket_website, {}),
        (S3.get_bucket_replication, {}),
        (S3.get_bucket_logging, {}),
    ]:
        refused("NotImplemented", call, Bucket=name, **arguments)
    refused(
        "NotImplemented", S3.put_object, Bucket=name, Key="a", Body=b"",
        ServerSideEncryption="AES256",
    )
    S3.put_object(Bucket=name, Key="a", Body=b"")
    key = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0" * 32}
    refused("NotImplemented", S3.get_object, Bucket=name, Key="a", **key)
    # A head has no body to say it in.
    refused("501", S3.head_object, Bucket=name, Key="a", **key)
    refused("NotImplemented", S3.create_multipart_upload, Bucket=name, Key="a", SSEKMSKeyId="k")


def test_bad_names_are_refused():
    status, _, said = http("GET", f"{ENDPOINT}/{bucket()}/%AE%8A-")
    assert status == 400 and b"InvalidURI" in said, said
    for wrong in ("ab", "Upper", "a_b", "-ab", "x" * 64):
        status, _, body = http("PUT", f"{ENDPOINT}/{wrong}")
        assert status in (400, 403), (wrong, status)
    for wrong in ("a.-b", "a-.b"):
        refused("InvalidBucketName", S3.create_bucket, Bucket=wrong)


def test_of_access_control_lists_there_is_the_private_one():
    name = bucket()
    S3.put_object(Bucket=name, Key="a", Body=b"", ACL="private")
    for get, put, more in [
        (S3.get_bucket_acl, S3.put_bucket_acl, {}),
        (S3.get_object_acl, S3.put_object_acl, {"Key": "a"}),
    ]:
        put(Bucket=name, ACL="private", **more)
        found = get(Bucket=name, **more)
        whole = {"Owner": found["Owner"], "Grants": found["Grants"]}
        assert [grant["Permission"] for grant in whole["Grants"]] == ["FULL_CONTROL"]
        put(Bucket=name, AccessControlPolicy=whole, **more)
        lesser = [{**whole["Grants"][0], "Permission": "READ"}]
        for grants in (lesser, [], whole["Grants"] * 2):
            wrong = {"Owner": found["Owner"], "Grants": grants}
            refused("AccessControlListNotSupported", put, Bucket=name, AccessControlPolicy=wrong, **more)
    # Grants come in headers, too.
    for call, arguments in [
        (S3.put_object, {"Bucket": name, "Key": "b", "Body": b""}),
        (S3.copy_object, {"Bucket": name, "Key": "b", "CopySource": f"{name}/a"}),
        (S3.create_multipart_upload, {"Bucket": name, "Key": "b"}),
        (S3.create_bucket, {"Bucket": "with-grants"}),
    ]:
        refused("AccessControlListNotSupported", call, GrantRead="id=somebody", **arguments)


def main():
    failed = 0
    only = sys.argv[4:]
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_") and (not only or n in only)]
    for name, test in tests:
        try:
            test()
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", file=sys.stderr)
    print(f"{len(tests) - failed} of {len(tests)} passed")
    sys.exit(failed > 0)


main()
