"""Where a store lies: `s3://BUCKET/PREFIX?endpoint=URL&region=NAME&profile=NAME`."""

import re
from dataclasses import dataclass
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
