"""Killed at any step on one machine, an upload goes on at another, with all that was acknowledged.

DELTAHUB_KILLS raises the number of kills at random moments; DELTAHUB_SEED draws the same again.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from deltahub.registry import Caller, Registry, failpoints
from deltahub.registry.access import tokens, users
from deltahub.registry.errors import Conflict
from deltahub.registry.maintenance.fsck.run import fsck
from deltahub.registry.maintenance.gc.apply import apply_gc
from deltahub.registry.maintenance.gc.plan import plan_gc
from deltahub.registry.spools.bucket import sizes
from deltahub.registry.uploads.landing import LandingStatus, begin, receive
from support.registry.opened import sha256_of
from support.service.machines import SharedHub
from support.stores.upload_contract import landed, spooled

KILLS = int(os.environ.get("DELTAHUB_KILLS", "8"))
SEED = int(os.environ.get("DELTAHUB_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
PART = 5 << 20
LARGE = random.Random(2).randbytes(3 * PART + 1000)
SMALL = bytes(range(256)) * 40
POINTS = [
    name for name in failpoints.ALL if name.startswith(("bucket_spool.", "landing.complete."))
]

# Receives the file from the offset on, in pieces; notes each offset that the hub acknowledged.
RECEIVER = """
import sys
from datetime import timedelta
from pathlib import Path
from deltahub.registry import Registry, Settings
from deltahub.registry.access.tokens import authenticate
from deltahub.registry.spools.bucket import leases, rows, sizes
from deltahub.registry.uploads.landing import receive
sizes.PART_BYTES, sizes.RECORDED_TOGETHER = 5 << 20, 1
rows.LEASE, leases.RENEW_S = timedelta(seconds=2), 0.5
folder, secret, sha256, source, noted, *offsets = sys.argv[1:]
data, offsets = Path(source).read_bytes(), [int(offset) for offset in offsets]
with Registry.open(Settings(data_dir=Path(folder))) as reg:
    alice = authenticate(reg, secret)
    for start, end in zip(offsets, offsets[1:]):
        whole = memoryview(data)
        pieces = [whole[at : min(at + 100_000, end)] for at in range(start, end, 100_000)]
        state = receive(reg, alice, sha256, len(data), start, pieces)
        with open(noted, "a") as file:
            file.write(f"{state.received}\\n")
"""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "PART_BYTES", PART)


@pytest.fixture
def reg(shared: SharedHub, tmp_path: Path) -> Iterator[Registry]:
    with shared.opened(tmp_path / "here") as reg:
        yield reg


@pytest.fixture
def secret(reg: Registry) -> str:
    users.create_user(reg, "alice")
    return tokens.create_token(reg, "alice", "write")


class Upload:
    """One upload, and the processes that receive it. state: as a process that lives sees it."""

    def __init__(
        self, shared: SharedHub, reg: Registry, secret: str, folder: Path, data: bytes
    ) -> None:
        self.alice: Caller = tokens.authenticate(reg, secret)
        self.data = data
        self._shared = shared
        self._reg = reg
        self._secret = secret
        self._folder = folder
        self._source = folder / sha256_of(data)
        self._source.write_bytes(data)
        self._noted = folder / f"{sha256_of(data)}.noted"

    def process(
        self, machine: str, offsets: list[int], failpoint: str | None = None
    ) -> "subprocess.Popen[bytes]":
        words = [self._folder / machine, self._secret, sha256_of(self.data), self._source]
        variables = self._shared.variables
        if failpoint is not None:
            variables["DELTAHUB_FAILPOINT"] = failpoint
        command = [sys.executable, "-c", RECEIVER, *map(str, [*words, self._noted, *offsets])]
        return subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL)

    @property
    def acknowledged(self) -> int:
        noted = self._noted
        return max(map(int, noted.read_text().split()), default=0) if noted.exists() else 0

    @property
    def state(self) -> LandingStatus:
        state = begin(self._reg, self.alice, sha256_of(self.data), len(self.data))
        assert state.received >= self.acknowledged
        return state

    def end(self) -> None:
        """Send the rest here, as soon as the lease of the killed process has ended."""
        deadline, size = time.monotonic() + 60, len(self.data)
        while not (state := self.state).is_complete:
            rest = [self.data[state.received :]]
            try:
                receive(self._reg, self.alice, state.sha256, size, state.received, rest)
            except Conflict:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        assert landed(self._reg, state) == self.data


def collect_leftovers(reg: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("plan", "leftovers"):
        place = f"deltahub.registry.maintenance.gc.{module}.LEFTOVER_AGE"
        monkeypatch.setattr(place, timedelta(days=-1))
    assert list(fsck(reg, read_data=True)) == []
    apply_gc(reg, plan_gc(reg, lease_s=0))
    assert spooled(reg) == []


@pytest.mark.parametrize("data", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("failpoint", POINTS)
def test_an_upload_goes_on_elsewhere_after_a_kill_at_any_step(
    shared: SharedHub,
    reg: Registry,
    secret: str,
    tmp_path: Path,
    data: bytes,
    failpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upload = Upload(shared, reg, secret, tmp_path, data)
    killed = upload.process("there", [0, len(data) * 2 // 5, len(data)], failpoint)
    assert killed.wait(60) == -9 or upload.acknowledged == len(data)
    upload.end()
    collect_leftovers(reg, monkeypatch)


@pytest.mark.timeout(3600)
def test_uploads_come_through_kills_at_random_moments_on_machines_in_turn(
    shared: SharedHub,
    reg: Registry,
    secret: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    print(f"DELTAHUB_SEED={SEED} DELTAHUB_KILLS={KILLS}")
    chance, n_killed = random.Random(SEED), 0
    while n_killed < KILLS:
        data = chance.randbytes(chance.choice([1000, PART, 4 * PART + 5]))
        upload = Upload(shared, reg, secret, tmp_path, data)
        for _ in range(3):
            begun = upload.state.received
            offsets = [begun, *sorted(chance.randint(begun, len(data)) for _ in range(3))]
            process = upload.process(chance.choice(["a", "b"]), [*offsets, len(data)])
            try:
                process.wait(chance.uniform(1.0, 4.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                n_killed += 1
        upload.end()
    collect_leftovers(reg, monkeypatch)
