"""Opening a data folder: created folders, refused folders, and error messages."""

from pathlib import Path

import pytest

import deltahub.registry
from deltahub.registry import Registry, Settings
from deltahub.registry.catalog.lists.search import list_repositories
from deltahub.registry.errors import DataLost
from deltahub.registry.storage.base import StoreUnavailable
from support.registry.opened import caller, opened_registry, push


def test_what_the_package_exports_is_decided_here() -> None:
    rows = ["File", "Landing", "Repository", "Revision"]
    others = ["ANONYMOUS", "Caller", "Memo", "ReadSession", "Registry", "Settings"]
    assert sorted(deltahub.registry.__all__) == sorted(rows + others)


def test_a_folder_is_made_with_its_parents_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "data"
    with Registry.open(Settings(data_dir=folder)) as reg:
        assert {path.name for path in folder.iterdir() if path.is_dir()} == {
            "objects",
            "scratch",
            "spool",
        }
        assert reg.scratch.is_dir()
    assert folder.stat().st_mode & 0o077 == 0


def test_two_open_at_once_see_the_same(tmp_path: Path) -> None:
    with opened_registry(tmp_path) as one, opened_registry(tmp_path) as two:
        push(one, caller(one, "alice"), "alice/model", {"a": b"1"})
        assert [item.name for item in list_repositories(two, None).items] == ["alice/model"]


def test_the_environment_sets_what_no_argument_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAHUB_DATA_DIR", str(tmp_path / "from environment"))
    monkeypatch.setenv("DELTAHUB_HOLD_TTL_S", "60")
    assert Settings().data_dir == tmp_path / "from environment"
    settings = Settings(data_dir=tmp_path / "argument")
    assert (settings.data_dir, settings.hold_ttl_s) == (tmp_path / "argument", 60)
    assert settings.effective_database_url == f"sqlite:///{tmp_path}/argument/deltahub.sqlite3"


def test_a_file_in_place_of_the_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(StoreUnavailable, match=r"data: "):
        Registry.open(Settings(data_dir=tmp_path / "data"))


def test_a_damaged_database_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "deltahub.sqlite3").write_bytes(b"this is no database " * 500)
    with pytest.raises(DataLost, match="damaged"):
        Registry.open(Settings(data_dir=tmp_path / "data"))
