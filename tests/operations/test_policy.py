"""The policy of docs/operations.md for AWS, enforced by SeaweedFS, which knows such policies."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from support.containers.dockerfile import Image
from support.containers.recipes import recipe
from support.containers.sandbox import BASE_PATH, Container, Machine, base_image, machine

START_TIMEOUT_S = 60
KEYS = {"admin": "secret-of-admin", "hub": "secret-of-hub"}
# The administrator makes the bucket and attaches policy and rule.
SETUP = """
import boto3, json, sys, time
from botocore.config import Config
config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
def client(name, secret):
    return boto3.client("s3", endpoint_url="http://127.0.0.1:8333", region_name="us-east-1",
        aws_access_key_id=name, aws_secret_access_key=secret, config=config)
keys, policy, rule = (json.loads(text) for text in sys.argv[1:4])
admin = client("admin", keys["admin"])
deadline = time.monotonic() + 60
while True:
    try:
        if "bucket" not in [b["Name"] for b in admin.list_buckets()["Buckets"]]:
            admin.create_bucket(Bucket="bucket")
        admin.put_object(Bucket="bucket", Key="elsewhere/x", Body=b"x")
        break
    except Exception:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.5)
if policy:
    admin.put_bucket_policy(Bucket="bucket", Policy=json.dumps(policy))
    admin.put_bucket_lifecycle_configuration(Bucket="bucket", LifecycleConfiguration=rule)
"""
# What the hub's key must not do.
FORBIDDEN = """
import botocore.exceptions
hub = client("hub", keys["hub"])
for name, given in {
    "get_object": {"Key": "elsewhere/x"},
    "put_object": {"Key": "elsewhere/y", "Body": b"y"},
    "delete_object": {"Key": "elsewhere/x"},
    "get_bucket_acl": {},
    "put_bucket_policy": {"Policy": json.dumps(policy)},
    "delete_bucket": {},
}.items():
    try:
        getattr(hub, name)(Bucket="bucket", **given)
    except botocore.exceptions.ClientError as error:
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 403, (name, error)
    else:
        sys.exit(f"{name} was allowed")
"""


@dataclass
class Bucket:
    """A machine with SeaweedFS, a bucket and a key that nothing allows anything."""

    machine: Machine
    image: Image
    policy: dict[str, object]
    rule: dict[str, object]

    def must(self, code: str, policy: dict[str, object]) -> None:
        python = ["/opt/deltahub/bin/python", "-c", code]
        arguments = [json.dumps(each) for each in (KEYS, policy, self.rule)]
        done = self.machine.run(self.image.container(), [*python, *arguments])
        assert done.returncode == 0, done.stderr


@pytest.fixture
def bucket(image: Image, weed: Path, tmp_path: Path) -> Iterator[Bucket]:
    for name in ("root", "objects"):
        (tmp_path / name).mkdir()
    base_image(tmp_path / "root", {"weed": weed})
    users = [
        {"name": name, "credentials": [{"accessKey": name, "secretKey": secret}],
         "actions": ["Admin"] if name == "admin" else []}
        for name, secret in KEYS.items()
    ]  # fmt: skip
    (tmp_path / "objects" / "s3.json").write_text(json.dumps({"identities": users}))
    service = Container(
        tmp_path / "root",
        environment={"PATH": BASE_PATH},
        volumes={"/data": tmp_path / "objects"},
        tmpfs={"/tmp": "size=64m"},
        workdir="/data",
    )
    command = [
        "weed", "server", "-dir=/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3",
        "-s3.config=/data/s3.json", "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=64", "-volume.max=100", "-master.telemetry=false",
    ]  # fmt: skip
    text = recipe("aws-policy").replace("BUCKET", "bucket").replace("PREFIX", "hub")
    policy = json.loads(text)
    for statement in policy["Statement"]:
        statement["Principal"] = "*"  # here a policy of the bucket, on AWS one of the hub's role
    rule = json.loads(recipe("aws-lifecycle").replace("PREFIX", "hub"))
    with machine(tmp_path) as alone, (tmp_path / "weed.log").open("wb") as log:
        seaweedfs = alone.start(service, command, stdout=log, stderr=log)
        try:
            found = Bucket(alone, image, policy, rule)
            found.must(SETUP, {})
            yield found
        finally:
            seaweedfs.kill()


def test_the_policy_is_enough_for_a_hub_and_allows_nothing_else(
    bucket: Bucket, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "model").mkdir(parents=True)
    (data / "model" / "data.bin").write_bytes(Random(3).randbytes(40 << 20))
    hub = bucket.image.container(
        environment={
            **bucket.image.environment,
            "AWS_ACCESS_KEY_ID": "hub",
            "AWS_SECRET_ACCESS_KEY": KEYS["hub"],
            "DELTAHUB_STORE_URL": "s3://bucket/hub",
            "DELTAHUB_S3_ENDPOINT": "http://127.0.0.1:8333",
        },
        volumes={"/data": data},
        tmpfs={"/tmp": "size=512m"},
    )
    refused = bucket.machine.run(hub, ["deltahub", "serve"])
    assert refused.returncode == 1, "without the policy the key is good for nothing"

    bucket.must(SETUP, bucket.policy)
    time.sleep(2)  # until SeaweedFS has read the policy
    log = tmp_path / "hub.log"
    with log.open("wb") as sink:
        running = bucket.machine.start(hub, ["deltahub", "serve"], stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while "DeltaHub is listening" not in log.read_text():
            assert running.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        token = log.read_text().partition("with the token ")[2].split()[0]
        for command in (
            ["push", "model", "admin/m", "--token", token],
            ["pull", "admin/m", "--to", "back", "--sha256", "--token", token],
            ["gc", "--apply"],
            ["fsck", "--read-data"],
        ):
            done = bucket.machine.run(hub, ["deltahub", *command])
            assert done.returncode == 0, (command, done.stdout, done.stderr, log.read_text())
        bucket.must(SETUP + FORBIDDEN, bucket.policy)
    finally:
        running.kill()
