"""A long upload ends when its caller has left, and leaves nothing behind."""

import contextvars
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltahub.registry import cancellation
from deltahub.registry.errors import Cancelled
from deltahub.registry.storage.s3.store import S3Store
from support.service.s3_faults import S3Faults

PART = b"p" * (16 << 20)


def test_an_upload_whose_caller_has_left_ends(faulty_store: S3Store, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(PART * 3)
    left = cancellation.Cancellation()
    left.cancel()

    def take() -> None:
        cancellation.use(left)
        with pytest.raises(Cancelled):
            faulty_store.take_file("a", path)

    contextvars.copy_context().run(take)
    assert path.exists()
    assert list(faulty_store.list("")) == []
    assert list(faulty_store.unfinished()) == []


def test_a_pause_before_a_repetition_ends_with_its_caller(
    faulty_store: S3Store, faults: S3Faults
) -> None:
    faults.refuse("HeadObject", 503, "SlowDown", times=1000)
    left = cancellation.Cancellation()
    left.cancel()

    def ask() -> None:
        cancellation.use(left)
        with pytest.raises(Cancelled):
            faulty_store.size("a")

    contextvars.copy_context().run(ask)
    assert faults.count("HeadObject") == 1


def test_many_streams_at_once_share_the_memory_of_a_few_parts(faulty_store: S3Store) -> None:
    """Five parts fit (s3_parallel and one): the others wait, and none waits forever."""
    from concurrent.futures import ThreadPoolExecutor

    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            time.sleep(0.05)
            yield PART[: 6 << 20]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: faulty_store.put(f"x{i}", chunks()), range(8)))
    assert {info.size for info in faulty_store.list("")} == {18 << 20}
