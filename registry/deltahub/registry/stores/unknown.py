"""The store of a hub whose database does not say where the objects lie."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from deltahub.registry.storage.base import (
    Buffer,
    NoCache,
    ObjectInfo,
    StoreUnavailable,
    Unfinished,
)


def _refuse() -> NoReturn:
    raise StoreUnavailable(
        "the database is damaged and does not say where the objects lie, so they were not looked at"
    )


class UnknownStore(NoCache):
    """A Store that refuses everything."""

    def put(self, key: str, chunks: Iterable[Buffer]) -> None:
        _refuse()

    def put_together(self, objects: Mapping[str, Buffer]) -> None:
        _refuse()

    def take_file(self, key: str, path: Path) -> None:
        _refuse()

    def get_into(self, key: str, start: int, out: memoryview) -> None:
        _refuse()

    def size(self, key: str) -> int:
        _refuse()

    def delete(self, key: str) -> None:
        _refuse()

    def delete_together(self, keys: Collection[str]) -> None:
        _refuse()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        _refuse()

    def unfinished(self) -> Iterator[Unfinished]:
        _refuse()

    def discard_unfinished(self, unfinished: Unfinished) -> bool:
        _refuse()

    def link(self, key: str, start: int, end: int, lifetime_s: int) -> str | None:
        _refuse()

    def parts(self) -> None:
        return None

    def mark(self) -> str | None:
        return None

    def set_mark(self, mark: str) -> None:
        _refuse()

    def close(self) -> None:
        pass
