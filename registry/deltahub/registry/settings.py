"""All settings with units and defaults, read once from environment variables DELTAHUB_*."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import click
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from deltahub.codecs.protocol import Effort

MIB = 1 << 20
GIB = 1 << 30
DAY_S = 86400
# Settings of these names are secrets, besides those of the type SecretStr.
_SECRET_ENDS = ("_token", "_secret", "_password", "_signing_key")


# How the names of variables end whose values no error shows.
_SECRETS = ("_TOKEN", "_KEY", "_SECRET")


class WrongSetting(click.ClickException):
    """An environment variable or an argument has an invalid value."""

    exit_code = 2
    code = "wrong_setting"


class EnvironmentSettings(BaseSettings):
    """Settings whose errors (WrongSetting) name the invalid variable."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            prefix = self.model_config.get("env_prefix", "")
            faults = [_named_fault(prefix, each) for each in error.errors()]
            raise WrongSetting("; ".join(faults)) from None  # its text has secrets


@dataclass(frozen=True)
class ShownSetting:
    """A setting as it is in force, for people. value, default: as text; a secret's is hidden."""

    variable: str
    value: str | None
    default: str | None
    about: str
    is_changed: bool
    is_secret: bool


def shown_settings(settings: EnvironmentSettings) -> list[ShownSetting]:
    """All settings of a process, in the order of its class. No secret is among their texts."""
    prefix = settings.model_config.get("env_prefix", "")
    shown = []
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        is_secret = isinstance(value, SecretStr) or name.endswith(_SECRET_ENDS)
        text = None if value is None else "set" if is_secret else _printable(value)
        default = None if field.default is None else _printable(field.default)
        shown.append(
            ShownSetting(
                f"{prefix}{name}".upper(), text, default, field.description or "",
                value != field.default, is_secret,
            )
        )  # fmt: skip
    return shown


def _named_fault(prefix: str, error: ErrorDetails) -> str:
    text = _without_secrets(error["msg"])
    if not error["loc"]:  # settings that do not fit together: the message names them
        return text
    variable = f"{prefix}{'_'.join(map(str, error['loc'])).upper()}"
    value = "***" if variable.endswith(_SECRETS) else _printable(error["input"])
    return f"{variable}={value}: {text}"


def _printable(value: object) -> str:
    """A value on one line, without the user name and password of a URL."""
    text = _without_secrets(str(value))
    return text[:200] if text.isprintable() else repr(text[:200])


def _without_secrets(text: str) -> str:
    return re.sub(r"//[^'\"]*@", "//***@", text)


