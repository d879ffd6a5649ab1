"""A pack of a real hub is lost, and a push after the repair brings the bytes back.

By every door, and without a repair: tests/campaigns/test_lost_packs.py.
"""

from pathlib import Path

import pytest

from support.service.lost_packs import (
    by_deltahub,
    hub_with_others,
    lose_a_base,
    repair_and_push,
    set_homes,
)


def test_after_the_repair_a_push_brings_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_homes(tmp_path, monkeypatch)
    with hub_with_others(tmp_path / "data") as hub:
        repair_and_push(hub, lose_a_base(hub, tmp_path, seed=1), by_deltahub)
