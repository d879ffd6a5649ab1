"""A query of any length ends soon after the client that waits for it has disconnected."""

import threading
from contextvars import copy_context
from pathlib import Path

import pytest
from sqlalchemy import text

from deltahub.registry import cancellation
from deltahub.registry.cancellation import Cancellation
from deltahub.registry.db.session import Database
from deltahub.registry.errors import Cancelled

ENDLESS = text(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
)


def test_an_endless_query_ends_with_its_client(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.sqlite3'}")
    database.write_engine.connect().close()  # makes the file
    client = Cancellation()

    def ask() -> None:
        cancellation.use(client)
        with database.read() as session:
            threading.Timer(0.2, client.cancel).start()
            session.execute(ENDLESS)

    try:
        with pytest.raises(Cancelled, match="disconnected"):
            copy_context().run(ask)
        # The connection serves the next request, whose client is there.
        with database.read() as session:
            assert session.scalar(text("SELECT 1")) == 1
    finally:
        database.close()
