"""docker-compose.scale.yml by processes: each part is killed again and again in real work.

DELTAHUB_KILLS=100 kills in 100 rounds; DELTAHUB_SEED draws the same operations, parts and pauses
again. DELTAHUB_CAMPAIGN_FOLDER names a folder that keeps the campaign: with it, a campaign that was
interrupted goes on, and one with more kills continues the last. One kill of each kind in a fixed
order: test_scaled_hub.py.
"""

import os
import random
from pathlib import Path

import pytest

from support.containers.scaled_kills import PARTS, ScaledKills

# Each part once.
KILLS = int(os.environ.get("DELTAHUB_KILLS", f"{len(PARTS)}"))
SEED = int(os.environ.get("DELTAHUB_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
# A campaign of hundreds of kills takes hours.
LONGEST_S = 6 * 3600


@pytest.mark.timeout(LONGEST_S)
def test_what_was_acknowledged_survives_every_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.environ.get("DELTAHUB_CAMPAIGN_FOLDER", tmp_path)).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"DELTAHUB_SEED={SEED} DELTAHUB_KILLS={KILLS} DELTAHUB_CAMPAIGN_FOLDER={folder}")
    monkeypatch.setenv("DELTAHUB_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_HOME", str(folder / "hf-home"))
    ScaledKills(folder, SEED).run(KILLS)
