"""The kill campaign on a hub whose objects lie in SeaweedFS, which is killed now and then, too.

DELTAHUB_KILLS=100 kills 100 times; DELTAHUB_SEED draws the same pushes, victims and pauses again.
DELTAHUB_KILL_FOLDER names a folder that keeps the campaign: with it, a campaign that was stopped
goes on, and one with more kills continues the last.
"""

import os
import random
import time
from pathlib import Path

import pytest

from support.service.kill_campaign import KillCampaign
from support.service.seaweedfs import kept_seaweedfs

KILLS = int(os.environ.get("DELTAHUB_KILLS", "4"))
SEED = int(os.environ.get("DELTAHUB_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
# A campaign of hundreds of kills takes an hour.
LONGEST_S = 6 * 3600
BUCKET = "hub"


@pytest.mark.long
@pytest.mark.timeout(LONGEST_S)
def test_what_was_acknowledged_survives_every_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.environ.get("DELTAHUB_KILL_FOLDER", tmp_path))
    print(f"DELTAHUB_SEED={SEED} DELTAHUB_KILLS={KILLS} DELTAHUB_KILL_FOLDER={folder}")
    server = kept_seaweedfs(folder / "seaweedfs")

    def restart() -> None:
        server.kill()
        time.sleep(0.5)
        server.start()

    try:
        service = server.start()
        if not (folder / "data").exists():
            service.make_bucket(BUCKET)
        environment = {
            **service.environment,
            "DELTAHUB_STORE_URL": f"s3://{BUCKET}/hub",
            "DELTAHUB_CACHE": str(folder / "cache"),
            "HF_HOME": str(folder / "hf-home"),
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        campaign = KillCampaign(folder, SEED, restart_store=restart)
        campaign.run(KILLS)
        campaign.end()
    finally:
        server.kill()
