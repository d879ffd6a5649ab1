"""See support/databases/more_lists.py."""

from pathlib import Path

from support.databases.more_lists import check_upgrade


def test_a_hub_of_the_version_before_has_its_models_in_the_new_lists(tmp_path: Path) -> None:
    check_upgrade(tmp_path)