class Settings(EnvironmentSettings):
    """One process's settings. Arguments win over the environment."""

    model_config = SettingsConfigDict(env_prefix="DELTAHUB_", frozen=True)

    data_dir: Path = Field(
        default=Path("deltahub-data"), description="Folder of the database, objects and spools."
    )
    database_url: str | None = Field(
        default=None,
        description="SQLAlchemy URL, of PostgreSQL `postgresql+psycopg://USER@HOST/NAME`; by"
        " default a SQLite file in data_dir.",
    )
    store_url: str | None = Field(
        default=None,
        description="Where a new hub's objects lie: `s3://BUCKET/PREFIX`; by default the folder"
        " `objects` in data_dir.",
    )
    store_cache_bytes: int = Field(
        default=16 * GIB,
        ge=0,
        description="Disk for copies of what was read from S3, in bytes; 0 keeps none.",
    )
    s3_endpoint: str | None = Field(default=None, description="URL of the S3 service, if not AWS.")
    s3_region: str | None = Field(default=None, description="Region; by default boto3's own.")
    s3_path_style: bool | None = Field(
        default=None, description="The bucket's name in the path; by default where s3_endpoint is."
    )
    s3_ca: Path | None = Field(default=None, description="Certificates that the service may have.")
    s3_encryption: Literal["", "AES256", "aws:kms"] = Field(
        default="", description="Server-side encryption to ask for; by default the bucket's own."
    )
    s3_kms_key: str | None = Field(default=None, description="Key of aws:kms.")
    s3_bucket_owner: str | None = Field(
        default=None, description="Account that must own the bucket, else requests are refused."
    )
    s3_link_endpoint: str | None = Field(
        default=None,
        description="URL of the S3 service for clients, which then read frames from there.",
    )
    s3_link_lifetime_s: int = Field(
        default=300, ge=1, le=7 * DAY_S, description="How long such a client's links work."
    )
    s3_parallel: int = Field(
        default=4, ge=1, le=64, description="Parts of 16 MiB that one process sends at once."
    )
    s3_connections: int = Field(default=16, ge=1, description="Connections that are kept open.")
    s3_timeout_s: float = Field(default=30.0, gt=0, description="Longest wait for the service.")
    s3_retry_s: float = Field(
        default=30.0, ge=0, description="How long a request that failed for a moment is repeated."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="Lines of the log of server and worker: text, or JSON objects."
    )
    host: str = Field(default="127.0.0.1", description="Address that `deltahub serve` binds.")
    port: int = Field(default=8377, ge=0, le=65535, description="Port; 0 takes a free one.")

    max_file_bytes: int = Field(default=1024 * GIB, ge=0, description="Largest file, in bytes.")
    max_header_bytes: int = Field(
        default=100_000_000, description="Largest safetensors header, in bytes."
    )
    max_tensors: int = Field(default=1_000_000, description="Most tensors in one file.")
    max_path_bytes: int = Field(default=1024, le=1024, description="Longest path, UTF-8 bytes.")
    max_entries: int = Field(default=1_000_000, description="Most entries in one revision.")
    max_operations: int = Field(default=25_000, description="Most operations in one commit.")
    max_message_bytes: int = Field(default=65_536, description="Longest commit message.")
    max_request_json_bytes: int = Field(
        default=16 * MIB, description="Largest JSON request body, in bytes."
    )
    max_recipe_bytes: int = Field(default=64 * MIB, description="Largest recipe, in bytes.")
    max_kit_bytes: int = Field(
        default=128 * MIB,
        ge=0,
        le=GIB,
        description="Largest discriminator of an adapter's kit, in bytes.",
    )
    max_query_tensors: int = Field(
        default=100_000, description="Most tensors in one query or frame request."
    )
    max_report_tensors: int = Field(
        default=150_000, description="Most tensors in one report of a revision."
    )
    max_decoded_bytes: int = Field(
        default=16 * GIB,
        description="Most bytes that one uploaded pack may decode to, or one recipe repeat.",
    )

    max_user_uploads: int = Field(
        default=250_000,
        ge=0,
        description="Most uploads of one user that no commit uses, and most xorbs.",
    )
    max_user_upload_bytes: int = Field(
        default=16_384 * GIB,
        ge=0,
        description="Most bytes of one user's uploads that no commit uses, and of the xorbs.",
    )
    max_shard_bytes: int = Field(
        default=8192 * GIB, ge=0, description="Most bytes of the files that one Xet shard names."
    )

    quota_repositories: int | None = Field(
        default=None, ge=0, description="Most repositories of a namespace without its own quota."
    )
    quota_stored_bytes: int | None = Field(
        default=None, ge=0, description="Most bytes that such a namespace stores."
    )
    quota_logical_bytes: int | None = Field(
        default=None, ge=0, description="Most bytes of its files, as they are pushed."
    )
    max_organizations: int = Field(
        default=10,
        ge=0,
        description="Up to how many organizations a user who is no administrator may make.",
    )
    revision_grace_s: int = Field(
        default=7 * DAY_S,
        ge=0,
        description="How long a revision that no branch or tag reaches can be taken back.",
    )
    hold_ttl_s: int = Field(
        default=DAY_S, description="How long an acknowledged tensor is kept without a commit."
    )
    upload_ttl_s: int = Field(
        default=DAY_S, description="How long an upload is kept without progress or a commit."
    )
    xet_epoch: int = Field(
        default=0,
        ge=0,
        description="Raised by one, Hugging Face clients forget which chunks this hub has.",
    )
    read_lease_s: int = Field(
        default=3600, description="Longest that a reader may use a location it has resolved."
    )

    scrub_days: float = Field(
        default=30.0,
        ge=0,
        description="The worker proves every stored byte once in so many days; 0: never.",
    )
    scrub_mb_per_s: float = Field(
        default=100.0, ge=0, description="Most MB that it reads for that in a second; 0: no limit."
    )
    second_copy_dependents: int = Field(
        default=10,
        ge=0,
        description="A pack that so many files depend on gets a second copy; 0: none does.",
    )

    max_depth: int = Field(default=8, ge=0, le=30, description="Longest chain of deltas.")
    pack_bytes: int = Field(default=128 * MIB, le=128 * MIB, description="Largest pack, in bytes.")
    cache_bytes: int = Field(
        default=64 * MIB, description="Decoded blocks that one process keeps, in bytes."
    )
    codec_threads: int = Field(default=1, ge=1, description="Threads that code one frame.")
    codec_effort: Literal["fast", "default", "max"] = Field(
        default="default", description="Work that is spent on coding a frame smaller."
    )

    @field_validator("database_url")
    @classmethod
    def _check_database_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        from sqlalchemy import make_url
        from sqlalchemy.exc import SQLAlchemyError

        try:
            make_url(url).get_dialect()
        except (SQLAlchemyError, ImportError, ValueError) as error:
            # The message leaves out the text of `error`, which may hold the password.
            way_out = "write postgresql+psycopg://HOST/NAME, with USER@ before HOST if need be"
            raise ValueError(f"no URL of a database that can be used here; {way_out}") from error
        return url

    @field_validator("store_url")
    @classmethod
    def _check_store_url(cls, url: str | None) -> str | None:
        if url is not None:
            from deltahub.registry.store_url import S3Location

            S3Location.parse(url)
        return url

    @field_validator("s3_link_endpoint")
    @classmethod
    def _check_link_endpoint(cls, url: str | None) -> str | None:
        if not url:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write https://HOST or http://HOST:PORT")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("the URL has no user, no query and no fragment")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _check_link_lifetime(self) -> Self:
        # A pack that a link names must not be deleted before the link has expired.
        if self.s3_link_endpoint and self.s3_link_lifetime_s > self.read_lease_s:
            raise ValueError(
                f"DELTAHUB_S3_LINK_LIFETIME_S={self.s3_link_lifetime_s} is longer than"
                f" DELTAHUB_READ_LEASE_S={self.read_lease_s}, so that links would lead to packs"
                " that gc has deleted: raise the lease, or shorten the lifetime"
            )
        return self

    @property
    def effort(self) -> Effort:
        return Effort[self.codec_effort.upper()]

    @property
    def effective_database_url(self) -> str:
        if self.database_url is not None:
            return self.database_url
        from sqlalchemy import URL

        # Not an f-string, because a folder's name may have characters that mean something in URLs.
        path = self.data_dir.resolve() / "deltahub.sqlite3"
        return URL.create("sqlite", database=str(path)).render_as_string()
