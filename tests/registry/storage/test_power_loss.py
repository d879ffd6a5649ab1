"""The power fails while a hub works: fsck is clean, nothing acknowledged is lost.

At any moment: tests/campaigns/test_power_loss.py.
"""

from pathlib import Path

from support.stores.power_loss import survive_power_loss


def test_the_power_may_fail_at_every_tenth_moment(tmp_path: Path) -> None:
    survive_power_loss(tmp_path, every=10, goes_on_every=30)
