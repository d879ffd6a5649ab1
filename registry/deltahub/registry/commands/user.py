"""`deltahub user`: users, tokens and organizations, for operators."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from deltahub.registry.access import accounts, users
from deltahub.registry.access.login import invitations
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.commands.users.opened import opened, show
from deltahub.registry.commands.users.org import org
from deltahub.registry.commands.users.quota import quota
from deltahub.registry.commands.users.token import token
from deltahub.registry.settings import Settings


def _url_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--url",
        envvar=["DELTAHUB_SERVER_PUBLIC_URL", "DELTAHUB_URL"],
        help="Address of the hub, with which the link begins (DELTAHUB_SERVER_PUBLIC_URL).",
    )(command)


@click.group()
def user() -> None:
    """Manage users, tokens and organizations."""


for each in (org, quota, token):
    user.add_command(each)


@user.command("add")
@click.argument("name")
@click.option("--admin", "is_admin", is_flag=True, help="May administer the whole hub.")
@click.option("--invite", "is_invited", is_flag=True, help="Print a link that sets a password.")
@_url_option
@data_dir_option
@json_option
def add_user(
    name: str, is_admin: bool, is_invited: bool, url: str | None, data_dir: Path, as_json: bool
) -> None:
    """Make the user NAME and the namespace of the same name."""
    data = {"name": name, "is_admin": is_admin}
    with opened(data_dir) as reg:
        if is_invited:
            secret = accounts.create_invited(reg, None, name, is_admin=is_admin, by_shell=True)
            link = _link(reg.settings, url, secret)
            show(as_json, {**data, "link": link}, _about(name, link))
            return
        users.create_user(reg, name, is_admin=is_admin)
    text = (
        f"made user {name}; `deltahub user token create {name}` makes the token that they need to"
        f" log in, `deltahub user invite {name}` a link by which they set a password"
    )
    show(as_json, data, text)


@user.command("invite")
@click.argument("name")
@_url_option
@data_dir_option
@json_option
def invite(name: str, url: str | None, data_dir: Path, as_json: bool) -> None:
    """Print a link by which the user NAME sets a password, also if they forgot theirs."""
    with opened(data_dir) as reg:
        secret = invitations.invite(reg, None, name, by_shell=True)
        link = _link(reg.settings, url, secret)
    show(as_json, {"name": name, "link": link}, _about(name, link))


@user.command("disable")
@click.argument("name")
@data_dir_option
@json_option
def disable(name: str, data_dir: Path, as_json: bool) -> None:
    """Let the user NAME do nothing any more; tokens and sessions stop at once."""
    with opened(data_dir) as reg:
        accounts.disable(reg, None, name, by_shell=True)
    text = f"disabled {name}; their models stay. `deltahub user enable {name}` lets them in again"
    show(as_json, {"disabled": name}, text)


@user.command("enable")
@click.argument("name")
@data_dir_option
@json_option
def enable(name: str, data_dir: Path, as_json: bool) -> None:
    """Let the disabled user NAME in again, with the password and tokens that they had."""
    with opened(data_dir) as reg:
        accounts.enable(reg, None, name, by_shell=True)
    show(as_json, {"enabled": name}, f"enabled {name}")


@user.command("remove")
@click.argument("name")
@data_dir_option
@json_option
def remove(name: str, data_dir: Path, as_json: bool) -> None:
    """Delete the user NAME, who has no models any more; the name stays reserved."""
    with opened(data_dir) as reg:
        bereft = accounts.remove(reg, None, name, by_shell=True)
    lines = [f"removed {name}; `deltahub user add {name}` alone gives the name to somebody again"]
    lines += [
        f"{each} has no administrator now: `deltahub user org member {each} USER --role admin`"
        for each in bereft
    ]
    show(as_json, {"removed": name, "without_administrator": bereft}, "\n".join(lines))


@user.command("list")
@data_dir_option
@json_option
def list_users(data_dir: Path, as_json: bool) -> None:
    """List all users."""
    with opened(data_dir, to_read=True) as reg:
        found = users.list_users(reg)
    rows = [
        {
            "name": row.name, "is_admin": row.is_admin, "created_at": row.created_at.isoformat(),
            "disabled_at": None if row.disabled_at is None else row.disabled_at.isoformat(),
        }
        for row in found
    ]  # fmt: skip
    text = "\n".join(
        f"{row.name}{'  (admin)' if row.is_admin else ''}"
        f"{'' if row.disabled_at is None else '  (disabled)'}"
        for row in found
    )
    show(as_json, {"items": rows}, text or "there are no users")


def _link(settings: Settings, url: str | None, secret: str) -> str:
    """The link to an invitation. Without an address, that at which this machine reaches the hub."""
    return f"{(url or f'http://{settings.host}:{settings.port}').rstrip('/')}{invitations.PATH}{secret}"


def _about(name: str, link: str) -> str:
    days = invitations.LIFETIME.days
    return f"{link}\n{name} sets a password by it, once, within {days} days"
