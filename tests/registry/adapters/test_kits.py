"""Who may store a kit and learn of it, and how long there is one."""

import pytest

from deltahub.registry import Caller, Registry
from deltahub.registry.adapters import kit_facts, kits
from deltahub.registry.adapters.reports import read_report
from deltahub.registry.catalog.repositories import delete_repository, move_repository
from deltahub.registry.db.models import Repository
from deltahub.registry.db.tables.comparisons import AdapterKit, AdapterKitPart
from deltahub.registry.errors import (
    Conflict,
    DataLost,
    EntryNotFound,
    Forbidden,
    HashMismatch,
    InvalidRequest,
    LimitExceeded,
    QuotaExceeded,
    RepositoryNotFound,
    Unauthorized,
)
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.quotas.limits import Limits, set_limits
from deltahub.registry.quotas.usage import measure, usage_of_repository
from support.adapters.kits import (
    ADAPTER,
    BASE,
    MARK,
    discriminator,
    head,
    kit_json,
    new_kit,
    push_adapter,
    put,
)
from support.registry.collecting import age_everything, codes, collect, count, is_clean, sql
from support.registry.opened import caller

FOUND = discriminator()
# Of more than one part.
LARGE = discriminator(rank=20_000)


@pytest.fixture
def adapter(reg: Registry, ann: Caller) -> bytes:
    data = push_adapter(reg, ann)
    with reg.db.write() as session:
        measure(session, session.query(Repository).filter_by(name="adapter").one().id)
    return data


def stored(reg: Registry, name: str = ADAPTER) -> kits.StoredKit | None:
    with reg.db.read() as session:
        row = session.query(Repository).filter_by(name=name.partition("/")[2]).one()
        return kits.stored_kit(session, row.id)


def stored_bytes(reg: Registry) -> int:
    with reg.db.read() as session:
        row = session.query(Repository).filter_by(name="adapter").one()
        return usage_of_repository(session, row.id).stored_bytes


def test_a_worker_reads_what_was_put_and_writers_learn_the_facts(
    reg: Registry, ann: Caller, adapter: bytes
) -> None:
    before = stored_bytes(reg)
    put(reg, ann, adapter, LARGE)
    found = stored(reg)
    assert found is not None
    assert found.kit["seeds"][0]["input"] == f"{MARK} 0"
    assert kits.read_discriminator(reg, found) == LARGE
    assert count(reg, AdapterKitPart) > 1
    facts = kit_facts.read_kit_facts(reg, ann, ADAPTER)
    assert (facts.name, facts.n_examples, facts.auc, facts.size) == ("digits", 50, 0.91, len(LARGE))
    assert facts.base == f"{BASE}@{head(reg, ann, BASE)}"
    assert facts.is_current
    assert MARK not in repr(facts)
    assert stored_bytes(reg) == before + len(LARGE)
    assert is_clean(reg)


def test_readers_learn_only_that_there_is_a_kit(reg: Registry, ann: Caller, adapter: bytes) -> None:
    bob = caller(reg, "bob")
    put(reg, ann, adapter, FOUND)
    with pytest.raises(Forbidden):
        kit_facts.read_kit_facts(reg, bob, ADAPTER)
    with pytest.raises(Unauthorized):
        kit_facts.read_kit_facts(reg, None, ADAPTER)
    with pytest.raises(Forbidden):
        put(reg, bob, adapter, FOUND)
    with pytest.raises(Forbidden):
        kits.delete_kit(reg, bob, ADAPTER)
    with reg.db.read() as session:
        assert kits.has_kit(session, session.query(Repository).filter_by(name="adapter").one().id)
    with pytest.raises(EntryNotFound):
        read_report(reg, bob, ADAPTER, "main")  # no worker has looked at it here


def test_strangers_do_not_learn_of_a_private_adapter(reg: Registry, ann: Caller) -> None:
    adapter = push_adapter(reg, ann, private=True)
    put(reg, ann, adapter, FOUND)
    for ask in (kit_facts.read_kit_facts, kits.delete_kit):
        with pytest.raises(RepositoryNotFound):
            ask(reg, caller(reg, "bob"), ADAPTER)


def test_a_new_kit_replaces_the_old_one(reg: Registry, ann: Caller, adapter: bytes) -> None:
    put(reg, ann, adapter, LARGE)
    old = stored(reg)
    put(reg, ann, adapter, FOUND)
    new = stored(reg)
    assert old is not None
    assert new is not None
    assert kits.read_discriminator(reg, new) == FOUND
    with pytest.raises(Conflict):
        kits.read_discriminator(reg, old)
    assert (count(reg, AdapterKit), count(reg, AdapterKitPart)) == (1, 1)


def test_a_kit_that_does_not_come_whole_leaves_the_old_one(
    reg: Registry, ann: Caller, adapter: bytes
) -> None:
    put(reg, ann, adapter, FOUND)
    kit = kit_json(adapter, f"{BASE}@{head(reg, ann, BASE)}", LARGE)
    with pytest.raises(HashMismatch):
        kits.put_kit(reg, ann, ADAPTER, new_kit(kit), [LARGE[:-1]])
    reg.settings = reg.settings.model_copy(update={"max_kit_bytes": len(LARGE) - 1})
    with pytest.raises(LimitExceeded, match="DELTAHUB_MAX_KIT_BYTES"):
        kits.put_kit(reg, ann, ADAPTER, new_kit(kit), [LARGE])
    found = stored(reg)
    assert found is not None
    assert kits.read_discriminator(reg, found) == FOUND


