"""`deltahub user org`."""

from pathlib import Path
from typing import get_args

import click

from deltahub.registry.access import organizations
from deltahub.registry.access.caller import Role
from deltahub.registry.commands.options import data_dir_option, json_option
from deltahub.registry.commands.users.opened import opened, show


@click.group()
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
    show(as_json, {"name": made.name}, text)


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
    show(as_json, {"items": rows}, "\n".join(lines) or "there are no organizations")


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
    show(as_json, data, f"{name} has role {role} in {organization}")


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
    show(as_json, data, f"{name} is no member of {organization} any more")
