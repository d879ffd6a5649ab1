"""What is marked as lost is brought back by the next push of the same bytes."""

import pytest
from sqlalchemy import select

from deltahub.registry.catalog.commit import AddFile, commit
from deltahub.registry.db.models import File
from deltahub.registry.errors import DataLost
from deltahub.registry.maintenance.repair.run import repair
from deltahub.registry.packs.locations import locate
from deltahub.registry.storage.keys import pack_key
from support.registry.collecting import collect, is_clean
from support.registry.ingested import push_ingested, read_file, send_ingested
from support.registry.opened import caller, sha256_of, upload
from support.registry.small_hub import BASE, NOTES, PATH, TUNE, SmallHub


def test_a_push_of_the_base_brings_back_its_deltas_too(hub: SmallHub) -> None:
    hub.lose("ann/base")
    repair(hub.reg)
    before = hub.revisions["ann/base"]
    assert push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE}) == before
    assert hub.read("ann/base") == BASE
    assert hub.read("ann/tune") == TUNE
    assert set(hub.states().values()) == {"ingested"}
    collect(hub.reg)
    assert is_clean(hub.reg)


def test_a_lost_file_can_be_read_from_the_moment_of_its_commit(hub: SmallHub) -> None:
    hub.lose("ann/base")
    repair(hub.reg)
    upload(hub.reg, hub.ann, BASE)
    add = AddFile(PATH, sha256_of(BASE), len(BASE))
    made = commit(hub.reg, hub.ann, "ann/base", "main", [add])
    assert not made.changed
    assert made.job_id is not None
    assert hub.read("ann/base") == BASE
    with pytest.raises(DataLost):
        hub.read("ann/tune")


def test_a_push_of_the_fine_tune_alone_brings_it_back_without_its_base(hub: SmallHub) -> None:
    hub.lose("ann/base")
    repair(hub.reg)
    push_ingested(hub.reg, hub.ann, "ann/tune", {PATH: TUNE})
    assert hub.read("ann/tune") == TUNE
    with pytest.raises(DataLost):
        hub.read("ann/base")
    push_ingested(hub.reg, hub.ann, "ann/base", {PATH: BASE})
    assert hub.read("ann/base") == BASE
    collect(hub.reg)
    assert is_clean(hub.reg)


def test_frames_of_a_client_bring_it_back(hub: SmallHub) -> None:
    hub.lose("ann/base")
    repair(hub.reg)
    send_ingested(hub.reg, hub.ann, "ann/base", BASE)
    assert hub.read("ann/base") == BASE
    assert hub.read("ann/tune") == TUNE
    collect(hub.reg)
    assert is_clean(hub.reg)


def test_a_private_push_brings_back_what_is_public(hub: SmallHub) -> None:
    hub.lose("ann/base")
    repair(hub.reg)
    ben = caller(hub.reg, "ben")
    own = push_ingested(hub.reg, ben, "ben/own", {PATH: BASE}, private=True)
    assert read_file(hub.reg, own, PATH) == BASE
    assert hub.read("ann/tune") == TUNE
    assert hub.read("ann/base") == BASE
    assert is_clean(hub.reg)


def test_a_lost_recipe_comes_back(hub: SmallHub) -> None:
    with hub.reg.db.read() as session:
        recipe = session.scalars(
            select(File.recipe_tensor_id).where(File.sha256 == sha256_of(NOTES))
        ).one()
        assert recipe is not None
        pack = locate(session, [recipe])[recipe].frames[0].pack_id
    hub.reg.store.delete(pack_key(pack))
    repair(hub.reg)
    assert hub.states()[sha256_of(NOTES)] == "lost"
    push_ingested(hub.reg, hub.ann, "ann/notes", {"notes.txt": NOTES})
    assert hub.read("ann/notes", "notes.txt") == NOTES
    assert is_clean(hub.reg)
