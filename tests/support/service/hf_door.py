"""Requests of Hugging Face clients, made by hand: commits as lines of JSON, LFS batches."""

import base64
import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from support.service.hub import Answer, Hub


def lines(*items: tuple[str, Mapping[str, Any]]) -> bytes:
    """The body of a commit."""
    return b"".join(
        json.dumps({"key": key, "value": value}).encode() + b"\n" for key, value in items
    )


def header(summary: str = "a commit", **more: Any) -> tuple[str, dict[str, Any]]:
    return "header", {"summary": summary, "description": "", **more}


def small(path: str, data: bytes) -> tuple[str, dict[str, Any]]:
    """The line of a small file, with its contents."""
    content = base64.b64encode(data).decode()
    return "file", {"path": path, "content": content, "encoding": "base64"}


def large(path: str, data: bytes, **more: Any) -> tuple[str, dict[str, Any]]:
    """The line of a large file that was sent before the commit."""
    digest = sha256(data).hexdigest()
    return "lfsFile", {"path": path, "algo": "sha256", "oid": digest, "size": len(data), **more}


def send_commit(
    hub: Hub,
    name: str,
    *items: tuple[str, Mapping[str, Any]],
    branch: str = "main",
    token: str = "",
) -> Answer:
    path = f"/api/models/{name}/commit/{branch}"
    headers = {"Content-Type": "application/x-ndjson"}
    return hub.call(
        "POST", path, token=token or hub.admin_token, body=lines(*items), headers=headers
    )


def batch(
    hub: Hub, name: str, *objects: tuple[str, int], transfers: tuple[str, ...] = ("basic",),
    token: str = "",
) -> Answer:  # fmt: skip
    body = {
        "operation": "upload",
        "transfers": list(transfers),
        "objects": [{"oid": oid, "size": size} for oid, size in objects],
        "hash_algo": "sha256",
    }
    path = f"/{name}.git/info/lfs/objects/batch"
    return hub.call("POST", path, token=token or hub.admin_token, body=body)


def path_of(url: str) -> str:
    return urlsplit(url).path


def send_object(hub: Hub, name: str, data: bytes, token: str = "") -> None:
    """Send a whole LFS object, unless the hub has it."""
    answer = batch(hub, name, (sha256(data).hexdigest(), len(data)), token=token)
    assert answer.status == 200, answer.body
    (item,) = answer.json()["objects"]
    if "actions" in item:
        put = hub.call("PUT", path_of(item["actions"]["upload"]["href"]), body=data)
        assert put.status == 200, put.body


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def error_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.headers["X-Error-Code"]


def files_of(hub: Hub, name: str, revision: str = "main") -> dict[str, bytes]:
    tree = hub.call(
        "GET", f"/api/models/{name}/tree/{revision}?recursive=true", token=hub.admin_token
    )
    paths = [item["path"] for item in tree.json() if item["type"] == "file"]
    return {
        path: hub.call("GET", f"/{name}/resolve/{revision}/{path}", token=hub.admin_token).body
        for path in paths
        if path != ".gitattributes"
    }


def create_model(hub: Hub, name: str, token: str = "", **more: Any) -> Answer:
    namespace, _, short = name.partition("/")
    body = {"name": short, "organization": namespace, "type": "model", **more}
    return hub.call("POST", "/api/repos/create", token=token or hub.admin_token, body=body)
