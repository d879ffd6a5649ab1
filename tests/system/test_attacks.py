"""A hub under attack goes on serving a user who works, and stays within its memory.

DELTAHUB_ATTACK_S=60 attacks for a minute, on a machine that does nothing else, and also requires
that 99 of 100 requests of the user take less than a second. DELTAHUB_SEED draws the same attacks.
"""

import os
import random
import time
from pathlib import Path

import pytest

from deltahub.registry.access import tokens, users
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from support.service.attacks import Visitor, fill, peak_bytes, under_attack
from support.service.hub import served_hub

SECONDS = float(os.environ.get("DELTAHUB_ATTACK_S", "0"))
SEED = int(os.environ.get("DELTAHUB_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
MOST_BYTES = 512 << 20


@pytest.mark.long
def test_a_user_is_served_while_others_attack(tmp_path: Path) -> None:
    print(f"DELTAHUB_SEED={SEED}")
    with (tmp_path / "hub.log").open("wb") as log, served_hub(tmp_path / "data", log=log) as hub:
        fill(hub, n_models=30 if SECONDS else 4, n_entries=25_000 if SECONDS else 2_000)
        with Registry.open(Settings(data_dir=hub.data_dir)) as reg:
            made = {}
            for name in ("ann", "eve", "mallory"):
                users.create_user(reg, name)
                made[name] = tokens.create_token(reg, name, "write")
        hub.create("ann/m", token=made["ann"])
        hub.create("eve/m", token=made["eve"])
        visitor = Visitor(hub, made["ann"], "ann/m")
        end = time.monotonic() + (SECONDS or 5)
        with under_attack(hub, [made["eve"], made["mallory"]], SEED):
            number = 0
            while time.monotonic() < end:
                visitor.work(number)
                number += 1
        print(
            f"{len(visitor.waits_s)} requests of the user: p50 {visitor.wait_s(0.5):.3f} s, "
            f"p99 {visitor.wait_s(0.99):.3f} s; the server's peak is "
            f"{peak_bytes(hub.process.pid) >> 20} MiB"
        )
        assert peak_bytes(hub.process.pid) < MOST_BYTES
        assert visitor.wait_s(0.99) < (1 if SECONDS else 10)
    assert "Traceback" not in (tmp_path / "hub.log").read_text()
