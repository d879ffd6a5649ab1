"""A hub's database moves from SQLite to PostgreSQL whole, or not at all."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count as numbers
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, select, text

from deltahub.registry import Registry, Settings, failpoints
from deltahub.registry.access import tokens
from deltahub.registry.db import schema
from deltahub.registry.db.models import Repository, Revision
from deltahub.registry.db.session import Database
from deltahub.registry.db.tables.suspects import Suspect
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.maintenance.database_move import run as moving
from deltahub.registry.maintenance.database_move.refused import DatabaseMoveRefused
from deltahub.registry.maintenance.database_move.run import Moved, move, rehearse
from support.databases.full_hub import PATH, TUNES, fill, highest_suspect, shown
from support.registry.collecting import collect, is_clean
from support.registry.histories import ingest_all
from support.registry.ingested import push_ingested, run_replans
from support.registry.opened import DATABASE, caller, opened_registry, push
from support.service.postgresql import new_database, postgresql_server
from support.service.store_commands import run_command

_NAMES = (f"moved{number}" for number in numbers())
_SCHEMA = """
SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'trigger', tgrelid::regclass || '.' || tgname,
    tgenabled::text || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'column', table_name || '.' || column_name, data_type || is_nullable
    || coalesce(column_default, '') FROM information_schema.columns WHERE table_schema = 'public'
