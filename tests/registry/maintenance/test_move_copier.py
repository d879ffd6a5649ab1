"""The copier proves what it copies, leaves damage behind, and revives nothing that was deleted."""

from collections.abc import Iterable, Iterator

import pytest
from sqlalchemy import select

from deltahub.registry import Registry
from deltahub.registry.db.models import Landing, Pack, Xorb
from deltahub.registry.maintenance.move.copier import Copier
from deltahub.registry.maintenance.move.expected import keys_of_rows
from deltahub.registry.storage.base import Buffer, Store, StoreUnavailable
from deltahub.registry.storage.keys import landing_key, pack_key, xorb_key
from deltahub.registry.storage.memory import MemoryStore
from support.registry.opened import push
from support.registry.small_hub import SmallHub, contents
from support.registry.xet import XorbOf, cut, send_xorb
from support.stores.store_contract import read_all


def copier(reg: Registry, target: Store, source: Store | None = None) -> Copier:
    return Copier(reg.db, source or reg.store, target, lambda copied: None)


def pack_of(hub: SmallHub, name: str) -> str:
    return pack_key(hub.pack_of(name))


def objects(store: Store) -> dict[str, bytes]:
    return {info.key: read_all(store, info.key) for info in store.list("")}


def test_everything_is_copied_once(hub: SmallHub) -> None:
    push(hub.reg, hub.ann, "ann/landed", {"x": b"landed" * 1000})
    target = MemoryStore()
    copy = copier(hub.reg, target)
    assert copy.copy_all() == len(objects(hub.reg.store)) > 3
    assert objects(target) == objects(hub.reg.store)
    assert copy.copy_all() == 0
    copy.check_all()
    assert copy.copied.damaged == {}
    again = copier(hub.reg, target)
    assert again.copy_all() == 0
    assert again.copied.already_there == len(objects(target))


def test_what_lies_in_the_target_with_other_bytes_is_replaced(hub: SmallHub) -> None:
    target, key = MemoryStore(), pack_of(hub, "ann/base")
    target.put(key, [bytes(hub.reg.store.size(key))])
    copier(hub.reg, target).copy_all()
    assert objects(target) == objects(hub.reg.store)


def test_damage_is_reported_and_not_visible_in_the_target(hub: SmallHub) -> None:
    push(hub.reg, hub.ann, "ann/landed", {"x": b"landed" * 1000})
    with hub.reg.db.read() as session:
        landing = landing_key(session.scalars(select(Landing.id)).one())
    hub.flip_a_block("ann/tune")
    hub.reg.store.put(landing, [b"other!" * 1000])
    lost = pack_of(hub, "ann/base")
    hub.lose("ann/base")
    target = MemoryStore()
    copy = copier(hub.reg, target)
    copy.copy_all()
    assert copy.copied.damaged.keys() == {pack_of(hub, "ann/tune"), landing, lost}
    assert not copy.copied.damaged.keys() & objects(target).keys()


def test_a_pack_that_is_marked_as_damaged_is_copied_as_it_is(hub: SmallHub) -> None:
    hub.flip_a_block("ann/tune")
    with hub.reg.db.write() as session:
        session.get_one(Pack, hub.pack_of("ann/tune")).state = "damaged"
    target = MemoryStore()
    copy = copier(hub.reg, target)
    copy.copy_all()
    assert copy.copied.damaged == {}
    assert objects(target) == objects(hub.reg.store)
    # It is copied again if it changed meanwhile, and not if the target is in use.
    whole = contents(hub.reg, pack_of(hub, "ann/tune"))
    hub.reg.store.put(pack_of(hub, "ann/tune"), [whole[:-1] + b"!"])
    copy.copy_all()
    assert objects(target) == objects(hub.reg.store)
    copy.is_live = True
    target.put(pack_of(hub, "ann/tune"), [whole])
    copy.copy_all()
    assert read_all(target, pack_of(hub, "ann/tune")) == whole


