"""Second copies are made, deleted and made again while others delete late."""

from collections.abc import Collection, Iterable
from datetime import timedelta

import pytest
from sqlalchemy import delete

from deltahub.registry import Registry
from deltahub.registry.db.models import Pack, utc_now
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.maintenance.deletions import deletions_held
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.replicas.copies import (
    drop_copy,
    leftover_copies,
    make_copy,
    restore_copy,
)
from deltahub.registry.storage.base import Buffer
from support.registry.collecting import is_clean
from support.registry.scrubbing import copies, copy_key_of, scrubbed
from support.registry.small_hub import SmallHub


@pytest.fixture
def copied(hub: SmallHub) -> SmallHub:
    """The hub with a second copy of its base's pack."""
    assert make_copy(hub.reg, hub.pack_of("ann/base"))
    return hub


def test_a_late_deletion_of_an_earlier_copy_leaves_the_next_one(
    copied: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next copy comes between the deleter's question for a row and its deletion."""
    reg, pack = copied.reg, copied.pack_of("ann/base")
    with deletions_held(reg):
        drop_copy(reg, pack)
        remove = reg.store.inner.delete_together

        def copy_first(keys: Collection[str]) -> None:
            assert make_copy(reg, pack)
            remove(keys)

        monkeypatch.setattr(reg.store.inner, "delete_together", copy_first)
    monkeypatch.undo()
    assert copies(reg) == {pack: "live"}
    assert [item.key for item in reg.store.list("copies/")] == [copy_key_of(reg, pack)]
    assert scrubbed(reg).n_found == 0
    assert is_clean(reg)


def test_a_copy_that_is_dropped_while_it_is_written_again_leaves_no_object(
    copied: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    reg, pack = copied.reg, copied.pack_of("ann/base")
    with reg.db.read() as session:
        digest = session.get_one(Pack, pack).hash
    assert digest is not None
    put = reg.store.inner.put

    def drop_first(key: str, chunks: Iterable[Buffer]) -> None:
        drop_copy(reg, pack)
        put(key, chunks)

    monkeypatch.setattr(reg.store.inner, "put", drop_first)
    assert not restore_copy(reg, pack, digest)
    assert list(reg.store.list("copies/")) == []
    assert is_clean(reg)


def test_gc_deletes_an_unknown_copy_and_leaves_one_that_is_made_meanwhile(
    copied: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    reg, pack = copied.reg, copied.pack_of("ann/base")
    with reg.db.write() as session:  # as an old database over newer objects has it
        session.execute(delete(PackCopy))
    plan = plan_gc(reg, is_full=True)
    [unknown] = plan.unknown
    remove = reg.store.inner.delete_together

    def copy_first(keys: Collection[str]) -> None:
        if unknown.id in keys:
            assert make_copy(reg, pack)
        remove(keys)

    monkeypatch.setattr(reg.store.inner, "delete_together", copy_first)
    assert apply_gc(reg, plan, delete_unknown=True).unknown == 1
    monkeypatch.undo()
    assert copies(reg) == {pack: "live"}
    assert is_clean(reg)


def test_a_second_deleter_leaves_the_row_of_the_next_copy(
    copied: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    reg, pack = copied.reg, copied.pack_of("ann/base")
    remove = reg.store.inner.delete_together

    def slowly(keys: Collection[str]) -> None:
        monkeypatch.undo()
        remove(keys)
        drop_copy(reg, pack)
        assert make_copy(reg, pack)

    monkeypatch.setattr(reg.store.inner, "delete_together", slowly)
    drop_copy(reg, pack)
    assert copies(reg) == {pack: "live"}
    assert is_clean(reg)


def test_a_copy_that_is_begun_again_is_not_abandoned(
    hub: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    reg, pack = hub.reg, hub.pack_of("ann/base")
    begun = utc_now() - timedelta(days=2)
    with reg.db.write() as session:  # its first writer was killed two days ago
        row = PackCopy(pack_id=pack, id="ab" * 16, state="writing", size=1, created_at=begun)
        session.add(row)
    assert leftover_copies_of(reg) == [pack]
    put, left = reg.store.inner.put, [pack]

    def put_slowly(key: str, chunks: Iterable[Buffer]) -> None:
        left[:] = leftover_copies_of(reg)
        put(key, chunks)

    monkeypatch.setattr(reg.store.inner, "put", put_slowly)
    assert make_copy(reg, pack)
    assert (left, copies(reg)) == ([], {pack: "live"})


def test_a_copy_that_is_dropped_while_it_is_written_leaves_no_object(
    hub: SmallHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    reg, pack = hub.reg, hub.pack_of("ann/base")
    put = reg.store.inner.put

    def put_slowly(key: str, chunks: Iterable[Buffer]) -> None:
        drop_copy(reg, pack)
        put(key, chunks)

    monkeypatch.setattr(reg.store.inner, "put", put_slowly)
    assert not make_copy(reg, pack)
    assert list(reg.store.list("copies/")) == []
    assert is_clean(reg)


def leftover_copies_of(reg: Registry) -> list[str]:
    with reg.db.read() as session:
        return [pack for pack, _ in leftover_copies(session)]
