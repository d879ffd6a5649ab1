"""`deltahub user token`."""

from dataclasses import asdict
from pathlib import Path
from typing import get_args

import click

from deltahub.registry.access import tokens
from deltahub.registry.access.caller import Scope
from deltahub.registry.access.keys.s3_keys import keys_of_token
from deltahub.registry.access.keys.signing_key import (
    KEY_FILE,
    SigningSettings,
    fingerprint,
    signing_key,
)
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.commands.users.opened import opened, show
from deltahub.registry.data_folder import SERVE_LOCK
from deltahub.registry.errors import InvalidRequest
from deltahub.registry.leases.locks import others
from deltahub.registry.registry import Registry

DAY_S = 86400


@click.group()
def token() -> None:
    """Manage tokens."""


@token.command("create")
@click.argument("name")
@click.option(
    "--scope", type=click.Choice(get_args(Scope)), default="write", show_default=True,
    help="read, write (everything the user's roles allow) or admin (the whole hub, for admins).",
)  # fmt: skip
@click.option("--ttl-days", type=click.FloatRange(min=0, min_open=True), help="Default: for ever.")
@click.option("--label", default="", help="What the token is for.")
@data_dir_option
@json_option
def create_token(
    name: str, scope: Scope, ttl_days: float | None, label: str, data_dir: Path, as_json: bool
) -> None:
    """Make a token for the user NAME and print it, this once."""
    ttl_s = None if ttl_days is None else max(1, round(ttl_days * DAY_S))
    with opened(data_dir) as reg:
        secret = tokens.create_token(reg, name, scope, label, ttl_s)
    show(as_json, {"user": name, "scope": scope, "token": secret}, secret)


@token.command("list")
@click.argument("name", required=False)
@data_dir_option
@json_option
def list_tokens(name: str | None, data_dir: Path, as_json: bool) -> None:
    """List the tokens of the user NAME, or of everybody; never their secrets."""
    with opened(data_dir, to_read=True) as reg:
        found = tokens.list_tokens(reg, name)
    rows = [
        {
            "id": row.id, "user": row.user, "scope": row.scope, "label": row.label,
            "created_at": row.created_at.isoformat(),
            "expires_at": None if row.expires_at is None else row.expires_at.isoformat(),
        }
        for row in found
    ]  # fmt: skip
    lines = (
        f"{row.id:>5}  {row.user}  {row.scope}  "
        f"{'never expires' if row.expires_at is None else f'until {row.expires_at:%F %T} UTC'}"
        f"  {row.label}".rstrip()
        for row in found
    )
    show(as_json, {"items": rows}, "\n".join(lines) or "there are no tokens")


@token.command("s3")
@click.argument("token_id", type=int)
@data_dir_option
@json_option
def show_s3_keys(token_id: int, data_dir: Path, as_json: bool) -> None:
    """Print the keys with which S3 clients read what the token with this number may read.

    They end with the token. Whoever holds the token gets them by `deltahub token s3`, too.
    """
    with opened(data_dir) as reg:
        keys = keys_of_token(reg, token_id, _key_of_servers(reg))
    text = f"AWS_ACCESS_KEY_ID={keys.access_key_id}\nAWS_SECRET_ACCESS_KEY={keys.secret_access_key}"
    show(as_json, {"token_id": token_id, **asdict(keys)}, text)


@token.command("revoke")
@click.argument("token_id", type=int)
@data_dir_option
@json_option
def revoke_token(token_id: int, data_dir: Path, as_json: bool) -> None:
    """Make the token with this number useless at once."""
    with opened(data_dir) as reg:
        tokens.revoke_token(reg, token_id)
    show(as_json, {"revoked": token_id}, f"revoked token {token_id}")


def _key_of_servers(reg: Registry) -> bytes:
    """The hub's signing key. InvalidRequest if its servers have another: they refuse its keys."""
    secret = SigningSettings().signing_key
    ways = (
        "give this command their DELTAHUB_SERVER_SIGNING_KEY, or ask a server, with the token, by"
        " `deltahub token s3`"
    )
    if secret is None and not (reg.data_dir / KEY_FILE).exists():
        raise InvalidRequest(
            f"{reg.data_dir} has no {KEY_FILE}, which a server makes that has no key in its"
            f" settings: {ways}"
        )
    key = signing_key(reg.data_dir, secret)
    if any(about.get("signing_key") != fingerprint(key) for about in others(reg, SERVE_LOCK)):
        raise InvalidRequest(f"the hub's servers sign with another key than this command: {ways}")
    return key
