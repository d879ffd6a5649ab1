"""A clock that was ahead keeps nothing for ever once the operator says so, and loses nothing."""

import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select, update

from deltahub.registry import Caller, Registry
from deltahub.registry.access import tokens
from deltahub.registry.catalog.repositories import delete_repository
from deltahub.registry.commands import maintenance
from deltahub.registry.db.models import (
    PUBLIC_DOMAIN_KEY,
    Base,
    Domain,
    File,
    Hold,
    Landing,
    Pack,
    Revision,
    Tensor,
    Token,
    UtcDateTime,
    utc_now,
)
from deltahub.registry.db.tables.jobs import Job
from deltahub.registry.maintenance import clock
from deltahub.registry.maintenance.gc.plan import plan_gc
from support.models import tiny_models as tiny
from support.registry.collecting import collect, count, is_clean, n_objects
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry, upload

YEARS = timedelta(days=3650)
PATH = "model.safetensors"
BASE = tiny.to_file(tiny.base())
# Tables of history: these dates keep nothing and start nothing.
HISTORY = {"users", "repositories", "revisions", "audit_events", "object_stores", "findings"}
HISTORY |= {"deferred_deletions", "job_lines"}
HISTORY |= {"leases"}  # by the clock of the database
# It is only kept for longer.
HISTORY |= {"dropped_revisions"}
# scrub takes a proof of the future for none.
HISTORY |= {"proofs"}
# Sessions, invitations and pauses of the future are not believed; the dashboard waits for its rows.
HISTORY |= {"web_sessions", "invitations", "passwords", "identities", "hub_history"}
# A report that is taken for used lately goes later.
HISTORY |= {"comparisons"}
# Shown to people: nothing begins or ends by them.
HISTORY |= {"upgrades", "upgraded_adapters", "adapter_kits"}


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        yield registry


@pytest.fixture
def ann(reg: Registry) -> Caller:
    return caller(reg, "ann")


def put_ahead(reg: Registry, *tables: str) -> None:
    """Make the dates of these tables, or of all, ten years later."""
    with reg.db.write() as session:
        for table in Base.metadata.sorted_tables:
            for column in table.columns:
                if isinstance(column.type, UtcDateTime) and (not tables or table.name in tables):
                    rows = session.execute(
                        select(*table.primary_key, column).where(column.is_not(None))
                    ).all()
                    for *key, date in rows:
                        is_row = [c == v for c, v in zip(table.primary_key, key, strict=True)]
                        later = {column.name: date + YEARS}
                        session.execute(update(table).where(*is_row).values(later))


def gc(reg: Registry, *options: str) -> Result:
    return CliRunner().invoke(maintenance.gc, ["--data-dir", str(reg.data_dir), *options])


@pytest.mark.parametrize("table", ["packs", "landings", "files", "tensors"])
def test_gc_refuses_rows_of_the_future_and_names_the_way_out(
    reg: Registry, ann: Caller, table: str
) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    upload(reg, ann, b"waits for its commit")
    put_ahead(reg, table)
    refused = gc(reg, "--apply")
    assert refused.exit_code == 1
    assert f"doubt: {table} has a row of 20" in refused.stdout
    assert "--clock-was-ahead" in refused.stdout


def test_after_the_option_garbage_waits_its_grace_and_goes(reg: Registry, ann: Caller) -> None:
    kept = push_ingested(reg, ann, "ann/kept", {PATH: BASE})
    push_ingested(reg, ann, "ann/gone", {"gone.bin": b"g" * 5000})
    upload(reg, ann, b"waits for its commit")
    (reg.scratch / "left.pack").write_bytes(b"x")
    put_ahead(reg)
    os.utime(reg.scratch / "left.pack", (time.time() + 3e8,) * 2)
    delete_repository(reg, ann, "ann/gone")
    with reg.db.read() as session:
        commits = session.execute(select(Revision.commit, Revision.created_at)).all()

    planned = gc(reg, "--clock-was-ahead")
    assert planned.exit_code == 0
    first_line = planned.stdout.splitlines()[0]
    assert first_line.startswith("dates in the future to set to now: ")
    assert gc(reg, "--apply").exit_code == 1, "a plan sets no dates"

    done = gc(reg, "--clock-was-ahead", "--apply", "--json")
    assert done.exit_code == 0
    answer = json.loads(done.stdout)
    assert answer["dates_ahead"] == int(first_line.rpartition(" ")[2]) > 10
    assert answer["outcome"]["files"] == answer["outcome"]["tensors"] == 0, "all wait their grace"
    tomorrow = (utc_now() + timedelta(days=1, minutes=6)).isoformat()
    assert answer["plan"]["waiting"]
    assert all(item["until"] < tomorrow for item in answer["plan"]["waiting"])
    assert gc(reg, "--apply").exit_code == 0, "no doubt is left"
    with reg.db.read() as session:
        assert session.execute(select(Revision.commit, Revision.created_at)).all() == commits

    n_files = count(reg, File)
    collect(reg)
    assert count(reg, File) == n_files - 1
    assert read_file(reg, kept, PATH) == BASE
    assert is_clean(reg)


