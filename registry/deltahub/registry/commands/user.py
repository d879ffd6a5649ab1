"""`deltahub user`: users, tokens and organizations, for operators."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import click

from deltahub.registry.access import organizations, tokens, users
from deltahub.registry.access.caller import Role, Scope
from deltahub.registry.commands.errors import Absent, Malformed, Refused
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.data_folder import NoHub, require_hub
from deltahub.registry.db.schema import SchemaTooOld
from deltahub.registry.errors import InvalidRequest, NotFound, RegistryError
from deltahub.registry.quotas import limits
from deltahub.registry.quotas.usage import Usage
from deltahub.registry.registry import Registry
from deltahub.registry.settings import Settings
from deltahub.registry.sizes import human_size
from deltahub.registry.storage.base import StoreError

DAY_S = 86400


@contextmanager
def opened(data_dir: Path, *, to_read: bool = False) -> Iterator[Registry]:
    """The hub in the data folder. Errors of the registry become errors with an exit status.

    to_read: change nothing, so that the folder may be read-only.
    """
    settings = Settings(data_dir=data_dir)
    try:
        require_hub(settings)
        with Registry.open_to_read(settings) if to_read else Registry.open(settings) as reg:
            yield reg
    except InvalidRequest as exc:
        raise Malformed(exc) from exc
    except NotFound as exc:
        raise Absent(exc) from exc
    except (NoHub, SchemaTooOld, RegistryError, StoreError) as exc:
        raise Refused(exc) from exc


_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGTP])(I?))?B?", re.IGNORECASE)
_SIZE_FORMS = "write 500GB, 1.5TB or 2GiB; without a unit it is bytes"


def _bytes(ctx: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Bytes of a size such as 500GB: K, M, G, T and P are powers of 1000, with an i of 1024."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"{text!r} is no size: {_SIZE_FORMS}")
    unit = (1024 if match[3] else 1000) ** " KMGTP".index((match[2] or " ").upper())
    size = int(Fraction(match[1]) * unit)
    if size > limits.MOST:
        raise click.BadParameter(f"{text!r} is too large: at most {limits.MOST} bytes")
    return size


def _of(used: str, limit: str | None) -> str:
    return f"{used}, no limit" if limit is None else f"{used} of {limit}"


def _quota_lines(namespace: str, used: Usage, may: limits.Limits) -> Iterator[str]:
    yield namespace
    most = None if may.repositories is None else str(may.repositories)
    yield f"  repositories: {_of(str(used.repositories), most)}"
    for name, is_used, limit in (
        ("stored", used.stored_bytes, may.stored_bytes),
        ("files", used.logical_bytes, may.logical_bytes),
    ):
        yield f"  {name}: {_of(human_size(is_used), None if limit is None else human_size(limit))}"


def _print(as_json: bool, data: Any, text: str) -> None:
    click.echo(json.dumps(data, default=str) if as_json else text)


@click.group()
def user() -> None:
    """Manage users, tokens and organizations."""


@user.command("quota")
@click.argument("namespace")
@click.option("--repositories", type=click.IntRange(min=0), help="Most repositories.")
@click.option(
    "--stored", metavar="SIZE", callback=_bytes,
    help="Most stored bytes: 500GB, 1.5TB, 2GiB.",
)  # fmt: skip
@click.option("--files", metavar="SIZE", callback=_bytes, help="Most bytes of files, as pushed.")
@click.option("--clear", is_flag=True, help="Let the hub's defaults count again.")
@data_dir_option
@json_option
def quota(
    namespace: str,
    repositories: int | None,
    stored: int | None,
    files: int | None,
    clear: bool,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Show what the NAMESPACE of a user or organization uses and may use, or set its limits.

    With an option it sets all three: what is not named has no limit.
    """
    is_set = any(each is not None for each in (repositories, stored, files))
    if clear and is_set:
        raise click.UsageError("--clear takes the limits away: leave the other options out")
    with opened(data_dir, to_read=not (clear or is_set)) as reg:
        if clear or is_set:
            given = None if clear else limits.Limits(repositories, stored, files)
            limits.set_limits(reg, None, namespace, given, by_shell=True)
        used, may = limits.show_limits_to_operator(reg, namespace)
    data = {"namespace": namespace, "used": vars(used), "limits": vars(may)}
    _print(as_json, data, "\n".join(_quota_lines(namespace, used, may)))


