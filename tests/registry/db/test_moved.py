"""A folder whose database was moved to PostgreSQL holds no hub without the new URL."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from deltahub.client.cli.commands import group
from deltahub.registry import Registry, Settings
from deltahub.registry.errors import Unavailable
from support.registry.opened import DATABASE, caller, opened_registry


@pytest.fixture
def moved(tmp_path: Path) -> Path:
    with opened_registry(tmp_path) as reg:
        caller(reg, "ann")
    data = tmp_path / "data"
    (data / DATABASE).rename(data / f"{DATABASE}.moved")
    return data


def test_it_is_not_opened_and_nothing_is_made(moved: Path) -> None:
    before = sorted(moved.iterdir())
    for how in (Registry.open, Registry.open_to_read):
        with pytest.raises(Unavailable, match=rf"{DATABASE}\.moved.*DELTAHUB_DATABASE_URL"):
            how(Settings(data_dir=moved))
    assert sorted(moved.iterdir()) == before


@pytest.mark.parametrize(
    "command", ["user add bea", "user list", "gc", "fsck", "db show", "db upgrade", "store show"]
)
def test_commands_say_where_it_went(moved: Path, command: str) -> None:
    refused = CliRunner().invoke(group, [*command.split(), "--data-dir", str(moved)])
    assert refused.exit_code in (1, 2)
    assert "DELTAHUB_DATABASE_URL" in refused.stderr
    assert not (moved / DATABASE).exists()


def test_the_old_name_makes_it_a_hub_again(moved: Path) -> None:
    (moved / f"{DATABASE}.moved").rename(moved / DATABASE)
    with Registry.open(Settings(data_dir=moved)) as reg:
        assert caller(reg, "ann").name == "ann"