def test_a_target_that_gives_other_bytes_back_is_not_trusted(hub: SmallHub) -> None:
    class Forgetful(MemoryStore):
        def put(self, key: str, chunks: Iterable[Buffer]) -> None:
            data = bytearray(b"".join(chunks))
            data[-1] ^= 1
            super().put(key, [bytes(data)])

    target = Forgetful()
    with pytest.raises(StoreUnavailable, match="did not come back"):
        copier(hub.reg, target).copy_all()


def test_an_object_that_is_deleted_while_it_is_copied_does_not_come_back(hub: SmallHub) -> None:
    key = pack_of(hub, "ann/tune")

    class Late(MemoryStore):
        """Deletes the object in source and target after it was read and before it is written."""

        def put(self, name: str, chunks: Iterable[Buffer]) -> None:
            data = b"".join(chunks)
            if name == key:
                hub.reg.store.delete(key)
                self.delete(key)
            super().put(name, [data])

    for is_live in (False, True):
        with hub.reg.db.write() as session:
            session.get_one(Pack, hub.pack_of("ann/tune")).state = "condemned"
        target = Late()
        data = contents(hub.reg, key)
        copy = copier(hub.reg, target)
        copy.is_live = is_live
        copy.copy_all()
        assert key not in objects(target)
        assert copy.copied.damaged == {}
        hub.reg.store.put(key, [data])


def test_strays_go_from_the_target_and_what_others_wrote_there_stays(hub: SmallHub) -> None:
    target, stray = MemoryStore(), pack_key("0" * 32)
    copy = copier(hub.reg, target)
    copy.copy_all()
    target.put(stray, [b"deleted in the source"])
    assert copy.delete_strays() == 1
    assert stray not in objects(target)
    # After the switch the hub writes to the target alone.
    copy.is_live = True
    key = pack_of(hub, "ann/tune")
    hub.reg.store.delete(key)
    target.put(stray, [b"deleted in the source"])
    copy.copy_all()
    assert copy.delete_strays() == 1
    assert key in objects(target)
    assert copy.copied.damaged == {}


def test_an_object_that_no_row_knows_stays_behind(hub: SmallHub) -> None:
    unknown = pack_key("0" * 32)
    hub.reg.store.put(unknown, [b"garbage"])
    target = MemoryStore()
    copy = copier(hub.reg, target)
    copy.copy_all()
    assert copy.copied.left_behind == {unknown}
    assert unknown not in objects(target)


def test_a_list_that_leaves_an_object_out_loses_nothing(hub: SmallHub) -> None:
    class Stale(MemoryStore):
        def list(self, prefix: str) -> Iterator:  # type: ignore[type-arg]
            return iter(())

    source, target = Stale(), MemoryStore()
    for key, data in objects(hub.reg.store).items():
        source.put(key, [data])
    copier(hub.reg, target, source).copy_all()
    assert objects(target) == objects(hub.reg.store)


def test_what_is_missing_in_the_target_is_found_by_the_rows(hub: SmallHub) -> None:
    target = MemoryStore()
    copy = copier(hub.reg, target)
    copy.copy_all()
    copy.is_live = True
    key = pack_of(hub, "ann/base")
    target.delete(key)
    copy.check_all()
    assert copy.copied.damaged.keys() == {key}


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_xorb_is_compared_with_its_hash(hub: SmallHub, is_whole: bool) -> None:
    push(hub.reg, hub.ann, "ann/xet", {"x": b"1"})
    send_xorb(hub.reg, "ann/xet", XorbOf(cut(b"chunks of a xorb" * 10_000)))
    with hub.reg.db.read() as session:
        key = xorb_key(session.scalars(select(Xorb.id)).one())
    if not is_whole:
        data = bytearray(contents(hub.reg, key))
        data[70_000] ^= 1
        hub.reg.store.put(key, [bytes(data)])
    target = MemoryStore()
    copy = copier(hub.reg, target)
    copy.copy_all()
    assert (key in objects(target)) == is_whole
    assert (key in copy.copied.damaged) == (not is_whole)


def test_the_rows_name_all_objects(hub: SmallHub) -> None:
    assert set(keys_of_rows(hub.reg.db)) == objects(hub.reg.store).keys()
