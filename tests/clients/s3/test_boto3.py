"""boto3 lists, reads and signs links, and is told why what it may not do is refused."""

from hashlib import sha256

from clients.conftest import Library, World
from clients.machine import Machine

READ = """
import boto3
from botocore.config import Config
s3 = boto3.client("s3")
def keys(**more):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="alice", **more)
    pages = list(pages)
    return {
        "keys": [each["Key"] for page in pages for each in page.get("Contents", [])],
        "folders": [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", [])],
        "pages": len(pages),
    }
def body(key, **more):
    return s3.get_object(Bucket="alice", Key=key, **more)["Body"].read().decode("latin-1")
head = s3.head_object(Bucket="alice", Key="tiny/config.json", ChecksumMode="ENABLED")
s3.download_file("alice", "tiny/model.safetensors", "weights")
link = boto3.client("s3", config=Config(signature_version="s3v4")).generate_presigned_url(
    "get_object", {"Bucket": "alice", "Key": "tiny/docs/deep/note s.txt"}
)
old_link = s3.generate_presigned_url("get_object", {"Bucket": "alice", "Key": "tiny/old.txt"})
import hashlib, json, urllib.error, urllib.request
def at(url):
    try:
        return urllib.request.urlopen(url).read().decode("latin-1")
    except urllib.error.HTTPError as error:
        return error.read().decode("latin-1")
result = {
    "buckets": [each["Name"] for each in s3.list_buckets()["Buckets"]],
    "location": s3.get_bucket_location(Bucket="alice")["LocationConstraint"],
    "all": keys(Prefix="tiny/"),
    "of a page": keys(Prefix="tiny/", PaginationConfig={"PageSize": 2}),
    "folders": keys(Delimiter="/"), "inside": keys(Prefix="tiny/", Delimiter="/"),
    "first version": [
        each["Key"] for each in s3.list_objects(Bucket="alice", Prefix="tiny@v1/")["Contents"]
    ],
    "head": [head["ContentLength"], head["ETag"], head["ChecksumSHA256"], head["Metadata"]],
    "weights": hashlib.sha256(open("weights", "rb").read()).hexdigest(),
    "part": body("tiny/config.json", Range="bytes=2-5"),
    "end": body("tiny/config.json", Range="bytes=-3"),
    "old": body("tiny@v1/config.json"), "spaced": body("tiny/docs/deep/note s.txt"),
    "link": at(link), "old link": at(old_link),
    "known": caught(lambda: body("tiny/config.json", IfNoneMatch=head["ETag"])),
    "other": caught(lambda: body("tiny/config.json", IfMatch='"other"')),
    "beyond": caught(lambda: body("tiny/config.json", Range="bytes=999999-")),
}
"""
REFUSED = """
import datetime
import boto3
import botocore.auth
from botocore.config import Config
s3 = boto3.client("s3", config=Config(retries={"max_attempts": 1}))
def get(client=s3, bucket="alice", key="tiny/config.json"):
    return lambda: client.get_object(Bucket=bucket, Key=key)
wrong = boto3.client("s3", aws_access_key_id=s3._request_signer._credentials.access_key,
                     aws_secret_access_key="wrong")
unknown = boto3.client("s3", aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="x")
late = botocore.auth.get_current_datetime
result = {
    "wrong secret": caught(get(wrong)), "unknown key": caught(get(unknown)),
    "no bucket": caught(get(bucket="nobody")), "no file": caught(get(key="tiny/nothing")),
    "no model": caught(get(key="nothing/config.json")),
    "no revision": caught(get(key="tiny@no/config.json")),
    "put": caught(lambda: s3.put_object(Bucket="alice", Key="tiny/x", Body=b"x")),
    "large": caught(lambda: s3.put_object(Bucket="alice", Key="tiny/x", Body=bytes(20_000_000))),
    "parts": caught(lambda: s3.create_multipart_upload(Bucket="alice", Key="tiny/x")),
    "delete": caught(lambda: s3.delete_object(Bucket="alice", Key="tiny/config.json")),
    "bucket": caught(lambda: s3.create_bucket(Bucket="new")),
    "acl": caught(lambda: s3.get_bucket_acl(Bucket="alice")),
    "secret": caught(get(key="secret/key.bin")),
}
botocore.auth.get_current_datetime = lambda *a, **k: late() - datetime.timedelta(minutes=20)
result["skew"] = caught(get())
"""
UNSIGNED = """
import boto3
from botocore import UNSIGNED
from botocore.config import Config
s3 = boto3.client("s3", config=Config(signature_version=UNSIGNED))
body = s3.get_object(Bucket="alice", Key="tiny/old.txt")["Body"].read()
models = s3.list_objects_v2(Bucket="alice", Delimiter="/")["CommonPrefixes"]
result = {
    "body": body.decode(),
    "buckets": [each["Name"] for each in s3.list_buckets()["Buckets"]],
    "models": [each["Prefix"] for each in models],
    "secret": caught(lambda: s3.get_object(Bucket="alice", Key="secret/key.bin")),
}
"""


