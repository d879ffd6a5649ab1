"""Downloads through the hub, and what boto3 alone takes for the same stored bytes."""

import hashlib
import http.client
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.hub import EmbeddedHub
from benchmarks.memory.sampler import cpu_s

PATH = "model.safetensors"
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Download:
    """One download. cpu_s: of the process that reads, without its worker and without the bucket."""

    wall_s: float
    cpu_s: float
    size_bytes: int


def download(hub: EmbeddedHub, name: str, sha256: str) -> Download:
    """Read a file as any HTTP client does; its bytes are hashed after the clock was stopped."""
    parts = urlsplit(hub.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=600)
    cpu, started = cpu_s(hub.pid), time.perf_counter()
    connection.request(
        "GET",
        f"/v1/repositories/{name}/files/{PATH}",
        headers={"Authorization": f"Bearer {hub.token}"},
    )
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"{name}: status {answer.status}: {answer.read()!r}")
    data = memoryview(bytearray(int(answer.headers["Content-Length"])))
    n = 0
    while n < len(data):
        read = answer.readinto(data[n : n + _READ_BYTES])
        if not read:
            raise SystemExit(f"{name}: the answer ended after {n} bytes")
        n += read
    wall = time.perf_counter() - started
    used = cpu_s(hub.pid) - cpu
    connection.close()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise SystemExit(f"{name}: other bytes came back")
    return Download(wall, used, n)


def packs(client: Any, bucket: str, prefix: str) -> dict[str, int]:
    """Key and size of each pack of a hub."""
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=f"{prefix}/packs/"
    )
    return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}


def read_alone(client: Any, bucket: str, keys: list[str], size_bytes: int) -> Download:
    """What boto3 alone takes to read these objects, one get_object after the other."""
    cpu, started = cpu_s(os.getpid()), time.perf_counter()
    buffer = bytearray(_READ_BYTES)
    for key in keys:
        body = client.get_object(Bucket=bucket, Key=key)["Body"]
        while body.readinto(buffer):
            pass
    return Download(time.perf_counter() - started, cpu_s(os.getpid()) - cpu, size_bytes)


def write_alone(path: Path, size_bytes: int) -> Download:
    """What it takes to write so many bytes to a new file, which is then deleted."""
    piece = memoryview(os.urandom(8 * _READ_BYTES))
    cpu, started = cpu_s(os.getpid()), time.perf_counter()
    with path.open("xb", buffering=0) as file:
        for start in range(0, size_bytes, len(piece)):
            file.write(piece[: size_bytes - start])
    written = Download(time.perf_counter() - started, cpu_s(os.getpid()) - cpu, size_bytes)
    path.unlink()
    return written
