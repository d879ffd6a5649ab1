"""Where a store lies: `s3://BUCKET/PREFIX?endpoint=URL&region=NAME&profile=NAME`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, urlsplit

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*")
_OPTIONS = ("endpoint", "region", "profile")


@dataclass(frozen=True)
class S3Location:
    """A bucket, and the prefix of the store's keys, which is empty or ends with a slash.

    endpoint, region, profile: "" for those of the settings, or of boto3's own chain.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    profile: str = ""

    @classmethod
    def parse(cls, url: str) -> Self:
        """ValueError, whose message says which part is wrong."""
        parts = urlsplit(url)
        prefix = parts.path.strip("/")
        if parts.scheme != "s3" or not parts.netloc:
            raise ValueError("an S3 store is written s3://BUCKET/PREFIX")
        if "@" in parts.netloc:
            raise ValueError("credentials do not belong in the URL; boto3 finds them elsewhere")
        if not _BUCKET.fullmatch(parts.netloc):
            raise ValueError(f"{parts.netloc!r} is no name of a bucket")
        if prefix and (not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/"))):
            raise ValueError(f"{prefix!r} is no prefix of keys: letters, digits and !_.*'()-")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options.keys() - set(_OPTIONS):
            raise ValueError(f"{name!r} is no option of a store; there are {', '.join(_OPTIONS)}")
        if "@" in options.get("endpoint", ""):
            raise ValueError("credentials do not belong in the endpoint")
        return cls(parts.netloc, f"{prefix}/" if prefix else "", **options)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def overlap(one: str | Path, other: str | Path, endpoint: str | None) -> bool:
    """Whether two places, each a URL or a folder, are the same or one lies inside the other.

    Whoever lists or deletes what is in the outer one would find what belongs to the inner one.
    endpoint: of URLs that name none. ValueError if a URL is wrong.
    """
    if isinstance(one, Path) and isinstance(other, Path):
        one, other = one.resolve(), other.resolve()
        return one.is_relative_to(other) or other.is_relative_to(one)
    if isinstance(one, Path) or isinstance(other, Path):
        return False
    a, b = S3Location.parse(one), S3Location.parse(other)
    if (a.bucket, _service(a, endpoint)) != (b.bucket, _service(b, endpoint)):
        return False
    return a.prefix.startswith(b.prefix) or b.prefix.startswith(a.prefix)


def _service(location: S3Location, endpoint: str | None) -> str:
    """The service that a bucket's name belongs to; "" for AWS, whose names are its own."""
    parts = urlsplit(location.endpoint or endpoint or "")
    host = (parts.hostname or "").lower()
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return ""
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{host}:{port}" if host else ""