ORDER BY 1, 2
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql_server() as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    return new_database(server, next(_NAMES))


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A data folder with a small hub that is stopped."""
    with opened_registry(tmp_path) as reg:
        push(reg, caller(reg, "ann"), "ann/m", {"a.txt": b"a", "b.txt": b"b"})
    return tmp_path / "data"


def moved(data_dir: Path, url: str) -> Moved:
    return move(Settings(data_dir=data_dir), url, tell_nobody)


def tell_nobody(text: str, *, is_step: bool = False) -> None:
    pass


def table_names(url: str) -> list[str]:
    engine = create_engine(url)
    with engine.connect() as connection:
        names = inspect(connection).get_table_names()
    engine.dispose()
    return names


def run(url: str, statement: str) -> list[object]:
    engine = create_engine(url)
    with engine.begin() as connection:
        result = connection.exec_driver_sql(statement)
        rows = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return list(rows)


def change(data_dir: Path, statement: str) -> None:
    """Write what no hub would write."""
    with closing(sqlite3.connect(data_dir / DATABASE)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(statement)
        connection.commit()


def rows_of(data_dir: Path) -> list[str]:
    with closing(sqlite3.connect(data_dir / DATABASE)) as connection:
        connection.text_factory = lambda text: text.decode(errors="replace")
        return list(connection.iterdump())


def test_a_hub_is_the_same_after_the_move_and_goes_on(url: str, tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        secret = fill(reg)
        last = highest_suspect(reg)
        assert backup(reg, str(tmp_path / "place")).is_first
        before = shown(reg)
    assert len(before["files"]) > 300
    result = moved(tmp_path / "data", url)
    assert result.old_file == tmp_path / "data" / f"{DATABASE}.moved"
    assert result.rows["repositories"] == 5
    assert result.rows["private_names"] == 1
    with opened_registry(tmp_path, database_url=url) as reg:
        assert shown(reg) == before
        assert is_clean(reg)
        again = backup(reg, str(tmp_path / "place"))
        assert not again.is_first
        assert again.copied.n_copied == 0
        ann = tokens.authenticate(reg, secret)
        with reg.db.read() as session:
            highest = session.scalar(select(Revision.id).order_by(Revision.id.desc()).limit(1))
        push(reg, ann, "ann/base", {"new.txt": b"new"})
        with reg.db.read() as session:
            newest = session.scalar(select(Revision.id).order_by(Revision.id.desc()).limit(1))
            suspects = session.scalars(select(Suspect.id).order_by(Suspect.id.desc())).all()
        assert highest is not None
        assert newest == highest + 1
        assert suspects[0] > last, "an id that a collection has seen is not given again"
        ingest_all(reg)
        run_replans(reg)
        push_ingested(reg, ann, "ann/more", {PATH: TUNES[1]}, base="ann/base")
        collect(reg, revision_grace_s=0)
        assert is_clean(reg)
        after = shown(reg)
        assert all(after["files"][key] == sha256 for key, sha256 in before["files"].items())


def test_the_schema_is_the_one_that_the_migrations_make(url: str, server: str, hub: Path) -> None:
    moved(hub, url)
    made = new_database(server, next(_NAMES))
    with closing(Database(made)) as database:
        schema.upgrade(database)
    assert run(url, _SCHEMA) == run(made, _SCHEMA)
    planned = run(url, "SELECT reltuples FROM pg_class WHERE relname = 'tree_entries'")
    assert planned == [(2.0,)], "the planner has statistics"


def test_a_hub_on_the_old_file_does_not_start(url: str, hub: Path) -> None:
    moved(hub, url)
    served = run_command(hub, "serve", "--port", "0", environment={})
    assert served.returncode == 1
    for word in ("moved to PostgreSQL", f"{DATABASE}.moved", "DELTAHUB_DATABASE_URL"):
        assert word in served.stderr
    assert not (hub / DATABASE).exists()


def test_a_rehearsal_checks_beside_a_running_hub_and_copies_nothing(url: str, hub: Path) -> None:
    with Registry.open(Settings(data_dir=hub)) as reg:
        found = rehearse(Settings(data_dir=hub), url, tell_nobody)
        push(reg, caller(reg, "ann"), "ann/m", {"c.txt": b"c"})
    assert found.rows["tree_entries"] == 2
    assert found.old_file is None
    assert table_names(url) == []
    assert run(url, "SELECT 1 FROM pg_extension WHERE extname = 'pg_trgm'") == []
    run(url, "CREATE TABLE photos (id integer)")
    with pytest.raises(DatabaseMoveRefused, match="name an empty database"):
        rehearse(Settings(data_dir=hub), url, tell_nobody)


def test_a_target_with_tables_is_refused_and_left_alone(url: str, hub: Path) -> None:
    run(url, "CREATE TABLE photos (id integer)")
    before = rows_of(hub)
    with pytest.raises(DatabaseMoveRefused, match="is not empty: name an empty database"):
        moved(hub, url)
    assert table_names(url) == ["photos"]
    assert rows_of(hub) == before


def test_the_database_of_another_hub_is_refused(url: str, hub: Path, tmp_path: Path) -> None:
    with opened_registry(tmp_path / "other", database_url=url):
        pass
    with pytest.raises(DatabaseMoveRefused, match="is not empty"):
        moved(hub, url)


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE revisions SET message = 'a' || char(0)", "revisions, row 1, message: .*NUL"),
        (
            "UPDATE repositories SET name = CAST(x'6dff' AS TEXT)",
            "repositories, row 1, name: text that is no UTF-8",
        ),
        (
            "UPDATE revisions SET number = 3000000000",
            "revisions, row 1, number: 3000000000 is out of the range of 32 bits",
        ),
        (
            f"UPDATE tokens SET label = '{'x' * 201}'",
            "tokens, row 1, label: text of 201 characters, and the column holds 200",
        ),
        (
            "UPDATE jobs SET payload = '{\"a\": NaN}'",
            "jobs, row 1, payload: text that is no JSON: it has NaN",
        ),
        ("UPDATE users SET created_at = 'today'", "users, row 1, created_at: text that is no time"),
        ("DELETE FROM namespaces", "repositories, row 1: refers to a row of namespaces"),
    ],
)
def test_rows_that_postgresql_cannot_hold_are_named(
    url: str, hub: Path, statement: str, fault: str
) -> None:
    change(hub, statement)
    before = rows_of(hub)
    with pytest.raises(DatabaseMoveRefused, match=fault):
        moved(hub, url)
    with pytest.raises(DatabaseMoveRefused, match=fault):
        rehearse(Settings(data_dir=hub), url, tell_nobody)
    assert table_names(url) == []
    assert rows_of(hub) == before


def test_faults_of_several_tables_are_named_together(url: str, hub: Path) -> None:
    change(hub, "UPDATE users SET name = CAST(x'ff' AS TEXT)")
    change(hub, "UPDATE files SET note = char(0)")
    with pytest.raises(DatabaseMoveRefused) as refused:
        moved(hub, url)
    for place in ("users, row 1, name", "files, row 1, note", "files, row 2, note"):
        assert place in str(refused.value)


def test_a_difference_between_the_databases_is_found(
    url: str, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trigger that fires while rows are copied, for example."""
    restore = moving.Target.restore_schema

    def restore_and_change(target: moving.Target) -> None:
        restore(target)
        target._run("UPDATE repositories SET downloads = downloads + 1")

    monkeypatch.setattr(moving.Target, "restore_schema", restore_and_change)
    with pytest.raises(DatabaseMoveRefused, match="other rows of repositories than were sent"):
        moved(hub, url)
    assert table_names(url) == []