def test_a_kit_for_other_weights_or_another_base_is_refused(
    reg: Registry, ann: Caller, adapter: bytes
) -> None:
    with pytest.raises(Conflict, match="other weights"):
        put(reg, ann, adapter + b"\0", FOUND)
    with pytest.raises(InvalidRequest, match="the adapter's base is ann/base@"):
        put(reg, ann, adapter, FOUND, base=f"{BASE}@{'0' * 40}")
    with pytest.raises(InvalidRequest, match="is no adapter"):
        put(reg, ann, adapter, FOUND, name=BASE)
    assert stored(reg) is None


def test_an_adapter_that_changes_keeps_its_kit_which_is_not_current(
    reg: Registry, ann: Caller, adapter: bytes
) -> None:
    put(reg, ann, adapter, FOUND)
    push_adapter(reg, ann, seed=2)
    assert not kit_facts.read_kit_facts(reg, ann, ADAPTER).is_current


def test_names_of_today(reg: Registry, ann: Caller, adapter: bytes) -> None:
    put(reg, ann, adapter, FOUND)
    move_repository(reg, ann, ADAPTER, "ann/renamed")
    move_repository(reg, ann, BASE, "ann/other")
    found = stored(reg, "ann/renamed")
    assert found is not None
    assert found.kit["adapter"] == "ann/renamed@main"
    assert found.kit["base"] == f"ann/other@{head(reg, ann, 'ann/other')}"


def test_a_kit_lives_as_long_as_its_repository(reg: Registry, ann: Caller, adapter: bytes) -> None:
    put(reg, ann, adapter, LARGE)
    age_everything(reg, 100)
    collect(reg)
    found = stored(reg)
    assert found is not None
    assert kits.read_discriminator(reg, found) == LARGE
    delete_repository(reg, ann, ADAPTER)
    assert (count(reg, AdapterKit), count(reg, AdapterKitPart)) == (0, 0)
    assert is_clean(reg)


def test_a_kit_is_deleted_once(reg: Registry, ann: Caller, adapter: bytes) -> None:
    before = stored_bytes(reg)
    put(reg, ann, adapter, FOUND)
    kits.delete_kit(reg, ann, ADAPTER)
    assert stored_bytes(reg) == before
    with pytest.raises(EntryNotFound, match="has no kit"):
        kits.delete_kit(reg, ann, ADAPTER)
    with pytest.raises(EntryNotFound, match="deltahub adapter kit"):
        kit_facts.read_kit_facts(reg, ann, ADAPTER)


def test_a_full_namespace_takes_no_kit(reg: Registry, ann: Caller, adapter: bytes) -> None:
    set_limits(reg, None, "ann", Limits(stored_bytes=1), by_shell=True)
    with pytest.raises(QuotaExceeded):
        put(reg, ann, adapter, FOUND)


@pytest.mark.parametrize(
    ("damage", "is_found_by_rows"),
    [
        ("UPDATE adapter_kit_parts SET data = x'00'", True),
        ("DELETE FROM adapter_kit_parts WHERE number = 0", True),
        (
            "UPDATE adapter_kit_parts SET data = CAST(substr(data, 1, 99999) || x'55' ||"
            " substr(data, 100001) AS BLOB) WHERE number = 0",
            False,
        ),
    ],
)
def test_damage_is_found_by_fsck_and_by_readers(
    reg: Registry, ann: Caller, adapter: bytes, damage: str, is_found_by_rows: bool
) -> None:
    put(reg, ann, adapter, LARGE)
    sql(reg, damage)
    assert codes(reg) == ({"kit_damaged"} if is_found_by_rows else set())
    assert codes(reg, read_data=True) == {"kit_damaged"}
    found = stored(reg)
    assert found is not None
    with pytest.raises(DataLost, match="make the kit again"):
        kits.read_discriminator(reg, found)


def test_fsck_names_parts_without_their_kit(reg: Registry, ann: Caller, adapter: bytes) -> None:
    put(reg, ann, adapter, LARGE)
    sql(reg, "DELETE FROM adapter_kits")
    assert codes(reg) == {"row_reference"}


@pytest.mark.parametrize(
    "damage",
    [
        f"CAST(replace(kit, '{MARK} 0', '{MARK}' || x'ff') AS TEXT)",
        "substr(kit, 1, length(kit) - 1)",
        "'[1]'",
    ],
)
def test_no_finding_repeats_what_a_damaged_kit_says(
    reg: Registry, ann: Caller, adapter: bytes, damage: str
) -> None:
    put(reg, ann, adapter, FOUND)
    sql(reg, f"UPDATE adapter_kits SET kit = {damage}")
    found = list(fsck(reg, read_data=True))
    # The bytes of this kit and of all others are still checked.
    assert [each.code for each in found] == ["row_undecodable"]
    assert MARK not in repr(found)