def test_promises_end_no_later_than_those_made_now(reg: Registry, ann: Caller) -> None:
    revision = push_ingested(reg, ann, "ann/base", {PATH: BASE})
    upload(reg, ann, b"waits for its commit")
    with reg.db.write() as session:
        session.add(
            Hold(tensor_id=session.scalars(select(Tensor.id)).first(), expires_at=utc_now())
        )
        session.execute(update(Landing).values(promised_until=utc_now()))
    put_ahead(reg, "holds", "landings")
    assert clock.set_to_now(reg) == 4
    latest = utc_now() + timedelta(seconds=reg.settings.upload_ttl_s)
    with reg.db.read() as session:
        ends = session.scalars(select(Hold.expires_at)).all()
        ends += session.scalars(select(Landing.expires_at)).all()
        ends += [end for end in session.scalars(select(Landing.promised_until)) if end is not None]
    assert len(ends) == 3
    assert utc_now() < min(ends) <= max(ends) <= latest
    assert read_file(reg, revision, PATH) == BASE


def test_dates_that_can_be_right_stay(reg: Registry, ann: Caller) -> None:
    push_ingested(reg, ann, "ann/base", {PATH: BASE})
    upload(reg, ann, b"waits for its commit")
    tokens.create_token(reg, "ann", "read", ttl_s=10 * 365 * 86400)
    assert clock.count_ahead(reg) == clock.set_to_now(reg) == 0


def test_a_token_lives_as_long_as_it_was_made_for(reg: Registry, ann: Caller) -> None:
    secret = tokens.create_token(reg, "ann", "read", ttl_s=600)
    put_ahead(reg, "tokens")
    assert clock.set_to_now(reg) == 2  # with the token of `ann`
    assert tokens.authenticate(reg, secret).name == "ann"
    with reg.db.read() as session:
        token = session.scalars(select(Token).where(Token.expires_at.is_not(None))).one()
    assert token.expires_at is not None
    assert timedelta(seconds=500) < token.expires_at - utc_now() <= timedelta(seconds=600)


def test_a_running_job_may_still_finish_its_packs(reg: Registry) -> None:
    """gc takes a job that began after a pack for one that cannot finish this pack."""
    old = utc_now() - timedelta(hours=2)
    with reg.db.write() as session:
        session.add(Domain(id=1, key=PUBLIC_DOMAIN_KEY))
        session.flush()
        session.add(Pack(id="a" * 32, domain_id=1, state="writing", created_at=old))
        session.add(Job(id="b" * 32, kind="ingest", payload={}, state="running", started_at=old))
    assert plan_gc(reg).abandoned == ()
    put_ahead(reg, "jobs")
    clock.set_to_now(reg)
    plan = plan_gc(reg)
    assert (plan.doubts, plan.abandoned) == ((), ())


def test_a_temporary_object_of_the_future_is_deleted_a_day_later(
    reg: Registry, tmp_path: Path
) -> None:
    left = reg.data_dir / "objects" / ".tmp" / "left"
    left.write_bytes(b"x")
    os.utime(left, (time.time() + 3e8,) * 2)
    with opened_registry(tmp_path):
        assert left.stat().st_mtime < time.time() + 60
    os.utime(left, (time.time() - 90_000,) * 2)
    with opened_registry(tmp_path):
        assert not left.exists()
    assert n_objects(reg) == 0


def test_for_every_date_in_the_database_it_is_decided_whether_it_may_lie_ahead() -> None:
    decided = {table.name for table in clock.TABLES} | {"tokens"}
    for table in Base.metadata.sorted_tables:
        dates = {c.name for c in table.columns if isinstance(c.type, UtcDateTime)}
        if table.name in decided:
            assert dates <= clock.WRITTEN | clock.ENDS | clock.DUE, table.name
        else:
            assert not dates or table.name in HISTORY, table.name
