"""A hub at work is backed up, lost with all its disks, and restored: every file that it had said to
have before a backup began comes back through HTTP. One backup: tests/system/test_backup.py.
"""

from pathlib import Path

import pytest

from support.service.lost_hub import lose_and_restore

N_BACKUPS = 2


@pytest.mark.timeout(600)
def test_a_hub_that_was_lost_with_all_its_disks_comes_back(tmp_path: Path) -> None:
    lose_and_restore(tmp_path, N_BACKUPS)