@user.command("add")
@click.argument("name")
@click.option("--admin", "is_admin", is_flag=True, help="May administer the whole hub.")
@data_dir_option
@json_option
def add_user(name: str, is_admin: bool, data_dir: Path, as_json: bool) -> None:
    """Make the user NAME and the namespace of the same name."""
    with opened(data_dir) as reg:
        made = users.create_user(reg, name, is_admin=is_admin)
    text = (
        f"made user {made.name}; `deltahub user token create {made.name}` makes the token that"
        " they need to log in"
    )
    _print(as_json, {"name": made.name, "is_admin": made.is_admin}, text)


@user.command("list")
@data_dir_option
@json_option
def list_users(data_dir: Path, as_json: bool) -> None:
    """List all users."""
    with opened(data_dir, to_read=True) as reg:
        found = users.list_users(reg)
    rows = [
        {"name": row.name, "is_admin": row.is_admin, "created_at": row.created_at.isoformat()}
        for row in found
    ]
    text = "\n".join(f"{row.name}{'  (admin)' if row.is_admin else ''}" for row in found)
    _print(as_json, {"items": rows}, text or "there are no users")


@user.group()
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
    _print(as_json, {"user": name, "scope": scope, "token": secret}, secret)


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
    _print(as_json, {"items": rows}, "\n".join(lines) or "there are no tokens")


@token.command("revoke")
@click.argument("token_id", type=int)
@data_dir_option
@json_option
def revoke_token(token_id: int, data_dir: Path, as_json: bool) -> None:
    """Make the token with this number useless at once."""
    with opened(data_dir) as reg:
        tokens.revoke_token(reg, token_id)
    _print(as_json, {"revoked": token_id}, f"revoked token {token_id}")


@user.group()
def org() -> None:
    """Manage organizations: namespaces that several users share."""


@org.command("add")
@click.argument("name")
@data_dir_option
@json_option
def add_organization(name: str, data_dir: Path, as_json: bool) -> None:
    """Make the organization NAME."""
    with opened(data_dir) as reg:
        made = organizations.create_organization(reg, name)
    text = f"made organization {made.name}; `deltahub user org member {made.name} USER` adds to it"
    _print(as_json, {"name": made.name}, text)


@org.command("list")
@data_dir_option
@json_option
def list_organizations(data_dir: Path, as_json: bool) -> None:
    """List all organizations with their members."""
    with opened(data_dir, to_read=True) as reg:
        found = organizations.list_organizations(reg)
    rows = [
        {
            "name": each.name,
            "members": [{"user": user, "role": role} for user, role in each.members.items()],
        }
        for each in found
    ]
    lines = []
    for each in found:
        members = ", ".join(f"{user} ({role})" for user, role in each.members.items())
        lines.append(f"{each.name}: {members or 'no members'}")
    _print(as_json, {"items": rows}, "\n".join(lines) or "there are no organizations")


@org.command("member")
@click.argument("organization")
@click.argument("name")
@click.option(
    "--role", type=click.Choice(get_args(Role)), default="write", show_default=True,
    help="admin may also delete the organization's repositories.",
)  # fmt: skip
@data_dir_option
@json_option
def add_member(organization: str, name: str, role: Role, data_dir: Path, as_json: bool) -> None:
    """Give the user NAME a role in ORGANIZATION, in place of the one they have."""
    with opened(data_dir) as reg:
        organizations.add_member(reg, organization, name, role)
    data = {"organization": organization, "user": name, "role": role}
    _print(as_json, data, f"{name} has role {role} in {organization}")


@org.command("remove")
@click.argument("organization")
@click.argument("name")
@data_dir_option
@json_option
def remove_member(organization: str, name: str, data_dir: Path, as_json: bool) -> None:
    """Take the role of the user NAME in ORGANIZATION away."""
    with opened(data_dir) as reg:
        organizations.remove_member(reg, organization, name)
    data = {"organization": organization, "removed": name}
    _print(as_json, data, f"{name} is no member of {organization} any more")
