"""A restore checks its bucket before it begins, and leaves a target that it refuses as it was."""

from pathlib import Path

import pytest

from deltahub.registry.maintenance.backup.run import backup
from deltahub.registry.maintenance.restore.target import RestoreRefused, require_apart
from deltahub.registry.storage.base import StoreUnavailable
from support.registry.backing_up import restored
from support.registry.opened import caller, opened_registry
from support.registry.small_hub import fill
from support.service.s3_faults import S3Faults
from support.service.seaweedfs import S3Service


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with opened_registry(tmp_path / "lost") as reg:
        fill(reg, caller(reg, "ann"))
        backup(reg, str(tmp_path / "place"))
    return tmp_path / "place"


def test_a_wrong_bucket_leaves_no_folder_and_does_not_hold_up_the_right_one(
    place: Path, service: S3Service, store_url: str, tmp_path: Path
) -> None:
    service.client().put_object(Bucket=service.bucket, Key="taken/file", Body=b"1")
    new = tmp_path / "above" / "new"
    for wrong, error in (
        ("s3://there-is-none-of-this-name/x", StoreUnavailable),
        (f"s3://{service.bucket}/taken", RestoreRefused),
    ):
        with pytest.raises(error):
            restored(place, new, store_url=wrong)
        assert not new.parent.exists()
    restored(place, new, store_url=store_url)


def test_an_empty_folder_that_was_there_stays_and_gets_no_file(
    place: Path, store_url: str, tmp_path: Path
) -> None:
    data_dir = tmp_path / "new" / "data"
    data_dir.mkdir(parents=True)
    data_dir.chmod(0o755)
    with pytest.raises(StoreUnavailable):
        restored(place, tmp_path / "new", store_url="s3://there-is-none-of-this-name/x")
    assert list(data_dir.iterdir()) == []
    assert data_dir.stat().st_mode & 0o777 == 0o755
    restored(place, tmp_path / "new", store_url=store_url)


def test_a_bucket_that_cannot_be_written_to_does_not_hold_up_the_right_one(
    place: Path, faults: S3Faults, store_url: str, tmp_path: Path
) -> None:
    faults.refuse("PutObject", 403, "AccessDenied")
    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        restored(place, tmp_path / "new", store_url=f"{store_url}/a?endpoint={faults.endpoint}")
    assert not (tmp_path / "new").exists()
    restored(place, tmp_path / "new", store_url=store_url)


def test_a_restore_that_has_begun_to_copy_is_repeated_with_the_same_bucket(
    place: Path, faults: S3Faults, store_url: str, tmp_path: Path
) -> None:
    through = f"{store_url}?endpoint={faults.endpoint}"

    # The mark is put first, then the objects.
    faults.then("PutObject", lambda: faults.refuse("PutObject", 403, "AccessDenied"))
    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        restored(place, tmp_path / "new", store_url=through)
    with pytest.raises(RestoreRefused, match="half of a restore"):
        restored(place, tmp_path / "new", store_url=f"{store_url}2")
    with pytest.raises(RestoreRefused, match="half of a restore"):
        restored(place, tmp_path / "new")
    restored(place, tmp_path / "new", store_url=through)


def test_objects_do_not_go_below_those_of_the_lost_hub(store_url: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with opened_registry(tmp_path / "lost", store_url=store_url) as reg:
        fill(reg, caller(reg, "ann"))
        backup(reg, str(place))
    with pytest.raises(RestoreRefused, match="may come back"):
        restored(place, tmp_path / "new", store_url=f"{store_url}/new")
    assert not (tmp_path / "new").exists()
    restored(place, tmp_path / "new", store_url=f"{store_url}-new")


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        ("s3://hubs/hub1/new", True),
        ("s3://hubs", True),
        ("s3://hubs/hub1?endpoint=http://one:9000", False),  # the same, which has to be empty
        ("s3://hubs/hub12", False),
        ("s3://hubs/hub1/new?endpoint=http://two:9000", False),
        ("s3://other/hub1/new", False),
    ],
)
def test_what_lies_below_or_above_a_place_of_the_lost_hub(url: str, is_refused: bool) -> None:
    lost = ["s3://elsewhere/hub", "s3://hubs/hub1"]
    if is_refused:
        with pytest.raises(RestoreRefused, match="s3://hubs/hub1"):
            require_apart(url, lost, "http://one:9000")
    else:
        require_apart(url, lost, "http://one:9000")
