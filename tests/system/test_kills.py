"""Killed at a few steps of its work, or with its worker, a hub loses nothing.

tests/campaigns/test_kills.py does so at every failpoint and at random moments, and
tests/campaigns/test_kill_campaign.py kills clients and garbage collections, too.
"""

from pathlib import Path

import pytest

from support.registry.crash_rounds import check, write_models, zygote
from support.service.kill_campaign import KillCampaign

# The publication of frames, a repack and a deletion: one round has each to do, or the next one.
POINTS = ("ingest.publish.after_commit", "repack.before_commit", "gc.pack.after_delete")


def test_kills_at_three_failpoints_lose_nothing(tmp_path: Path) -> None:
    models = tmp_path / "trained"
    models.mkdir()
    write_models(models, len(POINTS))
    with zygote(tmp_path, models) as workers:
        left = list(POINTS)
        for _ in range(3):  # what one round has nothing to do for, a later one has
            left = [name for name in left if not workers.work(name)]
        assert left == []
        workers.work()
        assert check(tmp_path) > 0


@pytest.mark.long
def test_what_was_acknowledged_survives_a_kill_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    campaign = KillCampaign(tmp_path, seed=1, victims=["hub"])
    campaign.run(1)
    campaign.end()
