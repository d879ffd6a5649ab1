"""A move beside damage: right bytes win over wrong ones, and nobody deletes the last of them."""

from collections.abc import Iterable, Iterator
from datetime import timedelta

import pytest
from sqlalchemy import delete, select

from deltahub.registry import Registry
from deltahub.registry.commands.store import result_lines
from deltahub.registry.db.models import Frame, Landing, Pack, utc_now
from deltahub.registry.db.tables.scrub import PackCopy
from deltahub.registry.db.tables.stores import DeferredDeletion, DeletionHold
from deltahub.registry.landings.damage import mark_damaged
from deltahub.registry.maintenance.move.copier import Copier
from deltahub.registry.maintenance.move.run import Moved
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.replicas.copies import make_copy
from deltahub.registry.storage.base import Buffer, ObjectInfo, Store, StoreFull
from deltahub.registry.storage.forwarding import ForwardingStore
from deltahub.registry.storage.keys import landing_key, pack_key
from deltahub.registry.storage.memory import MemoryStore
from support.registry.opened import push
from support.registry.scrubbing import copy_key_of, flip, pack_states, scrubbed
from support.registry.small_hub import TUNE, SmallHub, contents


def copier(reg: Registry, target: Store, source: Store | None = None) -> Copier:
    return Copier(reg.db, source or reg.store, target, lambda copied: None)


def has(store: Store, key: str) -> bool:
    return key in {info.key for info in store.list("")}


def bytes_in(store: Store, key: str) -> bytes:
    data = bytearray(store.size(key))
    store.get_into(key, 0, memoryview(data))
    return bytes(data)


def damage(hub: SmallHub, key: str, how: str) -> bytes:
    """Cut an object or delete it; returns its right bytes."""
    good = contents(hub.reg, key)
    if how == "cut":
        hub.reg.store.put(key, [good[:-9]])
    else:
        hub.reg.store.delete(key)
    return good


@pytest.mark.parametrize("how", ["cut", "missing"])
@pytest.mark.parametrize("is_marked", [False, True])
def test_a_pack_that_the_old_disk_loses_after_it_was_copied_comes_back(
    hub: SmallHub, how: str, is_marked: bool
) -> None:
    target, key = MemoryStore(), pack_key(hub.pack_of("ann/tune"))
    copier(hub.reg, target).copy_all()  # this run is killed before it switches
    good = damage(hub, key, how)
    if is_marked:
        repair(hub.reg, read_data=True)
        assert pack_states(hub.reg) == {"live", "damaged"}
    copy = copier(hub.reg, target)
    copy.copy_all()
    copy.delete_strays()
    assert copy.copied.damaged == {}
    assert bytes_in(target, key) == good
    assert contents(hub.reg, key) == good
    repair(hub.reg, read_data=True)
    assert hub.read("ann/tune") == TUNE


def test_right_bytes_stay_in_the_target_if_the_old_disk_takes_none(hub: SmallHub) -> None:
    class Full(ForwardingStore):
        def put(self, key: str, chunks: Iterable[Buffer]) -> None:
            raise StoreFull("no room")

    target, key = MemoryStore(), pack_key(hub.pack_of("ann/tune"))
    copier(hub.reg, target).copy_all()
    good = damage(hub, key, "missing")
    copy = copier(hub.reg, target, Full(hub.reg.store))
    copy.copy_all()
    copy.delete_strays()
    assert copy.copied.damaged == {}
    assert bytes_in(target, key) == good


def test_an_object_that_is_deleted_while_it_is_put_back_stays_deleted(hub: SmallHub) -> None:
    target, pack = MemoryStore(), hub.pack_of("ann/tune")
    copier(hub.reg, target).copy_all()
    hub.lose("ann/tune")

    class Late(ForwardingStore):
        """The row of the object goes while its bytes are put back."""

        def put(self, name: str, chunks: Iterable[Buffer]) -> None:
            with hub.reg.db.write() as session:
                session.get_one(Pack, pack).state = "condemned"
            super().put(name, chunks)

    copier(hub.reg, target, Late(hub.reg.store)).copy_all()
    assert not has(hub.reg.store, pack_key(pack))


