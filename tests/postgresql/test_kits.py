"""Kits of adapters on PostgreSQL: put, replaced, checked, read and deleted as on SQLite."""

from pathlib import Path

from deltahub.registry.adapters import kits
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.db.models import Repository
from deltahub.registry.db.tables.comparisons import AdapterKit, AdapterKitPart
from support.adapters.kits import ADAPTER, discriminator, push_adapter, put
from support.registry.collecting import codes, count, is_clean
from support.registry.opened import caller, opened_registry
from support.service.postgresql import postgresql_server


def test_a_kit_lives_as_long_as_its_repository(tmp_path: Path) -> None:
    large = discriminator(rank=20_000)
    with (
        postgresql_server() as url,
        opened_registry(tmp_path, database_url=url) as reg,
    ):
        ann = caller(reg, "ann")
        adapter = push_adapter(reg, ann)
        put(reg, ann, adapter, discriminator())
        put(reg, ann, adapter, large)
        assert count(reg, AdapterKit) == 1
        assert is_clean(reg)
        with reg.db.read() as session:
            row = session.query(Repository).filter_by(name="adapter").one()
            found = kits.stored_kit(session, row.id)
        assert found is not None
        assert kits.read_discriminator(reg, found) == large
        with reg.db.write() as session:
            session.delete(session.get_one(AdapterKitPart, (found.id, 0)))
        assert codes(reg) == {"kit_damaged"}
        delete_repository(reg, ann, ADAPTER)
        assert (count(reg, AdapterKit), count(reg, AdapterKitPart)) == (0, 0)
