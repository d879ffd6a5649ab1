"""A hub, its worker, its gc and its clients are killed again and again while real clients push.

DELTAHUB_KILLS=300 kills 300 times; DELTAHUB_SEED draws the same pushes, victims and pauses again.
The same on an S3 service: tests/s3/test_kill_campaign.py. One kill: tests/system/test_kills.py.
"""

import os
import random
from pathlib import Path

import pytest

from support.service.kill_campaign import KillCampaign

KILLS = int(os.environ.get("DELTAHUB_KILLS", "5"))
SEED = int(os.environ.get("DELTAHUB_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


@pytest.mark.long
def test_what_was_acknowledged_survives_every_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"DELTAHUB_SEED={SEED} DELTAHUB_KILLS={KILLS}")
    monkeypatch.setenv("DELTAHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    campaign = KillCampaign(tmp_path, SEED)
    campaign.run(KILLS)
    campaign.end()