@pytest.mark.parametrize("how", ["cut", "missing"])
def test_a_damaged_upload_comes_back_from_the_copy(hub: SmallHub, how: str) -> None:
    push(hub.reg, hub.ann, "ann/landed", {"x": b"landed" * 1000})
    with hub.reg.db.read() as session:
        landing = session.scalars(select(Landing.id)).one()
    target, key = MemoryStore(), landing_key(landing)
    copier(hub.reg, target).copy_all()
    good = damage(hub, key, how)
    mark_damaged(hub.reg, landing, "lost", is_gone=True)
    copy = copier(hub.reg, target)
    copy.copy_all()
    copy.delete_strays()
    assert bytes_in(target, key) == contents(hub.reg, key) == good


def test_a_pack_lost_between_the_copy_and_the_look_for_deletions_is_kept(hub: SmallHub) -> None:
    key = pack_key(hub.pack_of("ann/tune"))

    class Late(MemoryStore):
        """The old disk loses the object right after it was copied."""

        def put(self, name: str, chunks: Iterable[Buffer]) -> None:
            super().put(name, chunks)
            if name == key:
                hub.reg.store.delete(key)

    target, good = Late(), contents(hub.reg, key)
    copier(hub.reg, target).copy_all()
    assert bytes_in(target, key) == good


def test_a_pack_that_is_put_right_after_it_was_copied_as_it_was_is_copied_again(
    hub: SmallHub,
) -> None:
    target, key = MemoryStore(), pack_key(hub.pack_of("ann/tune"))
    good = contents(hub.reg, key)
    flip(hub.reg, key)
    repair(hub.reg, read_data=True)
    copy = copier(hub.reg, target)
    copy.copy_all()
    copy.copy_all()
    hub.reg.store.put(key, [good])
    scrubbed(hub.reg)
    assert pack_states(hub.reg) == {"live"}
    copy.is_live = True
    copy.copy_all()
    copy.check_all()
    assert copy.copied.damaged == {}
    assert bytes_in(target, key) == good


def test_a_pack_that_is_live_again_is_proved_before_the_old_place_goes(hub: SmallHub) -> None:
    target, pack = MemoryStore(), hub.pack_of("ann/tune")
    flip(hub.reg, pack_key(pack))
    repair(hub.reg, read_data=True)
    copy = copier(hub.reg, target)
    copy.copy_all()
    copy.is_live = True
    with hub.reg.db.write() as session:  # put right in another place, after the last comparison
        session.get_one(Pack, pack).state = "live"
    copy.check_all()
    assert copy.copied.damaged.keys() == {pack_key(pack)}


def test_right_bytes_of_a_marked_pack_are_copied_to_a_place_in_use(hub: SmallHub) -> None:
    target, key = MemoryStore(), pack_key(hub.pack_of("ann/tune"))
    good = contents(hub.reg, key)
    flip(hub.reg, key)
    repair(hub.reg, read_data=True)
    copy = copier(hub.reg, target)
    copy.copy_all()
    hub.reg.store.put(key, [good])  # and the mark is still there
    copy.is_live = True
    copy.copy_all()
    assert bytes_in(target, key) == good


def test_what_a_backup_at_work_may_name_is_not_deleted(hub: SmallHub) -> None:
    source, target = MemoryStore(), MemoryStore()
    pack = hub.pack_of("ann/tune")
    gone, stray = pack_key(pack), pack_key("0" * 32)
    for info in hub.reg.store.list(""):
        if info.key != gone:
            source.put(info.key, [bytes_in(hub.reg.store, info.key)])
        target.put(info.key, [bytes_in(hub.reg.store, info.key)])
    target.put(stray, [b"no row knows it"])
    until = utc_now() + timedelta(minutes=9)
    with hub.reg.db.write() as session:
        session.add(DeletionHold(id="a" * 32, purpose="backup", expires_at=until))
    hub.reg.store.delete(gone)  # it is deferred
    with hub.reg.db.write() as session:
        session.execute(delete(Frame).where(Frame.pack_id == pack))
        session.execute(delete(Pack).where(Pack.id == pack))
    copy = copier(hub.reg, target, source)
    copy.is_live = True
    copy.copy_all()
    copy.delete_strays()
    assert has(target, gone)
    assert has(target, stray)
    with hub.reg.db.read() as session:
        assert set(session.scalars(select(DeferredDeletion.key))) == {gone, stray}
    with hub.reg.db.write() as session:
        session.execute(delete(DeletionHold))
        session.execute(delete(DeferredDeletion).where(DeferredDeletion.key == stray))
    copy.delete_strays()
    assert has(target, gone), "it is deleted with all that was deferred"
    assert not has(target, stray)


