"""The URL of a store: what it may say, and what is refused with which reason."""

from pathlib import Path

import pytest

from deltahub.registry.store_url import S3Location, overlap


def test_a_url_names_bucket_prefix_and_service() -> None:
    url = "s3://models/team/hub/?endpoint=https://s3.example.com:9000&region=eu-1&profile=hub"
    assert S3Location.parse(url) == S3Location(
        "models", "team/hub/", "https://s3.example.com:9000", "eu-1", "hub"
    )
    assert S3Location.parse("s3://models").prefix == ""


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("models/hub", "is written s3://BUCKET/PREFIX"),
        ("s3:///hub", "is written s3://BUCKET/PREFIX"),
        ("https://s3.example.com/models", "is written s3://BUCKET/PREFIX"),
        ("s3://key:secret@models/hub", "credentials do not belong"),
        ("s3://Models_1/hub", "no name of a bucket"),
        ("s3://models/a b", "no prefix of keys"),
        ("s3://models/a/../b", "no prefix of keys"),
        ("s3://models/hub?key=1", "no option of a store"),
    ],
)
def test_a_wrong_url_is_refused_with_its_reason(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        S3Location.parse(url)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("s3://bbb/hub", "s3://bbb/hub/", True),
        ("s3://bbb/hub", "s3://bbb/hub/new", True),
        ("s3://bbb", "s3://bbb/hub", True),
        ("s3://bbb/hub", "s3://bbb/hub2", False),
        ("s3://bbb/hub/one", "s3://bbb/hub/two", False),
        ("s3://bbb/hub", "s3://ccc/hub", False),
        ("s3://bbb/hub", "s3://bbb/hub?region=eu-1&profile=x", True),
        ("s3://bbb/hub?endpoint=http://one:80/", "s3://bbb/hub?endpoint=http://ONE", True),
        ("s3://bbb/hub?endpoint=http://one", "s3://bbb/hub?endpoint=http://two", False),
        ("s3://bbb/hub?endpoint=https://default.example", "s3://bbb/hub", True),
    ],
)
def test_places_of_one_bucket_overlap_if_one_prefix_begins_with_the_other(
    one: str, other: str, is_same: bool
) -> None:
    for a, b in ((one, other), (other, one)):
        assert overlap(a, b, "https://default.example") == is_same


def test_aws_is_one_service_whatever_its_endpoint_is_called() -> None:
    regional = "s3://bbb/hub?endpoint=https://s3.eu-west-1.amazonaws.com"
    assert overlap(regional, "s3://bbb", None)


def test_folders_overlap_if_one_lies_in_the_other_also_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "objects").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "objects")
    assert overlap(tmp_path / "link", tmp_path / "disk" / "objects" / "backup", None)
    assert overlap(tmp_path / "disk", tmp_path / "link", None)
    assert not overlap(tmp_path / "disk" / "obj", tmp_path / "link", None)
    assert not overlap("s3://bbb", tmp_path, None)
