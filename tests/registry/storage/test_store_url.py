"""The URL of a store: what it may say, and what is refused with which reason."""

import pytest

from deltahub.registry.store_url import S3Location


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
