"""Settings of the HTTP layer, with units and defaults, read from DELTAHUB_SERVER_*."""

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from deltahub.registry.access.keys.signing_key import SigningSettings
from deltahub.registry.jobs.store_watch import PAUSE_S
from deltahub.registry.monitoring.access import MetricsSettings
from deltahub.server.connections.addresses import networks_of
from deltahub.server.connections.hosts import names_in
from deltahub.server.cross_origin import origins_in
from deltahub.server.public_url import checked_public_url


class ServerSettings(SigningSettings, MetricsSettings):
    """The HTTP layer's settings. Arguments override environment variables."""

    model_config = SettingsConfigDict(env_prefix="DELTAHUB_SERVER_", frozen=True)

    oidc_issuer: str | None = Field(
        default=None,
        description="Address of a provider of OpenID Connect, by whom people may log in.",
    )
    oidc_client_id: str = Field(default="", description="What the provider calls this hub.")
    oidc_client_secret: SecretStr | None = Field(
        default=None, description="What proves to the provider that this hub asks."
    )
    oidc_name: str = Field(
        default="single sign-on", min_length=1, max_length=60, description="Of the button."
    )
    oidc_creates_users: bool = Field(
        default=True, description="Whoever logs in by the provider first becomes a user."
    )
    oidc_email_domains: str = Field(
        default="",
        description="Domains, with commas between, of which people must have a verified e-mail "
        "address; by default any.",
    )
    oidc_groups: str = Field(
        default="",
        description="Groups at the provider, with commas between, of which people must be in one; "
        "by default any.",
    )
    decode_threads: int = Field(
        default=4, ge=1, description="Chunks of downloads that are decoded at once."
    )
    hot_base_bytes: int = Field(
        default=8 << 30,
        ge=0,
        description="Disk for blocks of bases as they are decoded, in bytes; below 64 MiB none.",
    )
    max_streams: int = Field(
        default=40,
        ge=1,
        description="Downloads under way at once, of up to 8 MiB each; others wait for idle_s.",
    )
    streams_per_user: int = Field(
        default=16,
        ge=1,
        description="Downloads under way at once of one user, or without a token of one address; "
        "others wait for idle_s.",
    )
    upload_threads: int = Field(
        default=32, ge=1, description="Uploads that are received at once; others wait for idle_s."
    )
    uploads_per_user: int = Field(
        default=16,
        ge=1,
        description="Uploads of one user that are received at once; others wait for idle_s.",
    )
    read_threads: int = Field(
        default=4,
        ge=1,
        description="Requests for names, lists, trees and reports that are answered at once; "
        "others wait for read_wait_s.",
    )
    reads_per_user: int = Field(
        default=2,
        ge=1,
        description="Such requests of one user, or without a token of one address, that are "
        "answered at once; others wait for read_wait_s.",
    )
    read_wait_s: float = Field(
        default=8.0,
        gt=0,
        description="Longest wait of such a request for its turn. Hugging Face clients give up "
        "after 10 s.",
    )
    page_bytes: int = Field(
        default=4 << 20,
        ge=0,
        description="Bytes of cards, configurations and headers after which a page of a list of "
        "models ends.",
    )
    page_entries: int = Field(
        default=100_000,
        ge=0,
        description="Entries of revisions after which a page of a list of models ends.",
    )
    max_headers_bytes: int = Field(
        default=32 << 20,
        ge=0,
        description="Most bytes of safetensors headers that one answer holds.",
    )
    lfs_part_bytes: int = Field(
        default=1 << 30,
        ge=1,
        description="Size of the parts in which Git LFS clients send larger files, in bytes.",
    )
    proof_threads: int = Field(
        default=2,
        ge=1,
        description="Packs and recipes of clients that are checked at once, of one user one less; "
        "others wait for idle_s.",
    )
    idle_s: float = Field(
        default=120.0,
        gt=0,
        description="Longest wait for a client to send headers, or to send or take a block; "
        "and of an upload, a download or a check for its turn.",
    )
    has_xet_downloads: bool = Field(
        default=True,
        description="Let the Hugging Face clients that are known to do so download by Xet.",
    )
    public_url: str | None = Field(
        default=None,
        description="Address that clients use, as https://hub.example.com, where a proxy that "
        "stands before the hub does not pass on Host and X-Forwarded-Proto; or with the path "
        "below which it has the hub, as https://example.com/hub.",
    )
    s3_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port at which S3 clients read models; 0 takes a free one; by default none.",
    )
    s3_url: str | None = Field(
        default=None,
        description="Address at which S3 clients read models, as https://s3.hub.example.com, where "
        "it is not that of the hub with the port of s3_port. Requests for its host name are S3's.",
    )
    hosts: str = Field(
        default="",
        description="Further host names of this hub, with commas between; * for any name.",
    )
    cors_origins: str = Field(
        default="",
        description="Origins, as https://app.example.com, with commas between, whose pages may "
        "call the hub from a browser, with a token in a header and never with cookies; * for all; "
        "by default none.",
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses and networks of proxies whose X-Forwarded-Proto and "
        "X-Forwarded-For are believed, with commas between; by default none.",
    )
    max_connections: int = Field(
        default=2048,
        ge=1,
        description="Connections that are open at once; fewer where the limit of open files is "
        "low.",
    )
    connections_per_address: int = Field(
        default=256,
        ge=1,
        description="Connections of one address that are open at once, except of trusted proxies.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Server processes of this machine, which share its address.",
    )
    has_embedded_worker: bool = Field(
        default=True, description="Start a worker process next to the server."
    )
    worker_restart_max_s: float = Field(
        default=30.0, gt=0, description="Longest pause before a dead worker is started again."
    )
    stop_grace_s: int = Field(
        default=10, ge=0, description="How long a stopping server lets transfers finish."
    )
    drain_s: float = Field(
        default=0.0,
        ge=0,
        description="How long a server that was asked to stop goes on to take requests, while "
        "/readyz says 503, so that load balancers turn to others.",
    )
    store_check_interval_s: float = Field(
        default=PAUSE_S,
        gt=0,
        description="Pause between two looks at whether the store of the objects answers, for "
        "/readyz and /v1/health. Each reads one small object.",
    )
    keep_alive_s: int = Field(
        default=30, ge=1, description="How long an idle connection is kept open."
    )

    @field_validator("oidc_client_secret", mode="before")
    @classmethod
    def _none_if_empty(cls, secret: object) -> object:
        return secret or None

    @field_validator("oidc_issuer")
    @classmethod
    def _check_issuer(cls, url: str | None) -> str | None:
        if not url:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ValueError("write https://HOST or https://HOST/PATH, as the provider says")
        if parts.query or parts.fragment:
            raise ValueError("an issuer has no query and no fragment")
        return url

    @model_validator(mode="after")
    def _check_client(self) -> Self:
        if self.oidc_issuer and not self.oidc_client_id:
            raise ValueError(
                "DELTAHUB_SERVER_OIDC_ISSUER needs DELTAHUB_SERVER_OIDC_CLIENT_ID: the provider"
                " gives it when you register this hub"
            )
        return self

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, url: str | None) -> str | None:
        return checked_public_url(url) if url else None

    @field_validator("s3_url")
    @classmethod
    def _check_s3_url(cls, url: str | None) -> str | None:
        checked = checked_public_url(url) if url else None
        if checked is not None and urlsplit(checked).path:
            raise ValueError("S3 clients sign the path that they ask for: write no path after it")
        return checked

    @model_validator(mode="after")
    def _check_s3_host(self) -> Self:
        if self.s3_url is not None and self.public_url is not None:
            own, of_hub = urlsplit(self.s3_url), urlsplit(self.public_url)
            if own.netloc == of_hub.netloc:
                raise ValueError(
                    f"DELTAHUB_SERVER_S3_URL has the host {own.netloc} of"
                    " DELTAHUB_SERVER_PUBLIC_URL: give S3 a host name or a port of its own"
                )
        return self

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, named: str) -> str:
        names_in(named)
        return named

    @field_validator("cors_origins")
    @classmethod
    def _check_cors_origins(cls, named: str) -> str:
        origins_in(named)
        return named

    @field_validator("trusted_proxies")
    @classmethod
    def _check_trusted_proxies(cls, named: str) -> str:
        # uvicorn would silently trust nobody for a misspelt address.
        networks_of(named)
        return named
