"""`deltahub login`, `deltahub whoami` and `deltahub token`."""

import dataclasses
import os
import sys

import click

from deltahub.client.api.credentials import (
    DEFAULT_URL,
    find_credentials,
    is_damaged,
    save_credentials,
)
from deltahub.client.cli.output import Output, hub_options, table
from deltahub.client.hub import Hub
from deltahub.client.progress import human_size
from deltahub.client.records import NamespaceRole

_DAY_S = 86400


@click.command()
@click.option("--url", help="The hub's address.")
@click.option("--token", help="Your token; asked for (or read from a pipe) if not given.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def login(url: str | None, token: str | None, is_json: bool) -> None:
    """Store a hub's address and your token, after checking that the hub knows the token.

    The file can be read by you alone. The environment's DELTAHUB_URL and DELTAHUB_TOKEN win
    over it.
    """
    is_asking = sys.stdin.isatty() and not is_json
    was_damaged = is_damaged()
    if url is None:
        without = os.environ.get("DELTAHUB_URL") or DEFAULT_URL
        known = without if was_damaged else find_credentials().url
        url = click.prompt("Hub", default=known) if is_asking else known
    if token is None:
        token = (
            click.prompt("Token", hide_input=True) if is_asking else sys.stdin.readline().strip()
        )
    if not token:
        raise click.UsageError("no token: give --token, or write it to the command's input")
    with Hub(url, token) as hub:
        found = hub.whoami()
        path = save_credentials(hub.url, token)
        lost = ", in place of a damaged file: log in again to other hubs" if was_damaged else ""
        Output(is_json=is_json).result(
            {"url": hub.url, "name": found.name, "scope": found.scope, "path": path},
            f"{found.name} at {hub.url}, scope {found.scope}; stored in {path}{lost}",
        )


def _used(namespace: NamespaceRole) -> str:
    """What the namespace uses, and may use where that has a limit."""
    used, may = namespace.used, namespace.limits
    if used.repositories is None:
        return ""  # an older hub does not tell
    repositories = "1 repository" if used.repositories == 1 else f"{used.repositories} repositories"
    parts = [
        repositories + ("" if may.repositories is None else f" of {may.repositories}"),
        _of(used.stored_bytes, may.stored_bytes) + " stored",
        _of(used.logical_bytes, may.logical_bytes) + " of files",
    ]
    return f" ({', '.join(parts)})"


def _of(used: int | None, limit: int | None) -> str:
    return human_size(used or 0) + ("" if limit is None else f" of {human_size(limit)}")


@click.command()
@hub_options
def whoami(hub: Hub, output: Output) -> None:
    """Show whose token this is, and where it may write."""
    found = hub.whoami()
    lines = [
        f"{found.name} at {hub.url}, scope {found.scope}" + (", admin" if found.is_admin else "")
    ]
    lines += [f"  {each.name}: {each.role}{_used(each)}" for each in found.namespaces]
    output.result({"url": hub.url, **dataclasses.asdict(found)}, *lines)


@click.group()
def token() -> None:
    """List, make and revoke your own access tokens."""


@token.command("ls")
@hub_options
def list_tokens(hub: Hub, output: Output) -> None:
    """List your tokens, without their secrets."""
    found = hub.tokens()
    rows = [
        [
            str(each.id),
            each.scope,
            f"until {each.expires_at}" if each.expires_at else "never expires",
            each.label,
        ]
        for each in found
    ]
    output.result({"items": found}, *(table(rows) if rows else ["no tokens"]))


@token.command("create")
@click.argument("label")
@click.option(
    "--scope", type=click.Choice(["read", "write", "admin"]), default="read", show_default=True,
    help="No more than that of the token that makes it.",
)  # fmt: skip
@click.option(
    "--ttl-days", type=click.FloatRange(min=0, min_open=True),
    help="Default: as long as the token that makes it.",
)  # fmt: skip
@hub_options
def create_token(label: str, scope: str, ttl_days: float | None, hub: Hub, output: Output) -> None:
    """Make a token for what LABEL says, and print it, this once."""
    ttl_s = None if ttl_days is None else max(1, round(ttl_days * _DAY_S))
    secret = hub.create_token(label, scope=scope, ttl_s=ttl_s)
    output.result({"label": label, "scope": scope, "token": secret}, secret)


@token.command("s3")
@hub_options
def show_s3_keys(hub: Hub, output: Output) -> None:
    """Print the keys with which S3 clients read what the token in use may read.

    The lines set variables that S3 clients read: engines, boto3, s3fs. The keys end with the token:
    make one of scope read for an engine.
    """
    keys = hub.s3_keys()
    lines = [
        f"AWS_ACCESS_KEY_ID={keys.access_key_id}",
        f"AWS_SECRET_ACCESS_KEY={keys.secret_access_key}",
        "AWS_DEFAULT_REGION=us-east-1",
        # Of the streamer in vLLM and SGLang: it would put the bucket before the hub's host name.
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING=0",
    ]
    if keys.endpoint_url is not None:
        lines.insert(0, f"AWS_ENDPOINT_URL={keys.endpoint_url}")
    output.result(keys, *lines)
    if keys.endpoint_url is None:
        output.note(
            "this hub has no address for S3 clients: its operator sets DELTAHUB_SERVER_S3_PORT or"
            " DELTAHUB_SERVER_S3_URL"
        )


@token.command("revoke")
@click.argument("token_id", metavar="ID", type=click.IntRange(min=0))
@hub_options
def revoke_token(token_id: int, hub: Hub, output: Output) -> None:
    """Make your token with this number useless at once."""
    hub.revoke_token(token_id)
    output.result({"revoked": token_id}, f"revoked token {token_id}")
