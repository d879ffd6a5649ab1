"""A hub whose database an older release made takes kits and upgrades, and keeps what it had."""

import sqlite3
from contextlib import closing
from pathlib import Path

from deltahub.registry.catalog.repositories import get_repository
from deltahub.registry.db import schema
from deltahub.registry.db.tables.comparisons import AdapterKit
from deltahub.registry.upgrades.running import advance
from support.adapters.kits import discriminator, push_adapter, put
from support.registry.collecting import count, is_clean
from support.registry.ingested import read_file
from support.registry.opened import caller, opened_registry
from support.upgrades import planned
from support.upgrades.old_schema import WITHOUT_KITS_AND_UPGRADES
from support.upgrades.planned import Bases, jobs_of, moves, written


def test_a_hub_of_version_0011a_takes_kits_and_upgrades(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        bases = Bases.pushed(reg)
        planned.push_adapter(reg, bases.ann, "ann/one", "ann/v1")
        weights = push_adapter(reg, bases.ann)
        head = get_repository(reg, bases.ann, "ann/v1").head
        before = read_file(reg, bases.old, "model.safetensors")
        database = reg.data_dir / "deltahub.sqlite3"
    with closing(sqlite3.connect(database)) as connection:
        for statement in WITHOUT_KITS_AND_UPGRADES:
            connection.execute(statement)
        connection.commit()
    with opened_registry(tmp_path) as reg:
        assert schema.current(reg.db) == schema.head()
        ann = caller(reg, "ann")
        assert get_repository(reg, ann, "ann/v1").head == head
        assert read_file(reg, bases.old, "model.safetensors") == before
        put(reg, ann, weights, discriminator())
        assert count(reg, AdapterKit) == 1
        upgrade = written(reg, ann, bases.old, bases.new, "auto").upgrade_id
        assert upgrade is not None
        assert advance(reg) == 1
        assert len(jobs_of(reg, "transfer_adapter")) == 1
        assert moves(reg, ann, upgrade)["ann/one"].state == "queued"
        assert is_clean(reg)
