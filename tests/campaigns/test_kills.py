"""Killed at any step, nothing that was acknowledged is lost and fsck finds nothing.

Every named failpoint kills once. Of the other kills a third are at later hits of failpoints, the
rest at random moments of a real workload; each takes the whole process group with SIGKILL. They
are dealt out to campaigns, each with a data folder of its own, that run side by side.
DELTAHUB_KILLS raises the number for longer ones. A few kills: tests/system/test_kills.py.
"""

import itertools
import os
import random
import time
from pathlib import Path

import pytest

from deltahub.registry import failpoints
from support.registry.crash_rounds import check, write_models, zygote
from support.registry.crash_workload import ROUNDS_KEPT

KILLS = int(os.environ.get("DELTAHUB_KILLS", "100"))
# Kills at the others are in tests/registry/reencode/withdraw, tests/registry/maintenance, tests/s3.
ELSEWHERE = (
    "bucket_spool.",
    "withdraw.",
    "repair.",
    "backup.",
    "restore.",
    "deferred.",
    "move.",
    "database_move.",
    "salvage.",
    "scrub.",
    "copies.",
)
POINTS = [name for name in failpoints.ALL if not name.startswith(ELSEWHERE)]
MORE_KILLS = max(KILLS - len(POINTS), 0)
LATER_KILLS = MORE_KILLS // 3
RANDOM_KILLS = MORE_KILLS - LATER_KILLS
N_FAMILIES = 12
# As many as there are cores: each begins with the start of a process and ends with two rounds that
# nobody kills and a check of everything.
FAILPOINT_CAMPAIGNS = 2

# A campaign is one test: minutes by nature, and more of them beside other tests.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder, N_FAMILIES)
    return folder


def share_of(n: int, share: int, n_shares: int) -> int:
    """n things dealt out: how many of them this share has."""
    return len(range(n)[share::n_shares])


@pytest.mark.parametrize("share", range(FAILPOINT_CAMPAIGNS))
def test_kills_at_every_failpoint_lose_nothing(tmp_path: Path, models: Path, share: int) -> None:
    names = POINTS[share::FAILPOINT_CAMPAIGNS]
    n_kills = len(names) + share_of(LATER_KILLS, share, FAILPOINT_CAMPAIGNS)
    with zygote(tmp_path, models) as workers:
        left = list(names)
        for _ in range(3):  # what one round has nothing to do for, a later one has
            left = [name for name in left if not workers.work(name)]
        assert left == []
        # Later hits of a place are in the middle of other steps.
        hits = workers.count_hits()
        later = [(at, name) for name in names for at in range(2, hits.get(name, 0) + 1)]
        random.Random(share).shuffle(later)
        for at, name in itertools.cycle(later):
            if workers.n_killed >= n_kills:
                break
            workers.work(f"{name}:{at}")
        assert workers.n_killed == n_kills
        workers.work()
        assert check(tmp_path) > 0


def test_kills_at_random_moments_lose_nothing(tmp_path: Path, models: Path) -> None:
    chance = random.Random(7)
    with zygote(tmp_path, models) as workers:
        for _ in range(ROUNDS_KEPT + 1):
            begun = time.monotonic()
            workers.work()
            round_s = time.monotonic() - begun
        while workers.n_killed < RANDOM_KILLS:
            # A round begins with what the one before has left; few would live to the end.
            workers.work(kill_after_s=chance.uniform(0.01, 0.6 * round_s))
        workers.work()
        assert check(tmp_path) > 0