def test_second_copies_are_found_by_their_rows(hub: SmallHub) -> None:
    class Stale(MemoryStore):
        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            return iter(())

    pack = hub.pack_of("ann/base")
    assert make_copy(hub.reg, pack)
    source, target, key = Stale(), MemoryStore(), copy_key_of(hub.reg, pack)
    for info in hub.reg.store.list(""):
        source.put(info.key, [bytes_in(hub.reg.store, info.key)])
    copy = copier(hub.reg, target, source)
    copy.copy_all()
    assert bytes_in(target, key) == contents(hub.reg, key)
    copy.check_all()
    assert copy.copied.damaged == {}
    target.delete(key)
    copy.check_all()
    assert copy.copied.damaged.keys() == {key}


def test_a_wrong_second_copy_does_not_stop_a_move_and_is_compared_again(hub: SmallHub) -> None:
    pack = hub.pack_of("ann/base")
    assert make_copy(hub.reg, pack)
    target, key = MemoryStore(), copy_key_of(hub.reg, pack)
    good = contents(hub.reg, key)
    flip(hub.reg, key)
    copy = copier(hub.reg, target)
    copy.copy_all()
    copy.copy_all()
    assert copy.copied.damaged == {}
    assert has(target, key)
    hub.reg.store.put(key, [good])
    copy.copy_all()
    assert bytes_in(target, key) == good


def test_a_second_copy_without_use_stays_behind(hub: SmallHub) -> None:
    pack = hub.pack_of("ann/base")
    assert make_copy(hub.reg, pack)
    key = copy_key_of(hub.reg, pack)
    with hub.reg.db.write() as session:
        session.get_one(PackCopy, pack).state = "condemned"
    target = MemoryStore()
    copy = copier(hub.reg, target)
    copy.copy_all()
    assert copy.copied.left_behind == {key}
    assert not has(target, key)


@pytest.mark.parametrize(
    "key", ["two/packs/ab/" + "ab" * 16, "backup/objects/landing/" + "ab" * 16, "notes/x",
            "packs/aa/" + "ab" * 16, "packs/ab/two/packs/ab/" + "ab" * 16],
)  # fmt: skip
def test_what_has_no_name_of_a_hubs_object_is_neither_copied_nor_deleted(
    hub: SmallHub, key: str
) -> None:
    hub.reg.store.put(key, [b"another hub's"])
    target = MemoryStore()
    target.put("other/" + key, [b"a backup's"])
    for is_live in (False, True):
        copy = copier(hub.reg, target)
        copy.is_live = is_live
        copy.copy_all()
        copy.delete_strays()
        assert copy.copied.left_behind == set()
        assert has(target, "other/" + key)
        assert not has(target, key)


def test_the_command_names_what_was_copied_as_it_is(hub: SmallHub) -> None:
    assert make_copy(hub.reg, hub.pack_of("ann/base"))
    wrong = copy_key_of(hub.reg, hub.pack_of("ann/base"))
    cut, mended = pack_key(hub.pack_of("ann/tune")), pack_key(hub.pack_of("ann/base"))
    good = {key: contents(hub.reg, key) for key in (cut, mended)}
    flip(hub.reg, wrong)
    flip(hub.reg, mended)
    hub.reg.store.put(cut, [good[cut][:-9]])
    repair(hub.reg, read_data=True)
    copy = copier(hub.reg, MemoryStore())
    copy.copy_all()
    assert copy.copied.damaged == {}
    assert copy.copied.as_is.keys() == {wrong, cut, mended}
    hub.reg.store.put(mended, [good[mended]])
    copy.is_live = True
    copy.copy_all()
    moved = Moved("folder", "s3://b/p", is_switched=True, is_done=True, copied=copy.copied)
    told = list(result_lines(moved, delete_source=False))
    size = len(good[cut])
    assert f"copied as it is: {cut}: it has {size - 9} bytes, and its row says {size}: it is" in (
        "\n".join(told)
    )
    [line] = [line for line in told if wrong in line]
    assert "a second copy, which `deltahub scrub` writes again" in line
    assert not any(mended in line for line in told)
    assert moved.as_dict()["as_is"] == copy.copied.as_is
    assert copy.copied.as_is.keys() == {wrong, cut}
