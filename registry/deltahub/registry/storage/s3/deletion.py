"""Deletes objects: many by one request where the service can, else one by one, side by side."""

from collections.abc import Collection
from concurrent.futures import Executor
from itertools import islice
from typing import Final

from deltahub.registry.storage.s3.connection import Connection
from deltahub.registry.storage.s3.errors import REQUEST_ERRORS, code_of, is_absent

# The most keys that S3 takes in one request.
_TOGETHER: Final = 1000
# Answers of services that lack DeleteObjects, or want a header that newer clients do not send.
_CANNOT: Final = frozenset({
    "MissingContentMD5", "InvalidDigest", "NotImplemented", "MethodNotAllowed", "InvalidRequest",
    "MalformedXML", "MissingRequestBodyError", "InvalidArgument", "501", "405", "400",
})  # fmt: skip


class Deletion:
    """Deletes keys of one bucket. It remembers that the service cannot delete many at once."""

    def __init__(self, connection: Connection, pool: Executor) -> None:
        self._connection = connection
        self._pool = pool
        self._can_batch = True

    def delete(self, key: str) -> None:
        connection = self._connection
        try:
            connection.request("delete_object", Key=connection.key(key))
        except REQUEST_ERRORS as exc:
            if not is_absent(exc):
                raise connection.error(key, exc) from exc

    def delete_together(self, keys: Collection[str]) -> None:
        rest = iter(keys)
        while batch := list(islice(rest, _TOGETHER)):
            if len(batch) > 1 and self._can_batch:
                batch = self._left_of(batch)
            # Each of the others has its own answer, with retries.
            for _ in self._pool.map(self.delete, batch):
                pass

    def _left_of(self, batch: list[str]) -> list[str]:
        """The keys that one request did not delete."""
        connection = self._connection
        objects = [{"Key": connection.key(key)} for key in batch]
        try:
            answer = connection.request(
                "delete_objects", Delete={"Objects": objects, "Quiet": True}
            )
        except REQUEST_ERRORS as exc:
            if code_of(exc) not in _CANNOT:
                raise connection.error(f"{batch[0]} and others", exc) from exc
            self._can_batch = False
            return batch
        prefix = connection.location.prefix
        return [error["Key"].removeprefix(prefix) for error in answer.get("Errors", ())]