@pytest.mark.parametrize(
    "failpoint", ["database_move.after_table:20", "database_move.before_commit"]
)
def test_a_move_that_is_killed_leaves_an_empty_target_and_the_hub(
    url: str, hub: Path, failpoint: str
) -> None:
    before = rows_of(hub)
    died = run_command(hub, "db", "move", "--to", url, environment={}, failpoint=failpoint)
    assert died.returncode == -9
    assert rows_of(hub) == before
    with Registry.open(Settings(data_dir=hub)) as reg:
        push(reg, caller(reg, "ann"), "ann/m", {"c.txt": b"c"})
    assert table_names(url) == []
    assert moved(hub, url).rows["revisions"] == 2


def test_a_move_that_is_killed_at_its_end_is_finished_by_the_next(url: str, hub: Path) -> None:
    failpoint = "database_move.after_commit"
    assert failpoint in failpoints.ALL
    died = run_command(hub, "db", "move", "--to", url, environment={}, failpoint=failpoint)
    assert died.returncode == -9
    assert (hub / DATABASE).exists()
    assert moved(hub, url).was_there
    assert not (hub / DATABASE).exists()


def test_a_hub_that_went_on_after_such_a_kill_keeps_its_file(url: str, hub: Path) -> None:
    failpoint = "database_move.after_commit"
    run_command(hub, "db", "move", "--to", url, environment={}, failpoint=failpoint)
    with Registry.open(Settings(data_dir=hub)) as reg:
        push(reg, caller(reg, "ann"), "ann/m", {"c.txt": b"c"})
    with pytest.raises(DatabaseMoveRefused, match="one of the two was changed since"):
        moved(hub, url)
    assert (hub / DATABASE).exists()


def test_a_hub_that_starts_on_the_target_meanwhile_finds_it_filled(url: str, hub: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from deltahub.registry import Registry, Settings\n"
        "Registry.open(Settings(data_dir=Path(sys.argv[1]), database_url=sys.argv[2])).close()\n"
    )
    starting: list[subprocess.Popen[bytes]] = []

    def start(text: str, *, is_step: bool = False) -> None:
        if not starting:
            starting.append(subprocess.Popen([sys.executable, "-c", code, str(hub), url]))

    move(Settings(data_dir=hub), url, start)
    assert starting[0].wait(60) == 0
    with Registry.open(Settings(data_dir=hub, database_url=url)) as reg, reg.db.read() as session:
        assert len(session.scalars(select(Repository)).all()) == 1


def test_old_commits_of_a_killed_hub_move_too(url: str, hub: Path) -> None:
    """They lie in the write-ahead log, and not in the file yet."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from deltahub.registry import Registry, Settings\n"
        "from deltahub.registry.access.users import create_user\n"
        "create_user(Registry.open(Settings(data_dir=Path(sys.argv[1]))), 'late')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(hub)], check=True)
    assert (hub / f"{DATABASE}-wal").stat().st_size > 0
    moved(hub, url)
    assert ("late",) in run(url, "SELECT name FROM users")
    assert [path.name for path in hub.glob(f"{DATABASE}*")] == [f"{DATABASE}.moved"]


def test_text_of_every_kind_comes_back(url: str, hub: Path) -> None:
    odd = "tab\t, line\n, \\N, %s, :name, {}, \u0301, \U0001f600, 'quotes\"" + "x" * 100_000
    with Registry.open(Settings(data_dir=hub)) as reg, reg.db.write() as session:
        session.execute(text("UPDATE revisions SET message = :odd"), {"odd": odd})
        escapes = '{"a": "\\u0000 \\ud800", "b": 1e400, "c": [1.50, -0.0, true, null]}'
        session.execute(text("UPDATE jobs SET payload = :json"), {"json": escapes})
    moved(hub, url)
    assert run(url, "SELECT DISTINCT message FROM revisions") == [(odd,)]
    assert run(url, "SELECT DISTINCT payload::text FROM jobs") == [(escapes,)]
