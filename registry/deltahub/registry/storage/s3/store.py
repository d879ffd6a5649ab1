"""A Store in a bucket."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from deltahub.registry import cancellation
from deltahub.registry.settings import Settings
from deltahub.registry.storage.base import (
    MARK,
    Buffer,
    NoCache,
    ObjectInfo,
    Unfinished,
)
from deltahub.registry.storage.keys import check_key, check_prefix, is_key
from deltahub.registry.storage.local import translated
from deltahub.registry.storage.s3.connection import Connection, connect
from deltahub.registry.storage.s3.deletion import Deletion
from deltahub.registry.storage.s3.errors import BucketUnavailable
from deltahub.registry.storage.s3.links import Links
from deltahub.registry.storage.s3.presence import Presence
from deltahub.registry.storage.s3.reading import RangeReader
from deltahub.registry.storage.s3.uploads.part_requests import PartRequests
from deltahub.registry.storage.s3.uploads.parts import PART_BYTES, PartMemory
from deltahub.registry.storage.s3.uploads.put import put_chunks, put_file, put_whole
from deltahub.registry.storage.s3.uploads.unfinished import (
    abort,
    still_unfinished,
    unfinished_uploads,
)
from deltahub.registry.store_url import S3Location

# Requests of put_together() that wait for a thread.
_MOST_WAITING: Final = 64


class S3Store(NoCache):
    """Objects under a prefix of a bucket. Processes and machines may share it."""

    def __init__(self, location: S3Location, settings: Settings) -> None:
        self.location = location
        self._connection = connect(location, settings)
        self._pool = ThreadPoolExecutor(settings.s3_parallel, thread_name_prefix="s3")
        self._memory = PartMemory(settings.s3_parallel + 1)
        self._presence = Presence(self._connection)
        self._reader = RangeReader(self._connection, self._presence)
        self._deletion = Deletion(self._connection, self._pool)
        self._links = Links(self._connection)
        self._parts = PartRequests(self._connection)

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        check_key(key)
        put_chunks(self._connection, self._pool, self._memory, key, chunks)

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        for key in objects:
            check_key(key)
        small: list[Future[None]] = []
        try:
            for key, data in objects.items():
                if memoryview(data).nbytes > PART_BYTES:
                    self.put(key, [data])
                else:
                    small.append(_submit_whole(self._pool, self._connection, key, data))
                if len(small) >= _MOST_WAITING:
                    small.pop(0).result()
                    cancellation.check()
            while small:
                small.pop(0).result()
        finally:
            for each in small:
                each.cancel()

    def take_file(self, key: str, path: Path) -> None:
        check_key(key)
        put_file(self._connection, self._pool, key, path)
        with translated(str(path)):
            path.unlink()

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        check_key(key)
        view = out.cast("B")
        if view:
            self._reader.read(key, start, view)

    def size(self, key: str) -> int:
        return self._reader.size(check_key(key))

    def delete(self, key: str) -> None:
        self._deletion.delete(check_key(key))

    def delete_together(self, keys: Collection[str]) -> None:
        for key in keys:
            check_key(key)
        self._deletion.delete_together(keys)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """As in Store. What is no key is not the hub's and is left out, as the mark is."""
        check_prefix(prefix)
        yield from _listed(self._connection, prefix)

    def mark(self) -> str | None:
        return self._presence.read_mark()

    def set_mark(self, mark: str) -> None:
        put_whole(self._connection, MARK, mark.encode())
        self._presence.set_mark(mark)

    def unfinished(self) -> Iterator[Unfinished]:
        yield from unfinished_uploads(self._connection)

    def discard_unfinished(self, unfinished: Unfinished) -> bool:
        now = still_unfinished(self._connection, unfinished)
        if now is None or now.modified_at > unfinished.modified_at:
            return False
        abort(self._connection, unfinished)
        return True

    def parts(self) -> PartRequests:
        return self._parts

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str:
        """A URL from which a client reads bytes start..end by itself: see Links."""
        return self._links.link(check_key(key), start, end, lifetime_s)

    def close(self) -> None:
        self._pool.shutdown()
        self._reader.close()
        self._links.close()
        self._connection.close()


def _submit_whole(pool: Executor, connection: Connection, key: str, data: Buffer) -> Future[None]:
    body = bytes(data) if isinstance(data, memoryview) else data
    return pool.submit(put_whole, connection, key, body)


def _listed(connection: Connection, prefix: str) -> Iterator[ObjectInfo]:
    page: dict[str, str] = {}
    while True:
        answer = connection.call(
            prefix or "the list of objects",
            "list_objects_v2",
            Prefix=connection.key(prefix),
            **page,
        )
        for item in answer.get("Contents", ()):
            key = item["Key"].removeprefix(connection.location.prefix)
            if is_key(key):
                yield ObjectInfo(key, item["Size"], item["LastModified"])
        following = answer.get("NextContinuationToken")
        if not answer.get("IsTruncated"):
            return
        if not following or following == page.get("ContinuationToken"):
            raise BucketUnavailable(f"{prefix}: the service gives a page of its list again")
        page = {"ContinuationToken": following}
