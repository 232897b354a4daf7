"""An index that is made while its table is used: ENDPOINT ACCESS_KEY SECRET_KEY. Says `created` when it is being made;
from there on the node may be killed, and started again, at any time. Then it is looked at, and deleted: `items N` says how
many items the table has in the end."""

import random
import sys
import threading
import time

import boto3
from boto3.dynamodb.conditions import Key
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError

endpoint, access_key, secret_key = sys.argv[1:]
VALUES = [f"g{i}" for i in range(7)]


def table():
    config = Config(retries={"max_attempts": 1}, proxies={}, connect_timeout=5, read_timeout=30)
    keys = dict(aws_access_key_id=access_key, aws_secret_access_key=secret_key)
    db = boto3.resource("dynamodb", endpoint_url=endpoint, region_name="us-east-1", config=config, **keys)
    return db.Table("Used")


def until_answered(call):
    """What is asked again until there is an answer may be done twice: only ask for what may."""
    while True:
        try:
            return call()
        except (EndpointConnectionError, HTTPClientError):
            time.sleep(0.01)
        except ClientError as e:
            if e.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise


def item_of(rng, number):
    item = {"p": f"p{number}", "n": rng.randrange(1000), "fill": "x" * rng.randrange(200)}
    if rng.random() < 0.8:
        item["g"] = rng.choice(VALUES)
    return item


def go_on(seed, numbers, model, is_over):
    """Puts and deletes items that nobody else writes."""
    rng, mine = random.Random(seed), table()
    while not is_over.is_set():
        number = rng.choice(numbers)
        if rng.random() < 0.3:
            until_answered(lambda: mine.delete_item(Key={"p": f"p{number}"}))
            model.pop(number, None)
        else:
            item = item_of(rng, number)
            until_answered(lambda: mine.put_item(Item=item))
            model[number] = item


def index():
    described = until_answered(lambda: used.meta.client.describe_table(TableName="Used"))["Table"]
    return next(iter(described.get("GlobalSecondaryIndexes", [])), None)


def shown(value, **more):
    found, start = [], {}
    while True:
        page = used.query(IndexName="by-g", KeyConditionExpression=Key("g").eq(value), **more, **start)
        found += page["Items"]
        if "LastEvaluatedKey" not in page:
            return found
        start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


used = table()
used.meta.client.create_table(
    TableName="Used",
    KeySchema=[{"AttributeName": "p", "KeyType": "HASH"}],
    AttributeDefinitions=[{"AttributeName": "p", "AttributeType": "S"}],
    BillingMode="PAY_PER_REQUEST",
)
rng = random.Random(1)
models = [{}, {}]
with used.batch_writer() as batch:
    for number in range(3000):
        models[number % 2][number] = item_of(rng, number)
        batch.put_item(Item=models[number % 2][number])
is_over = threading.Event()
writers = []
for at, model in enumerate(models):
    arguments = (at, range(at, 3000, 2), model, is_over)
    writers.append(threading.Thread(target=go_on, args=arguments, daemon=True))
    writers[-1].start()
by_g = {
    "IndexName": "by-g",
    "KeySchema": [{"AttributeName": "g", "KeyType": "HASH"}, {"AttributeName": "n", "KeyType": "RANGE"}],
    "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["fill"]},
}
kinds = [{"AttributeName": "g", "AttributeType": "S"}, {"AttributeName": "n", "AttributeType": "N"}]
told = used.meta.client.update_table(
    TableName="Used", AttributeDefinitions=kinds, GlobalSecondaryIndexUpdates=[{"Create": by_g}]
)["TableDescription"]
assert told["GlobalSecondaryIndexes"][0]["IndexStatus"] == "CREATING", told
print("created", flush=True)
while index()["IndexStatus"] == "CREATING":
    try:
        until_answered(lambda: shown("g1"))
        assert index()["IndexStatus"] == "ACTIVE", "it is shown before it is whole"
    except ClientError as e:
        assert "Cannot read from backfilling global secondary index: by-g" in str(e), e
assert index()["IndexStatus"] == "ACTIVE"
# Writers go on for a while, on an index that is there.
for value in 3 * VALUES:
    until_answered(lambda: shown(value))
is_over.set()
for writer in writers:
    writer.join()
items = {**models[0], **models[1]}
for value in VALUES:
    expected = sorted((i["n"], i["p"], i["fill"]) for i in items.values() if i.get("g") == value)
    found = until_answered(lambda: shown(value, Limit=100))
    assert [i["n"] for i in found] == [n for n, _, _ in expected], value
    assert sorted((i["n"], i["p"], i["fill"]) for i in found) == expected, value
segments = [used.scan(IndexName="by-g", Segment=i, TotalSegments=3, Select="COUNT")["Count"] for i in range(3)]
assert sum(segments) == sum("g" in i for i in items.values()), segments
try:
    shown("g1", ConsistentRead=True)
    raise AssertionError("a consistent read of a global index is not refused")
except ClientError as e:
    assert "Consistent reads are not supported on global secondary indexes" in str(e), e
used.meta.client.update_table(
    TableName="Used", GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "by-g"}}]
)
while index() is not None:
    pass
print("items", len(items), flush=True)