def test_boto3_lists_and_reads(alices: Machine, library: Library, world: World) -> None:
    found = alices.run(READ)
    paths = sorted(library.tiny)
    config = library.tiny["config.json"]
    assert "alice" in found["buckets"]
    assert found["location"] is None
    assert found["all"]["keys"] == [f"tiny/{path}" for path in paths]
    assert found["of a page"]["keys"] == found["all"]["keys"]
    assert found["of a page"]["pages"] == -(-len(paths) // 2)
    assert {"tiny/", "secret/", "sharded/"} <= set(found["folders"]["folders"])
    assert found["folders"]["folders"] == sorted(found["folders"]["folders"])
    assert found["inside"]["folders"] == ["tiny/docs/"]
    assert found["inside"]["keys"] == [f"tiny/{path}" for path in paths if "/" not in path]
    assert found["first version"] == ["tiny@v1/config.json", "tiny@v1/old.txt"]
    assert found["head"][0] == len(config)
    assert found["head"][1] == f'"{library.blob_id("config.json")}"'
    assert found["head"][2]
    assert found["head"][3]["sha256"] == sha256(config).hexdigest()
    assert found["weights"] == sha256(library.tiny["model.safetensors"]).hexdigest()
    assert found["part"] == config[2:6].decode()
    assert found["end"] == config[-3:].decode()
    assert found["old"] == library.old_config.decode()
    assert found["spaced"] == found["link"] == "a note\n" * 100
    assert "<Code>InvalidRequest</Code>" in found["old link"]
    assert "signature_version='s3v4'" in found["old link"]
    assert "304" in found["known"]["text"]
    assert "PreconditionFailed" in found["other"]["text"]
    assert "InvalidRange" in found["beyond"]["text"]


def test_what_is_refused_says_why(bobs: Machine, library: Library) -> None:
    found = {name: error["text"] for name, error in bobs.run(REFUSED).items()}
    writing = found["put"]
    assert "MethodNotAllowed" in writing
    assert "deltahub push" in writing
    for name in ("large", "parts", "delete", "bucket"):
        assert writing.partition(": ")[2] == found[name].partition(": ")[2]
    codes = {
        "wrong secret": "SignatureDoesNotMatch", "unknown key": "InvalidAccessKeyId",
        "no bucket": "NoSuchBucket", "no model": "NoSuchKey", "no file": "NoSuchKey",
        "no revision": "NoSuchKey", "acl": "NotImplemented", "secret": "NoSuchKey",
        "skew": "RequestTimeTooSkewed",
    }  # fmt: skip
    for name, code in codes.items():
        assert f"({code})" in found[name], found[name]
    assert "there is no repository alice/secret, or you may not read it" in found["secret"]


def test_public_models_are_read_unsigned(guests: Machine, library: Library) -> None:
    found = guests.run(UNSIGNED)
    assert found["body"] == "of the first commit"
    assert "alice" in found["buckets"]
    assert "tiny/" in found["models"]
    assert "secret/" not in found["models"]
    assert "NoSuchKey" in found["secret"]["text"]
