"""boto3 against a node: ENDPOINT ACCESS_KEY SECRET_KEY PHASE. `write` writes and checks, `read` finds what
`write` has left, after a kill."""

import sys
from decimal import Decimal

import boto3
from boto3.dynamodb.conditions import Attr, Key
from botocore.config import Config
from botocore.exceptions import ClientError

endpoint, access_key, secret_key, phase = sys.argv[1:]


def connect(kind, secret=secret_key):
    # Other variables and files say nothing here.
    return getattr(boto3, kind)(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 1}, proxies={}),
    )


def refused(code, call):
    try:
        call()
    except ClientError as e:
        assert e.response["Error"]["Code"] == code, e
        return
    raise AssertionError(f"not refused as {code}")


db, client = connect("resource"), connect("client")
MUSIC = dict(
    TableName="Music",
    KeySchema=[
        {"AttributeName": "Artist", "KeyType": "HASH"},
        {"AttributeName": "Song", "KeyType": "RANGE"},
    ],
    AttributeDefinitions=[
        {"AttributeName": "Artist", "AttributeType": "S"},
        {"AttributeName": "Song", "AttributeType": "S"},
    ],
    BillingMode="PAY_PER_REQUEST",
)

if phase == "write":
    assert client.list_tables()["TableNames"] == []
    music = db.create_table(**MUSIC)
    music.wait_until_exists()
    refused("ResourceInUseException", lambda: client.create_table(**MUSIC))
    for i in range(60):
        music.put_item(Item={"Artist": f"A{i % 3}", "Song": f"S{i:03}", "n": i, "tags": {"x", "y"}})
    found = music.query(
        KeyConditionExpression=Key("Artist").eq("A1") & Key("Song").between("S010", "S050"),
        FilterExpression=Attr("n").gt(20),
        ScanIndexForward=False,
    )
    songs = [item["Song"] for item in found["Items"]]
    assert songs == [f"S{i:03}" for i in range(49, 20, -3)], songs
    key = {"Artist": "A1", "Song": "S001"}
    changed = music.update_item(
        Key=key,
        UpdateExpression="SET n = n + :one, d = :d ADD tags :t",
        ExpressionAttributeValues={":one": 1, ":d": Decimal("1.5"), ":t": {"z"}},
        ReturnValues="ALL_NEW",
    )["Attributes"]
    assert changed == {**key, "n": 2, "d": Decimal("1.5"), "tags": {"x", "y", "z"}}, changed
    taken = lambda: music.put_item(Item=key, ConditionExpression="attribute_not_exists(Artist)")
    refused("ConditionalCheckFailedException", taken)
    with music.batch_writer() as batch:
        for i in range(50):
            batch.put_item(Item={"Artist": "B", "Song": f"T{i}", "blob": b"\x00" * 1000})
    # Within 400 KiB as they are counted, and more as they are kept.
    many = {"Artist": "N", "Song": "S"}
    music.put_item(Item={**many, "l": [1] * 130_000})
    assert len(music.get_item(Key=many)["Item"]["l"]) == 130_000
    music.delete_item(Key=many)
    long = {"AttributeName": "a" * 256, "KeyType": "HASH"}
    define = [{"AttributeName": "a" * 256, "AttributeType": "S"}]
    wrong = dict(TableName="Long", KeySchema=[long], AttributeDefinitions=define, BillingMode="PAY_PER_REQUEST")
    refused("ValidationException", lambda: client.create_table(**wrong))
    refused("InvalidSignatureException", connect("client", "another").list_tables)
    refused("ValidationException", lambda: music.put_item(Item={"Artist": "A"}))
    refused("ResourceNotFoundException", lambda: db.Table("None").get_item(Key={"k": "v"}))
else:
    music = db.Table("Music")
    assert client.list_tables()["TableNames"] == ["Music"]
    item = music.get_item(Key={"Artist": "A1", "Song": "S001"}, ConsistentRead=True)["Item"]
    assert item["n"] == 2 and item["tags"] == {"x", "y", "z"}, item
    count, start = 0, {}
    while True:
        page = music.scan(Limit=17, **start)
        count += page["Count"]
        if "LastEvaluatedKey" not in page:
            break
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
    assert count == 110, count
    segments = [music.scan(Segment=i, TotalSegments=4, Select="COUNT")["Count"] for i in range(4)]
    assert sum(segments) == 110, segments
    music.delete()
    # Its name is free at once, and shows nothing of the items before.
    music = db.create_table(**MUSIC)
    assert music.scan()["Items"] == []
    music.put_item(Item={"Artist": "A1", "Song": "S001"})
    assert music.get_item(Key={"Artist": "A1", "Song": "S001"})["Item"] == {"Artist": "A1", "Song": "S001"}
