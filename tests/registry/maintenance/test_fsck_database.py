"""fsck finds damage of the database itself, says what else it can, and gc deletes nothing then."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deltahub.registry import Registry, Settings
from deltahub.registry.commands import maintenance
from support.models import tiny_models as tiny
from support.registry.ingested import push_ingested
from support.registry.opened import DATABASE, caller, opened_registry

PAGE_BYTES = 4096


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    with opened_registry(folder) as reg:
        ann = caller(reg, "ann")
        files = {"model.safetensors": tiny.to_file(tiny.base()), "notes.txt": b"hello"}
        push_ingested(reg, ann, "ann/base", files)
    return folder / "data"


@pytest.fixture
def data(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "data")
    return tmp_path / "data"


def sql(data: Path, *statements: str) -> None:
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        for statement in statements:
            assert connection.execute(statement).rowcount != 0, statement
        connection.commit()


def overwrite_root(data: Path, name: str, page: bytes) -> None:
    """Write over the beginning of the first page of a table or an index."""
    with closing(sqlite3.connect(data / DATABASE)) as connection:
        found = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,))
        (root,) = found.fetchone()
        assert connection.execute("PRAGMA page_size").fetchone() == (PAGE_BYTES,)
    with (data / DATABASE).open("r+b") as file:
        file.seek((root - 1) * PAGE_BYTES)
        file.write(page)


def empty_index(data: Path, name: str) -> None:
    """Take all rows out of an index. Its page is sound: a leaf (10) with no cells."""
    overwrite_root(data, name, bytes([10, 0, 0, 0, 0]) + PAGE_BYTES.to_bytes(2, "big") + b"\0")


def fsck(data: Path, *more: str) -> Result:
    return CliRunner().invoke(maintenance.fsck, ["--data-dir", str(data), *more])


def findings(data: Path, *more: str) -> list[tuple[str, str]]:
    done = fsck(data, "--json", *more)
    found = json.loads(done.stdout)["findings"]
    assert done.exit_code == (1 if found else 0)
    return [(each["code"], each["text"]) for each in found]


def test_rows_that_an_index_lacks_are_found(data: Path) -> None:
    assert findings(data, "--read-data") == []
    empty_index(data, "ix_tree_entries_file_id")
    found = findings(data, "--read-data")
    assert ("database_damaged", "row 1 missing from index ix_tree_entries_file_id") in [
        (code, text.split(": ")[1]) for code, text in found
    ]
    assert "restore the database from a backup" in found[0][1]


def test_gc_deletes_nothing_that_a_damaged_index_may_hide(data: Path) -> None:
    """By this index, gc finds the trees that list a file."""
    empty_index(data, "ix_tree_entries_file_id")
    before = sorted(path for path in (data / "objects").rglob("*") if path.is_file())
    options = ["--data-dir", str(data), "--lease", "0", "--grace", "0", "--apply"]
    refused = CliRunner().invoke(maintenance.gc, options)
    assert refused.exit_code == 1
    assert "doubt: the database is damaged" in refused.stdout
    assert "run deltahub fsck" in refused.stdout
    assert sorted(path for path in (data / "objects").rglob("*") if path.is_file()) == before


def test_a_broken_page_is_found_and_other_checks_go_on(data: Path) -> None:
    with Registry.open(Settings(data_dir=data)) as reg:
        pack = next(iter(reg.store.list("packs/")))
        reg.store.delete(pack.key)
    overwrite_root(data, "refs", b"\xff" * 200)
    found = dict(findings(data, "--read-data"))
    assert {"database_damaged", "check_stopped", "pack_missing"} <= found.keys()
    assert "checking rows stopped, so more may be wrong there" in found["check_stopped"]
    assert pack.key.rpartition("/")[2] in found["pack_missing"]


@pytest.mark.parametrize("table", ["files", "packs", "tensors", "frames", "landings", "xorbs"])
def test_no_broken_table_ends_fsck_with_a_traceback(data: Path, table: str) -> None:
    overwrite_root(data, table, b"\xff" * 200)
    assert "database_damaged" in dict(findings(data, "--read-data"))


@pytest.mark.parametrize("damage", [b"this is no database " * 500, b"", b"SQLite format 3\0" * 99])
def test_a_file_that_is_no_database_is_a_finding(data: Path, damage: bytes) -> None:
    (data / DATABASE).write_bytes(damage)
    found = findings(data)
    assert found[0][0] == "database_damaged"
    assert "from a backup" in found[0][1]
    assert len(found) < 4, "the checks of rows would only repeat it"


def test_much_damage_is_said_in_few_lines(data: Path) -> None:
    row = "hex(randomblob(32)), 'k', '{', 'done', 0, '2026-01-01 00:00:00'"
    names = "id, kind, payload, state, is_cancel_asked, created_at"
    sql(
        data,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)"
        f" INSERT INTO jobs ({names}) SELECT {row} FROM n",
    )
    for index in ("ix_jobs_newest", "ix_jobs_state"):
        overwrite_root(data, index, bytes([10, 0, 0, 0, 0]) + PAGE_BYTES.to_bytes(2, "big"))
    found = [code for code, _ in findings(data)]
    assert found.count("database_damaged") == 101
    assert found.count("row_undecodable") == 100
    assert len(found) < 250


def test_references_to_missing_rows_are_counted(data: Path) -> None:
    sql(data, "DELETE FROM users")
    found = [text for code, text in findings(data) if code == "row_reference"]
    assert "1 rows of tokens refer to rows of users that are missing: row 1" in found


@pytest.mark.parametrize(
    ("statement", "place", "why"),
    [
        ("UPDATE users SET created_at = 'soon'", "row 1 of users: created_at", "no time"),
        ("UPDATE packs SET size = 'large'", "row 1 of packs: size", "text where an integer"),
        ("UPDATE users SET name = CAST(x'ff' AS TEXT)", "row 1 of users: name", "no UTF-8"),
        ("UPDATE jobs SET payload = '['", "row 1 of jobs: payload", "no JSON object"),
        ("UPDATE packs SET hash = 'text'", "row 1 of packs: hash", "text where bytes"),
    ],
)
def test_values_that_the_hub_cannot_read_are_found(
    data: Path, statement: str, place: str, why: str
) -> None:
    sql(data, statement)
    found = [text for code, text in findings(data, "--read-data") if code == "row_undecodable"]
    assert any(text.startswith(f"{place} cannot be read") and why in text for text in found), found
