"""Lists of models on PostgreSQL: the same as on SQLite, by its own indexes of trigrams."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, make_url, text

from deltahub.registry import Registry, Settings
from deltahub.registry.access.repositories import find_namespace, find_repository
from deltahub.registry.catalog.lists.search import list_repositories
from deltahub.registry.errors import Unavailable
from support.databases.more_lists import check_upgrade
from support.registry.listing import check_lists, make_models
from support.registry.opened import caller, opened_registry, push
from support.service.postgresql import new_database


def test_every_list_has_what_its_caller_may_read_in_order(url: str, tmp_path: Path) -> None:
    with opened_registry(tmp_path, database_url=url) as reg:
        made, callers = make_models(reg)
        assert check_lists(reg, made, callers) > 1000
        ann = caller(reg, "ann")
        push(reg, ann, "ann/under_score", {"a": b"1"})
        push(reg, ann, "ann/underXscore", {"a": b"1"})
        found = list_repositories(reg, ann, search="under_score").items
        assert [item.name for item in found] == ["ann/under_score"]


def test_a_hub_of_the_version_before_has_its_models_in_the_new_lists(
    url: str, tmp_path: Path
) -> None:
    check_upgrade(tmp_path, database_url=new_database(url, "before"))


def test_a_hub_that_may_not_add_the_extension_says_who_adds_it(url: str, tmp_path: Path) -> None:
    server = create_engine(url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text("CREATE ROLE guest LOGIN"))
        connection.execute(text("CREATE DATABASE others"))
    theirs = make_url(url).set(database="others")
    owner = create_engine(theirs, isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        # All that the hub needs, but not the right to add an extension to the database.
        connection.execute(text("GRANT ALL ON SCHEMA public TO guest"))
    guest = theirs.set(username="guest").render_as_string(hide_password=False)
    settings = Settings(data_dir=tmp_path / "data", database_url=guest)
    with pytest.raises(Unavailable, match=r"pg_trgm.*CREATE EXTENSION pg_trgm.*start again"):
        Registry.open(settings)
    with owner.connect() as connection:
        connection.execute(text("CREATE EXTENSION pg_trgm"))
    with Registry.open(settings) as reg:
        assert list_repositories(reg, None).items == []
    owner.dispose()
    server.dispose()


def test_names_are_found_by_indexes_that_know_no_language(url: str, tmp_path: Path) -> None:
    asked = []
    with opened_registry(tmp_path, database_url=new_database(url, "of_names")) as reg:
        caller(reg, "Ann")

        @event.listens_for(reg.db.read_engine, "before_cursor_execute")
        def note(_1: object, _2: object, statement: str, values: object, *_: object) -> None:
            asked.append((statement, values))

        with reg.db.read() as session:
            assert find_namespace(session, "ANN") is not None
            assert find_repository(session, "ann/none") is None
            event.remove(reg.db.read_engine, "before_cursor_execute", note)
            session.execute(text("SET LOCAL enable_seqscan = off"))
            plans = [
                "\n".join(
                    row[0]
                    for row in session.connection().exec_driver_sql(f"EXPLAIN {statement}", values)
                )
                for statement, values in asked
                if "lower(" in statement
            ]
    assert len(plans) == 2
    assert all('.name COLLATE "C")' in statement for statement, _ in asked)
    for plan in plans:
        assert "ix_namespaces_lower_name" in plan
    assert "ix_repositories_lower_name" in plans[1]
