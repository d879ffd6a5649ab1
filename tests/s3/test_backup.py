"""Backups into a bucket and out of one: a hub in a folder, and a hub whose objects lie in S3."""

import secrets
from pathlib import Path

import pytest

from deltahub.registry.maintenance.backup.place import PlaceRefused
from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.maintenance.restore.target import RestoreRefused
from support.registry.backing_up import findings, names, restored
from support.registry.collecting import is_clean
from support.registry.ingested import push_ingested, read_file
from support.registry.opened import caller, opened_registry
from support.registry.small_hub import BASE, PATH, TUNE, fill
from support.service.seaweedfs import S3Service


def another(store_url: str) -> str:
    """An empty prefix of the same bucket: each bucket takes volumes of the service."""
    return f"{store_url.rpartition('/')[0]}/{secrets.token_hex(4)}"


def test_a_hub_in_a_folder_is_backed_up_to_a_bucket(store_url: str, tmp_path: Path) -> None:
    with opened_registry(tmp_path) as reg:
        ann = caller(reg, "ann")
        revisions = fill(reg, ann)
        first = backup(reg, store_url)
        assert first.snapshot.findings == ()
        more = push_ingested(reg, ann, "ann/more", {"more.bin": b"more" * 5_000_000})
        second = backup(reg, store_url, trust_copies=True, keep=1)
        assert second.copied.n_copied == 1
        assert second.pruned is not None
        assert second.pruned.snapshots == 1
        with pytest.raises(PlaceRefused, match="holds no backups"):
            names(another(store_url))
    assert (names(store_url), findings(store_url)) == ([second.snapshot.name], [])
    restored(store_url, tmp_path / "elsewhere")
    with opened_registry(tmp_path / "elsewhere") as reg:
        assert read_file(reg, revisions["ann/tune"], PATH) == TUNE
        assert read_file(reg, more, "more.bin") == b"more" * 5_000_000
        assert is_clean(reg)


def test_a_place_may_have_its_own_service_and_key(
    service: S3Service, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, secret = (
        service.environment[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
    )
    credentials = tmp_path / "credentials"
    credentials.write_text(
        f"[backup]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    )
    # What the hub uses for its own bucket: another service and another key.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("DELTAHUB_S3_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    place = f"{store_url}?endpoint={service.endpoint}&region=us-east-1&profile=backup"
    with opened_registry(tmp_path) as reg:
        fill(reg, caller(reg, "ann"))
        backup(reg, place)
    assert findings(place) == []


def test_a_hub_in_a_bucket_is_backed_up_to_a_folder_and_restored_to_a_bucket(
    store_url: str, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    with opened_registry(tmp_path, store_url=store_url) as reg:
        revisions = fill(reg, caller(reg, "ann"))
        for wrong in (store_url, f"{store_url}/backup"):
            with pytest.raises(PlaceRefused, match="one in the other"):
                backup(reg, wrong)
        assert backup(reg, str(place)).snapshot.findings == ()
    with pytest.raises(RestoreRefused, match="not empty"):
        restored(place, tmp_path / "refused", store_url=store_url)
    target = another(store_url)
    restored(place, tmp_path / "elsewhere", store_url=target)
    with opened_registry(tmp_path / "elsewhere") as reg:
        assert read_file(reg, revisions["ann/base"], PATH) == BASE
        assert read_file(reg, revisions["ann/tune"], PATH) == TUNE
        assert is_clean(reg)
    assert [path for path in (tmp_path / "elsewhere/data/objects").rglob("*/*")] == []
