"""Signed links and tokens."""

import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deltahub.registry.access.keys.signing_key import KEY_FILE
from deltahub.registry.errors import Unauthorized
from deltahub.registry.storage.base import StoreError
from deltahub.server.signing import Signer


def test_what_was_signed_comes_back(tmp_path: Path) -> None:
    signer = Signer.of_folder(tmp_path)
    claims = signer.verify("upload", signer.sign("upload", {"user": 7, "oid": "ab"}, 60))
    assert (claims["user"], claims["oid"]) == (7, "ab")


def test_it_is_good_for_one_purpose_only_and_until_its_end(tmp_path: Path) -> None:
    signer = Signer.of_folder(tmp_path)
    with pytest.raises(Unauthorized, match="not made by this hub"):
        signer.verify("download", signer.sign("upload", {"user": 7}, 60))
    with pytest.raises(Unauthorized, match="expired"):
        signer.verify("upload", signer.sign("upload", {"user": 7}, -1))


def test_it_is_not_good_for_years_because_the_clock_was_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = Signer.of_folder(tmp_path)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3e8)
    token = signer.sign("download", {}, 60)
    signer.verify("download", token)
    monkeypatch.setattr(time, "time", lambda: now)
    with pytest.raises(Unauthorized, match="ask the hub for a new one"):
        signer.verify("download", token)


def test_no_byte_of_it_can_be_changed(tmp_path: Path) -> None:
    signer = Signer.of_folder(tmp_path)
    token = signer.sign("upload", {"user": 7}, 60)
    for i, char in enumerate(token):
        changed = token[:i] + ("A" if char != "A" else "B") + token[i + 1 :]
        with pytest.raises(Unauthorized):
            signer.verify("upload", changed)
    for odd in ("", ".", "a.b", "é.é"):
        with pytest.raises(Unauthorized):
            signer.verify("upload", odd)


def test_a_folder_has_one_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        signers = list(pool.map(Signer.of_folder, [tmp_path] * 8))
    token = signers[0].sign("upload", {}, 60)
    for signer in signers:
        signer.verify("upload", token)
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("key", [b"", b"short", bytes(32), b"long" * 99])
def test_a_damaged_key_is_refused_because_it_can_be_guessed(tmp_path: Path, key: bytes) -> None:
    (tmp_path / KEY_FILE).write_bytes(key)
    with pytest.raises(StoreError, match=r"signing\.key is damaged: delete it"):
        Signer.of_folder(tmp_path)


def test_another_hub_signs_otherwise(tmp_path: Path) -> None:
    hubs = [tmp_path / "a", tmp_path / "b"]
    for hub in hubs:
        hub.mkdir()
    one, other = map(Signer.of_folder, hubs)
    with pytest.raises(Unauthorized):
        other.verify("upload", one.sign("upload", {}, 60))
