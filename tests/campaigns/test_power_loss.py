"""The power fails at any moment of a hub's work: fsck is clean, nothing acknowledged is lost.

At every tenth moment: tests/registry/storage/test_power_loss.py.
"""

from pathlib import Path

import pytest

from support.stores.power_loss import survive_power_loss


@pytest.mark.long
def test_the_power_may_fail_at_any_moment(tmp_path: Path) -> None:
    survive_power_loss(tmp_path, every=1, goes_on_every=3)
