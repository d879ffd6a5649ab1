"""A Store in a bucket."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final

from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import (
    MARK,
    Buffer,
    ObjectInfo,
    ObjectNotFound,
    ShortObject,
    StoreUnavailable,
)
from deltahub.registry.storage.keys import check_key, check_prefix
from deltahub.registry.storage.s3.connection import connect
from deltahub.registry.storage.s3.links import Links
from deltahub.registry.storage.s3.upload import put_chunks, put_file
from deltahub.registry.store_url import S3Location

# Keys in one request of DeleteObjects: the most that S3 takes.
_DELETED_TOGETHER: Final = 1000
_MOST_MARK: Final = 100
# In front of the key of no object, because no part of a key begins with a dot.
_OWN: Final = "."


class S3Store:
    """Objects under a prefix of a bucket. Processes and machines may share it."""

    def __init__(self, location: S3Location, settings: Settings) -> None:
        self.location = location
        self._connection = connect(location, settings)
        self._links = Links(self._connection, settings)
        self._pool = ThreadPoolExecutor(settings.s3_parallel, thread_name_prefix="s3")

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        check_key(key)
        put_chunks(self._connection, self._pool, key, chunks)

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        for key in objects:
            check_key(key)
        list(self._pool.map(lambda item: self.put(item[0], [item[1]]), objects.items()))

    def take_file(self, key: str, path: Path) -> None:
        check_key(key)
        put_file(self._connection, self._pool, key, path)
        path.unlink()

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        view = out.cast("B")
        check_key(key)
        if not view:
            return
        connection, end = self._connection, start + view.nbytes
        with connection.errors(key):
            try:
                answer = connection.client.get_object(
                    Bucket=self.location.bucket,
                    Key=connection.key(key),
                    Range=f"bytes={start}-{end - 1}",
                    **connection.get_options,
                )
            except connection.client.exceptions.ClientError as exc:
                if exc.response["Error"].get("Code") != "InvalidRange":
                    raise
                raise ShortObject(
                    f"{key} has {self.size(key)} bytes; {start}..{end} were asked"
                ) from exc
            with answer["Body"] as body:
                n = 0
                while n < view.nbytes and (read := body.readinto(view[n:])):
                    n += read
        if n < view.nbytes:
            size = self.size(key)
            if size < end:
                raise ShortObject(f"{key} has {size} bytes; {start}..{end} were asked")
            raise StoreUnavailable(f"{key}: the answer ended after {n} of {view.nbytes} bytes")

    def size(self, key: str) -> int:
        connection = self._connection
        check_key(key)
        with connection.errors(key):
            answer = connection.client.head_object(
                Bucket=self.location.bucket, Key=connection.key(key), **connection.get_options
            )
        return int(answer["ContentLength"])

    def delete(self, key: str) -> None:
        self.delete_together((key,))

    def delete_together(self, keys: Collection[str]) -> None:
        connection = self._connection
        for key in keys:
            check_key(key)
        rest = iter(keys)
        while batch := list(islice(rest, _DELETED_TOGETHER)):
            with connection.errors(batch[0]):
                answer = connection.client.delete_objects(
                    Bucket=self.location.bucket,
                    Delete={
                        "Objects": [{"Key": connection.key(key)} for key in batch],
                        "Quiet": True,
                    },
                    **connection.get_options,
                )
            for error in answer.get("Errors", ()):
                raise StoreUnavailable(f"{error.get('Key')}: not deleted: {error.get('Message')}")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        connection = self._connection
        pages = connection.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.location.bucket,
            Prefix=connection.key(prefix),
            **connection.get_options,
        )
        with connection.errors(prefix or "the list of objects"):
            for page in pages:
                for item in page.get("Contents", ()):
                    key = item["Key"].removeprefix(self.location.prefix)
                    if not key.startswith(_OWN):
                        yield ObjectInfo(key, item["Size"], item["LastModified"])

    def mark(self) -> str | None:
        connection = self._connection
        try:
            with connection.errors(MARK):
                answer = connection.client.get_object(
                    Bucket=self.location.bucket,
                    Key=connection.key(MARK),
                    **connection.get_options,
                )
                return str(answer["Body"].read(_MOST_MARK).decode().strip())
        except ObjectNotFound:
            return None

    def set_mark(self, mark: str) -> None:
        put_chunks(self._connection, self._pool, MARK, [mark.encode()])

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str:
        return self._links.link(check_key(key), start, end, lifetime_s)

    def close(self) -> None:
        self._pool.shutdown()
        self._links.close()
        self._connection.client.close()
