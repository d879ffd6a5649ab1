"""`deltahub base`."""

from collections.abc import Mapping
from typing import Any, Final, TextIO

import click

from deltahub.client.cli.asking.command import command_of
from deltahub.client.cli.asking.upgrades import upgrade_lines
from deltahub.client.cli.output import Output, hub_options, table
from deltahub.client.hub import Hub
from deltahub.methods.kinds.bases.upgrade_base import UpgradeBaseArguments

_STATES: Final = ("proposed", "running", "done", "put_back", "rejected")


@click.group()
def base() -> None:
    """Upgrade a base, so that its adapters come along."""


@base.command()
@click.option("--base", "name", help="Only those from or to this base.")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@hub_options
def upgrades(name: str | None, state: str | None, hub: Hub, output: Output) -> None:
    """List upgrades, newest first."""
    found = list(hub.upgrades(base=name, state=state))
    rows = [["id", "from", "to", "state", "adapters", "why"]]
    rows += [
        [str(each["id"]), each["old"], each["new"], each["state"], _counts(each), each["source"]]
        for each in found
    ]
    output.result(found, *(table(rows) if found else ["there is no upgrade"]))


@base.command()
@click.argument("upgrade_id", type=int, metavar="UPGRADE")
@hub_options
def show(upgrade_id: int, hub: Hub, output: Output) -> None:
    """Show the plan of an upgrade, and what became of each adapter."""
    found = hub.upgrade(upgrade_id)
    output.result(found, *upgrade_lines(found))


@base.command()
@click.argument("upgrade_id", type=int, metavar="UPGRADE")
@click.argument("adapters", nargs=-1, metavar="[ADAPTER]...")
@click.option(
    "--prompts",
    type=click.File(encoding="utf-8"),
    help="For one adapter without a kit: a text file with 5 to 64 inputs of its task, one a line.",
)
@click.option("--template", help="With prompts: what the model is given, with {input} in it.")
@click.option("--max-new-tokens", type=int, help="With prompts: tokens of an answer at most.")
@hub_options
def approve(
    upgrade_id: int,
    adapters: tuple[str, ...],
    prompts: TextIO | None,
    template: str | None,
    max_new_tokens: int | None,
    hub: Hub,
    output: Output,
) -> None:
    """Let adapters move; without a name, all that are proposed and can move.

    An adapter that is named is tried again if its move failed, or was rejected or put back.
    """
    lines_given = None if prompts is None else prompts.read(1 << 20).splitlines()
    found = hub.approve_upgrade(
        upgrade_id,
        adapters or None,
        prompts=lines_given,
        template=template,
        max_new_tokens=max_new_tokens,
    )
    lines = [f"{each} moves" for each in found["adapters"]] or ["no adapter was left to approve"]
    if found["n_left"]:
        lines.append(f"{found['n_left']} cannot move: `deltahub base show {upgrade_id}` says why")
    output.result(found, *lines)


@base.command()
@click.argument("upgrade_id", type=int, metavar="UPGRADE")
@click.argument("adapters", nargs=-1, metavar="[ADAPTER]...")
@hub_options
def reject(upgrade_id: int, adapters: tuple[str, ...], hub: Hub, output: Output) -> None:
    """Leave adapters on their old base; without a name, all that have not begun."""
    found = hub.reject_upgrade(upgrade_id, adapters or None)
    lines = [f"{each} stays" for each in found["adapters"]] or ["no adapter was left to reject"]
    output.result(found, *lines)


@base.command("put-back")
@click.argument("upgrade_id", type=int, metavar="UPGRADE")
@hub_options
def put_back(upgrade_id: int, hub: Hub, output: Output) -> None:
    """Stop an upgrade's moves, and delete what they made, unless somebody has changed it since.

    The exit status is 1 if a result was kept.
    """
    found = hub.put_back_upgrade(upgrade_id)
    lines = [f"deleted {each}" for each in found["deleted"]]
    lines += [f"stopped the move of {each}" for each in found["cancelled"]]
    lines += [f"kept {each['result'] or each['adapter']}: {each['why']}" for each in found["kept"]]
    if found["n_others"]:
        lines.append(f"{found['n_others']} adapters are others' to decide on")
    output.result(found, *(lines or ["nothing was left to put back"]))
    if found["kept"]:
        raise SystemExit(1)


@base.command()
@click.argument("target", metavar="NAMESPACE[/NAME]")
@click.argument("value", type=click.Choice(["ask", "auto", "off", "inherit"]), required=False)
@hub_options
def policy(target: str, value: str | None, hub: Hub, output: Output) -> None:
    """Say, or without a value show, whether upgrades of a base are proposed by the hub.

    ask: they wait for an approval. auto: those that a model card tells of begin at once. off: none
    is proposed. inherit: take away the policy that was set here. A base's own policy counts before
    its namespace's.
    """
    if value is None:
        found = hub.upgrade_policy(target)
        whose = "the default" if found.source == "default" else f"that of the {found.source}"
        told = {"target": target, "policy": found.policy, "source": found.source}
        output.result(told, f"{target}: {found.policy} ({whose})")
        return
    hub.set_upgrade_policy(target, value)
    output.result({"target": target, "policy": value}, f"{target}: {value}")


def _counts(each: Mapping[str, Any]) -> str:
    return ", ".join(f"{n} {state}" for state, n in each["counts"].items()) or "-"


base.add_command(
    command_of(UpgradeBaseArguments, ("base",), flags={"from_base": "--from"}, without=("source",)),
    "upgrade",
)
