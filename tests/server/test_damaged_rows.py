"""A damaged database answers data_lost and says what to do, at both doors and in every route."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from deltahub.registry import Registry
from deltahub.server.app import create_app
from support.registry.opened import caller, opened_registry, push


@pytest.fixture
def reg(tmp_path: Path) -> Iterator[Registry]:
    with opened_registry(tmp_path) as registry:
        push(registry, caller(registry, "ann"), "ann/model", {"a.txt": b"1"})
        yield registry


DAMAGE = [
    "UPDATE revisions SET created_at = '2026-99-01'",
    "UPDATE revisions SET message = CAST(x'ff41' AS TEXT)",
    "UPDATE files SET size = 'one'",
    "UPDATE repositories SET is_private = 'no'",
]


@pytest.mark.parametrize("statement", DAMAGE)
def test_a_damaged_row_is_data_lost_and_no_outage(reg: Registry, statement: str) -> None:
    with closing(sqlite3.connect(reg.data_dir / "deltahub.sqlite3")) as connection:
        assert connection.execute(statement).rowcount > 0
        connection.commit()
    client = TestClient(create_app(reg), base_url="http://localhost")
    ours = client.get("/v1/repositories/ann/model/revision")
    assert (ours.status_code, ours.json()["error"]["code"]) == (500, "data_lost")
    assert "deltahub fsck" in ours.json()["error"]["message"]
    assert "Retry-After" not in ours.headers
    theirs = client.get("/api/models/ann/model?blobs=true")
    assert (theirs.status_code, theirs.headers["X-Error-Code"]) == (500, "data_lost")
    assert "deltahub fsck" in theirs.json()["error"]
