"""A hub at work is backed up, lost with all its disks, and restored.

Several backups, one of them killed: tests/campaigns/test_backup.py.
"""

from pathlib import Path

from support.service.lost_hub import lose_and_restore


def test_a_hub_that_was_lost_with_all_its_disks_comes_back(tmp_path: Path) -> None:
    lose_and_restore(tmp_path, n_backups=1)
