"""A store that does not answer for a moment says nothing about the bytes in it."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from deltahub.registry import Caller, Registry
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import Landing
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.storage.base import StoreUnavailable
from support.registry.collecting import collect, is_clean
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry, upload
from support.registry.xet import send_xorb
from support.registry.xet_uploads import ONE


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


@pytest.fixture
def go_away(reg: Registry, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function after which the store answers so many more reads, and then none."""

    def begin(n_answers: int) -> None:
        get_into, left = reg.store.get_into, iter(range(n_answers))

        def away(key: str, start: int, out: memoryview) -> None:
            if next(left, None) is None:
                raise StoreUnavailable(f"{key}: SlowDown")
            get_into(key, start, out)

        monkeypatch.setattr(reg.store, "get_into", away)

    return begin


def test_fsck_says_that_bytes_were_not_read_and_not_that_they_are_damaged(
    reg: Registry, ann: Caller, go_away: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    push_ingested(reg, ann, "ann/m", {"a.bin": b"stored" * 1000})
    waiting = upload(reg, ann, b"waits for its commit" * 300)
    send_xorb(reg, "ann/m", ONE)
    go_away(0)
    assert {finding.code for finding in fsck(reg)} == {"object_unreadable"}
    found = list(fsck(reg, read_data=True))
    assert {finding.code for finding in found} == {"object_unreadable"}
    assert all("SlowDown" in finding.text for finding in found)
    told = " ".join(finding.text for finding in found)
    assert f"upload {waiting}" in told
    assert "xorb " in told
    monkeypatch.undo()
    assert is_clean(reg)
    with reg.db.read() as session:
        assert session.scalars(select(Landing.sha256)).all() == [waiting]


def test_a_collection_that_cannot_read_what_it_copied_is_repeated(
    reg: Registry, ann: Caller, go_away: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{name}.bin": random.Random(name).randbytes(40_000) for name in "abcdef"}
    push_ingested(reg, ann, "ann/all", files)
    keep = push_ingested(reg, ann, "ann/keep", {"a.bin": files["a.bin"]})
    delete_repository(reg, ann, "ann/all")
    plan = plan_gc(reg, lease_s=0, grace_s=0)
    assert plan.repack
    n_failed = 0
    while True:
        go_away(n_failed)
        try:
            outcome = apply_gc(reg, plan)
            break
        except StoreUnavailable:
            n_failed += 1
        finally:
            monkeypatch.undo()
        assert read_file(reg, keep, "a.bin") == files["a.bin"]
    assert (n_failed > 2, outcome.repacked, outcome.notes) == (True, 1, [])
    collect(reg)
    assert read_file(reg, keep, "a.bin") == files["a.bin"]
    assert is_clean(reg)
